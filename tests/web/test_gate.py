"""Who gets to the web app: by path, `Host`, `Origin` and key, for pages, files and the websocket alike."""

import asyncio

import httpx
import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from strata.options import Options
from strata.serve.keys import read_keys
from strata.web.gate import Gate

PAGE = {"accept": "text/html,*/*"}
OURS = ("/_nicegui/3/static/nicegui.js", "/_nicegui_ws/socket.io/", "/_strata/strata.js", "/favicon.ico")


async def _web(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.accept"})
    else:
        await PlainTextResponse("web")(scope, receive, send)


def gate_of(**values: object) -> Gate:
    options = Options(**values)
    return Gate(PlainTextResponse("endpoint"), _web, options, read_keys(options), ["/", "/monitor"])


def client(host: str = "127.0.0.1:8080", **options: object) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(gate_of(**options)), base_url=f"http://{host}")


def get(path: str, headers: dict[str, str] | None = None, **where: object) -> httpx.Response:
    async def request() -> httpx.Response:
        async with client(**where) as http:
            return await http.get(path, headers=headers or {})

    return asyncio.run(request())


@pytest.mark.parametrize("path", OURS)
def test_files_are_the_web_apps(path: str) -> None:
    assert get(path).text == "web"


@pytest.mark.parametrize("path", ["/v1/models", "/health", "/_nicegui_wsx", "/nothing", "/Login"])
def test_other_paths_are_the_endpoints(path: str) -> None:
    assert get(path, PAGE).text == "endpoint"


def test_a_page_is_for_browsers() -> None:
    assert get("/", PAGE).text == "web"
    assert get("/", {"accept": "*/*"}).text == "endpoint"


@pytest.mark.parametrize("path", ["/", *OURS, "/login"])
def test_another_host_s_name_is_refused(path: str) -> None:
    answer = get(path, PAGE, host="rebound.example")
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "host_not_allowed"


@pytest.mark.parametrize("origin", ["https://attacker.example", "http://127.0.0.1:9999", "null"])
@pytest.mark.parametrize("path", ["/", *OURS, "/login"])
def test_pages_of_other_origins_are_refused(path: str, origin: str) -> None:
    answer = get(path, PAGE | {"origin": origin})
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "origin_not_allowed"


def test_a_site_that_may_use_the_server_may_use_the_web_app() -> None:
    origin = {"origin": "https://chat.example"}
    assert get("/", PAGE | origin, cors_origins="https://a.example, https://chat.example").text == "web"
    assert get("/", PAGE | origin, cors_origins="*").status_code == 403  # all may read, not act as a page


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([], 101),
        ([(b"origin", b"http://127.0.0.1:8080")], 101),
        ([(b"origin", b"https://attacker.example")], 403),
        ([(b"host", b"rebound.example")], 403),
    ],
)
def test_the_websocket_passes_the_same_checks(headers: list[tuple[bytes, bytes]], status: int) -> None:
    assert websocket(headers) == status


def test_the_websocket_wants_the_key() -> None:
    assert websocket([], api_key="secret") == 401
    assert websocket([(b"authorization", b"Bearer secret")], api_key="secret") == 101


def websocket(headers: list[tuple[bytes, bytes]], **options: object) -> int:
    """The status with which a websocket is opened or refused."""
    sent: list[dict] = []
    named = {name for name, _ in headers}
    headers = headers + ([] if b"host" in named else [(b"host", b"127.0.0.1:8080")])
    scope = {"type": "websocket", "path": "/_nicegui_ws/socket.io/", "headers": headers, "query_string": b""}
    scope |= {"extensions": {"websocket.http.response": {}}}

    async def send(message: dict) -> None:
        sent.append(message)

    asyncio.run(gate_of(**options)(scope, None, send))
    return 101 if sent[0]["type"] == "websocket.accept" else sent[0]["status"]


@pytest.mark.parametrize("path", ["/", "/monitor"])
def test_browsers_are_forbidden_every_other_host(path: str) -> None:
    headers = get(path, PAGE).headers
    policy = headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "http:" not in policy and "https:" not in policy and "*" not in policy
    assert headers["referrer-policy"] == "same-origin"


def test_without_the_key_a_browser_is_sent_to_ask_for_it() -> None:
    answer = get("/monitor", PAGE, api_key="secret")
    assert (answer.status_code, answer.headers["location"]) == (303, "/login?next=/monitor")
    assert get("/_nicegui/3/static/nicegui.js", api_key="secret").status_code == 401
    assert get("/_strata/icon.svg", api_key="secret").text == "web"


def test_the_key_opens_the_pages_and_only_them() -> None:
    async def visit() -> None:
        async with client(api_key="sécret & more") as http:
            form = await http.get("/login?next=/monitor")
            assert form.status_code == 200 and "/login?next=/monitor" in form.text
            wrong = await http.post("/login", data={"key": "guess"})
            assert wrong.status_code == 401 and "not a key" in wrong.text
            assert (await http.get("/", headers=PAGE)).status_code == 303
            right = await http.post("/login?next=/monitor", data={"key": "sécret & more"})
            assert (right.status_code, right.headers["location"]) == (303, "/monitor")
            cookie = right.headers["set-cookie"]
            assert "HttpOnly" in cookie and "SameSite=strict" in cookie and "sécret" not in cookie
            assert (await http.get("/monitor", headers=PAGE)).text == "web"
            assert (await http.get("/logout")).status_code == 303
            assert (await http.get("/monitor", headers=PAGE)).status_code == 303

    asyncio.run(visit())


def test_the_form_leads_to_pages_alone_and_is_bounded() -> None:
    async def visit() -> None:
        async with client(api_key="secret") as http:
            for target in ("https://attacker.example", "//attacker.example", "/v1/models", '/"><script>'):
                answer = await http.post("/login", params={"next": target}, data={"key": "secret"})
                assert answer.headers["location"] == "/"
            assert (await http.post("/login", content=b"key=" + b"x" * 100_000)).status_code == 401
            assert (await http.post("/login", content=b"key=%ff\xff")).status_code == 401

    asyncio.run(visit())


def test_another_key_s_cookie_opens_nothing() -> None:
    async def cookie_of(key: str) -> str:
        async with client(api_key=key) as http:
            answer = await http.post("/login", data={"key": key})
            return answer.headers["set-cookie"].partition(";")[0]

    mine, other = asyncio.run(cookie_of("secret")), asyncio.run(cookie_of("other"))
    assert get("/", PAGE | {"cookie": f"x=1; {mine}"}, api_key="secret").text == "web"
    name = mine.partition("=")[0]
    for wrong in (other, f"{name}={other.partition('=')[2]}", f"{name}=", "garbage"):
        assert get("/", PAGE | {"cookie": wrong}, api_key="secret").status_code == 303
    assert get("/", PAGE | {"cookie": other}, api_key="secret,other").text == "web"


def test_any_of_several_keys_signs_in_and_signing_out_ends_it() -> None:
    async def visit(key: str) -> None:
        async with client(api_key="one,two") as http:
            assert (await http.post("/login", data={"key": key})).status_code == 303
            assert (await http.get("/", headers=PAGE)).text == "web"
            await http.get("/logout")
            assert (await http.get("/", headers=PAGE)).status_code == 303

    for key in ("one", " two "):
        asyncio.run(visit(key))
