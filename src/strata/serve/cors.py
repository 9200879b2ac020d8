"""Cross-origin requests (WHATWG Fetch, section 3.3): whether pages of other sites may use the server."""

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from strata.options import Options

MAX_AGE_S = 3600  # a browser need not ask again for so long


class CorsApp(FastAPI):
    """An application around all of which the rules stand: preflights carry no key, and answers need the
    headers also where a middleware or the last handler of errors made them.

    Attributes:
        settings: those of `strata serve`; without `cors_origins` no page of another site may read anything.
    """

    settings: Options

    def build_middleware_stack(self) -> ASGIApp:
        stack, origins = super().build_middleware_stack(), self.settings.cors_origins
        if origins is None:
            return stack
        return CORSMiddleware(
            stack,
            allow_origins=[origin.strip() for origin in origins.split(",")],
            allow_methods=["GET", "HEAD", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=["*"],  # clients in a page read from them, e.g., whether to ask again
            allow_private_network=True,
            max_age=MAX_AGE_S,
        )
