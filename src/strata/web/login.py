"""The page that asks for the server's key, and the cookie that a browser gets for it.

The cookie is a keyed hash, so it needs no store, outlives the server and ends with the key. It opens the
pages only; the endpoints go on to want the key itself, which no other site can make a browser send.
"""

import hashlib
import hmac
import html
from collections.abc import Collection
from string import Template
from urllib.parse import parse_qs, quote

from fastapi import Response
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.datastructures import Headers
from starlette.requests import Request, cookie_parser

from strata.options import Options
from strata.web.files import read_static

BODY_LIMIT = 8192  # bytes of the form
DAYS = 30


def path_to(page: str) -> str:
    """Where the key is asked for, on the way to a page."""
    return f"/login?next={quote(page)}"


def has_session(headers: Headers, api_key: str | None) -> bool:
    """Whether a browser shows the cookie that it got for the key."""
    if api_key is None:
        return True
    name, value = _cookie(api_key)
    given = cookie_parser(headers.get("cookie", "")).get(name, "")
    return hmac.compare_digest(given.encode("latin-1", "replace"), value.encode())


async def respond(request: Request, options: Options, pages: Collection[str]) -> Response:
    """Answer `/login` and `/logout`: the form, the cookie for the right key, or its end.

    Args:
        request: the browser's.
        options: with the key.
        pages: where it may want to go afterwards.
    """
    target = request.query_params.get("next", "/")
    target = target if target in pages else "/"
    if options.api_key is None:
        return RedirectResponse(target, 303)
    name, value = _cookie(options.api_key)
    if request.url.path == "/logout":
        answer = RedirectResponse("/login", 303)
        answer.delete_cookie(name)
        return answer
    if request.method != "POST":
        return _form(target, "", 200)
    key = await _key(request)
    if key is None or not hmac.compare_digest(key.encode(), options.api_key.encode()):
        return _form(target, "That is not the key of this server.", 401)
    answer = RedirectResponse(target, 303)
    secure = request.url.scheme == "https"
    answer.set_cookie(name, value, DAYS * 86400, httponly=True, samesite="strict", secure=secure)
    return answer


def _cookie(api_key: str) -> tuple[str, str]:
    """Name and value: browsers share cookies between ports, and each server has a key of its own."""
    value = hmac.new(api_key.encode(), b"strata web app", hashlib.sha256).hexdigest()
    return f"strata-{hashlib.sha256(value.encode()).hexdigest()[:8]}", value


async def _key(request: Request) -> str | None:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > BODY_LIMIT:
            return None
    try:
        return parse_qs(body.decode("ascii"), errors="strict").get("key", [""])[0].strip()
    except ValueError:
        return None


def _form(target: str, complaint: str, status: int) -> HTMLResponse:
    page = Template(read_static("login.html"))
    fields = {"action": path_to(target), "complaint": complaint}
    text = page.substitute({name: html.escape(value) for name, value in fields.items()})
    return HTMLResponse(text, status, {"Cache-Control": "no-store"})
