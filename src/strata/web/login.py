"""The page that asks for one of the server's keys, and the cookie that a browser gets for it.

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

from strata.serve.keys import Keys, mark
from strata.web.files import read_static

BODY_LIMIT = 8192  # bytes of the form
DAYS = 30
_PURPOSE = b"strata web app"


def path_to(page: str) -> str:
    """Where the key is asked for, on the way to a page."""
    return f"/login?next={quote(page)}"


def has_session(headers: Headers, keys: Keys) -> bool:
    """Whether a browser shows the cookie that it got for one of the keys."""
    given = cookie_parser(headers.get("cookie", ""))
    shown = [(given.get(_name(value), ""), value) for value in keys.marks(_PURPOSE)]
    matches = [hmac.compare_digest(a.encode("latin-1", "replace"), b.encode()) for a, b in shown]
    return not keys or any(matches)


async def respond(request: Request, keys: Keys, pages: Collection[str]) -> Response:
    """Answer `/login` and `/logout`: the form, the cookie for a right key, or its end.

    Args:
        request: the browser's.
        keys: that open the server.
        pages: where it may want to go afterwards.
    """
    target = request.query_params.get("next", "/")
    target = target if target in pages else "/"
    if not keys:
        return RedirectResponse(target, 303)
    if request.url.path == "/logout":
        answer = RedirectResponse("/login", 303)
        for value in keys.marks(_PURPOSE):
            answer.delete_cookie(_name(value))
        return answer
    if request.method != "POST":
        return _form(target, "", 200)
    key = await _key(request)
    if key is None or not keys.match(key.encode()):
        return _form(target, "That is not a key of this server.", 401)
    answer = RedirectResponse(target, 303)
    secure, value = request.url.scheme == "https", mark(key.encode(), _PURPOSE)
    answer.set_cookie(_name(value), value, DAYS * 86400, httponly=True, samesite="strict", secure=secure)
    return answer


def _name(value: str) -> str:
    """The cookie's name: browsers share cookies between ports, and each server has keys of its own."""
    return f"strata-{hashlib.sha256(value.encode()).hexdigest()[:8]}"


async def _key(request: Request) -> str | None:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > BODY_LIMIT:
            return None
    try:
        return parse_qs(body.decode("ascii"), errors="strict").get("key", [""])[0]
    except ValueError:
        return None


def _form(target: str, complaint: str, status: int) -> HTMLResponse:
    page = Template(read_static("login.html"))
    fields = {"action": path_to(target), "complaint": complaint}
    text = page.substitute({name: html.escape(value) for name, value in fields.items()})
    return HTMLResponse(text, status, {"Cache-Control": "no-store"})
