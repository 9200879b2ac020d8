"""Who may speak to the server: `Host`, `Origin` and the key."""

import pytest
from serve.test_app import send

from strata.errors import StrataError
from strata.options import Options
from strata.serve.app import create_app
from strata.serve.guard import is_loopback


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:8080", 200),
        ("127.0.0.1:1", 200),
        ("[::1]:8080", 200),
        ("[::1]", 200),
        ("evil.example", 403),
        ("evil.example:8080", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("", 403),
    ],
)
def test_host_header(host: str, status: int) -> None:
    """A name that was made to point to this machine is not this machine's (DNS rebinding)."""
    assert send("GET", "/v1/models", headers={"Host": host}).status_code == status


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (None, 401),
        ("Bearer wrong", 401),
        ("Bearer ", 401),
        ("secret-ä", 401),
        ("Basic secret-ä", 401),
        ("Bearer secret-ä", 200),
        ("bearer secret-ä", 200),
    ],
)
def test_api_key(header: str | None, status: int) -> None:
    headers = {"Authorization": header.encode()} if header else {}
    options = {"api_key": "secret-ä", "host": "0.0.0.0"}
    response = send("GET", "/v1/models", headers=headers | {"Host": "pc.lan"}, app_options=options)
    assert response.status_code == status
    if status == 401:
        assert response.json()["error"]["code"] == "invalid_api_key"


def test_health_tells_strangers_the_status_only() -> None:
    """CASES 212 of the original."""
    assert send("GET", "/health", app_options={"api_key": "k"}).json() == {"status": "loading"}


def test_other_addresses_need_a_key() -> None:
    with pytest.raises(StrataError, match="--api-key"):
        create_app(Options(model="scripted:m.jsonl", host="0.0.0.0"))


def test_loopback() -> None:
    assert all(map(is_loopback, ["127.0.0.1", "127.8.9.1", "::1", "[::1]", "localhost"]))
    assert not any(map(is_loopback, ["0.0.0.0", "::", "192.168.0.1", "localhost.lan", ""]))


@pytest.mark.parametrize(
    ("origin", "sites", "status"),
    [
        ("http://evil.example", None, 403),
        ("null", None, 403),  # a file, or a frame in a sandbox
        ("http://127.0.0.1", None, 200),  # this server's own
        ("http://127.0.0.1:3000", None, 403),
        ("http://[", None, 403),
        ("https://a.example", "https://a.example", 200),
        ("https://b.example", "https://a.example", 403),
        ("https://b.example", "*", 200),
    ],
)
def test_pages_of_other_sites_have_nothing_done(origin: str, sites: str | None, status: int) -> None:
    answer = send("GET", "/v1/models", app_options={"cors_origins": sites}, headers={"Origin": origin})
    assert answer.status_code == status
    if status == 403:
        assert answer.json()["error"]["code"] == "origin_not_allowed"
