"""The web app beside the endpoints of a real server."""

import socket
import subprocess
import sys

import httpx
import pytest
from helpers.api_server import ApiServer

BROWSER = {"accept": "text/html,application/xhtml+xml"}


def test_nicegui_is_imported_by_the_server_alone() -> None:
    code = "import sys, strata.cli, strata.serve.app; sys.exit('nicegui' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_browsers_get_pages_and_other_clients_the_list(server: ApiServer) -> None:
    with httpx.Client(base_url=server.url, trust_env=False) as client:
        assert "endpoints" in client.get("/").json()
        page = client.get("/", headers=BROWSER)
        assert page.headers["content-type"].startswith("text/html")
        assert "default-src 'self'" in page.headers["content-security-policy"]
        missing = client.get("/nothing", headers=BROWSER)
        assert (missing.status_code, missing.json()["error"]["type"]) == (404, "invalid_request_error")
        assert "content-security-policy" not in client.get("/health").headers


def test_everything_in_a_page_is_of_its_server(server: ApiServer) -> None:
    text = httpx.get(server.url, headers=BROWSER, trust_env=False).text
    assert "http://" not in text.replace("http://www.w3.org/", "") and "https://" not in text


@pytest.mark.parametrize(("origin", "status"), [(None, 101), ("own", 101), ("https://attacker.example", 403)])
def test_websocket_is_for_own_pages(server: ApiServer, origin: str | None, status: int) -> None:
    lines = [
        "GET /_nicegui_ws/socket.io/?EIO=4&transport=websocket HTTP/1.1",
        f"Host: 127.0.0.1:{server.port}",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==",
    ]
    if origin is not None:
        lines.append(f"Origin: {server.url if origin == 'own' else origin}")
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        assert int(connection.recv(4096).split()[1]) == status


def test_no_other_site_can_poll_in_place_of_the_websocket(server: ApiServer) -> None:
    url = f"{server.url}/_nicegui_ws/socket.io/?EIO=4&transport=polling"
    assert httpx.get(url, trust_env=False).status_code == 200
    answer = httpx.get(url, headers={"origin": "https://attacker.example"}, trust_env=False)
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers
