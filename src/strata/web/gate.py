"""Who may use the web app. It is the door to NiceGUI's own routes, which know of no keys and no origins.

Pages, their files and their websocket pass the same checks as the endpoints: `Host` must name this machine
while the server listens to it alone, and where a key is asked for, a browser shows the cookie that it got for
the key (see `login.py`). Beyond that, what a browser sends from a page of another site is refused, since
websockets obey no same-origin policy (RFC 6455, section 10.2).
"""

from collections.abc import Sequence

from fastapi import Response
from fastapi.responses import RedirectResponse
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from strata.options import Options
from strata.serve.errors import as_response, envelope
from strata.serve.guard import comes_from, has_key, host_refusal
from strata.serve.keys import Keys
from strata.web import files, login

_FILES = ("/_nicegui", "/_nicegui_ws", files.URL)  # and what is below them
_SESSION = ("/login", "/logout")

# NiceGUI compiles templates and runs what the server sends, hence 'unsafe-eval' and 'unsafe-inline'. What the
# policy forbids is every other host, whatever an answer of the model may contain.
_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self' {sockets}; object-src 'none'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)


class Gate:
    """ASGI middleware that answers for the web app's paths and passes all others on.

    Args:
        app: the endpoints.
        web: the web app.
        options: with the address, and the sites that may use the server.
        keys: that open it.
        pages: paths that are the web app's for browsers; other clients may have other answers there.
    """

    def __init__(self, app: ASGIApp, web: ASGIApp, options: Options, keys: Keys, pages: Sequence[str]):
        self._app, self._web, self._options, self._keys = app, web, options, keys
        self._pages = frozenset(pages)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or not self._is_ours(scope):
            await self._app(scope, receive, send)
            return
        answer = self._refusal(scope)
        if answer is None and scope["path"] in _SESSION:
            answer = await login.respond(Request(scope, receive), self._keys, self._pages)
        await (answer or self._web)(scope, receive, _with_headers(send, scope))

    def _is_ours(self, scope: Scope) -> bool:
        path = scope["path"]
        if path in self._pages:  # a browser says that it wants a page, curl and OpenAI's clients do not
            return "text/html" in Headers(scope=scope).get("accept", "")
        below = any(path == root or path.startswith(f"{root}/") for root in _FILES)
        return below or path == "/favicon.ico" or path in _SESSION

    def _refusal(self, scope: Scope) -> Response | None:
        headers, path = Headers(scope=scope), scope["path"]
        if refusal := host_refusal(headers, self._options, path):
            return refusal
        if site := comes_from(headers, self._options):
            message = f"pages of {site!r} may not use the web app"
            return as_response(403, envelope(403, message, code="origin_not_allowed"), path)
        if path in _SESSION or path.startswith(f"{files.URL}/") or path == "/favicon.ico":
            return None  # what the page that asks for the key is made of
        if has_key(headers, self._keys) or login.has_session(headers, self._keys):
            return None
        if path in self._pages:
            return RedirectResponse(login.path_to(path), 303)
        return as_response(401, envelope(401, "sign in at /login", code="invalid_api_key"), path)


def _with_headers(send: Send, scope: Scope) -> Send:
    """`send` that adds what browsers are to heed."""
    host = Headers(scope=scope).get("host", "")
    # Older Safari does not count websockets of the page's own host among 'self'.
    sockets = f"ws://{host} wss://{host}" if host.replace(".", "").replace(":", "").isalnum() else ""

    async def add(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers["Content-Security-Policy"] = _POLICY.format(sockets=sockets)
            headers["X-Content-Type-Options"] = "nosniff"
            # Not "no-referrer": with it a form's `Origin` would be "null".
            headers["Referrer-Policy"] = "same-origin"
            headers["Cross-Origin-Opener-Policy"] = "same-origin"
            headers["Cross-Origin-Resource-Policy"] = "same-origin"
        await send(message)

    return add
