"""Who may speak to the server: pages of other sites may not, nor who lacks the key."""

import ipaddress

from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from strata.errors import StrataError
from strata.options import Options
from strata.serve.errors import as_response, envelope
from strata.serve.keys import Keys

_OPEN_PATHS = ("/health", "/")  # for probes; without the key they tell no more than the status


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.rstrip(".").lower() == "localhost"


def check_exposure(options: Options) -> None:
    """Raises StrataError for an address that others reach while no key is asked for."""
    if not is_loopback(options.host) and not options.asks_for_key:
        raise StrataError(
            f"--host {options.host} lets other machines in; give --api-key KEY (or STRATA_API_KEY) or "
            "--api-key-file FILE, or listen on 127.0.0.1"
        )


def has_key(headers: Headers, keys: Keys) -> bool:
    """Whether a request may do everything."""
    if not keys:
        return True
    scheme, _, bearer = headers.get("authorization", "").partition(" ")
    given = [bearer] if scheme.lower() == "bearer" else []
    given += [headers["x-api-key"]] if "x-api-key" in headers else []
    return any(keys.match(key.encode("latin-1", "replace")) for key in given)


def host_refusal(headers: Headers, options: Options, path: str) -> JSONResponse | None:
    """The answer to a request whose `Host` may not be heeded, if so.

    On loopback `Host` must name this machine: a site whose name was made to point here ("DNS rebinding")
    is sent by browsers under its own name.
    """
    host = headers.get("host")
    if not is_loopback(options.host) or host is None or is_loopback(_without_port(host)):
        return None
    message = f"this server answers to localhost only, not to {host!r}"
    return as_response(403, envelope(403, message, code="host_not_allowed"), path)


def comes_from(headers: Headers, options: Options) -> str | None:
    """The other site whose page sends a request, if it is none that `--cors-origins` names.

    Of no page, as clients are, and of the server's own there is nothing to tell.
    """
    origin = headers.get("origin")
    if origin is None or origin.rpartition("://")[2].lower() == headers.get("host", "").lower():
        return None
    return None if origin in origins(options) else origin


def origins(options: Options) -> set[str]:
    """The sites that may use the server; `*` is any."""
    return {site.strip() for site in (options.cors_origins or "").split(",")}


class Guard:
    """ASGI middleware that checks `Host`, `Origin` and the key before an endpoint sees a request.

    Args:
        app: what is guarded.
        options: with the address.
        keys: that open it.
    """

    def __init__(self, app: ASGIApp, options: Options, keys: Keys):
        self._app, self._options, self._keys = app, options, keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        await (refusal or self._app)(scope, receive, send)

    def _refusal(self, scope: Scope) -> JSONResponse | None:
        headers = Headers(scope=scope)
        if refusal := host_refusal(headers, self._options, scope["path"]):
            return refusal
        # Browsers let such a page read no answer, but what it asks for would be done.
        if "*" not in origins(self._options) and (site := comes_from(headers, self._options)):
            message = f"pages of {site!r} may not use this server; --cors-origins can let them"
            return as_response(403, envelope(403, message, code="origin_not_allowed"), scope["path"])
        if scope["path"] not in _OPEN_PATHS and not has_key(headers, self._keys):
            message = "the API key is missing or wrong; send Authorization: Bearer KEY, or X-Api-Key: KEY"
            body = envelope(401, message, code="invalid_api_key")
            return as_response(401, body, scope["path"], {"WWW-Authenticate": "Bearer"})
        return None


def _without_port(host: str) -> str:
    """`127.0.0.1:8080` -> `127.0.0.1`, `[::1]:8080` -> `[::1]`."""
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() and (":" not in name or name.endswith("]")) else host
