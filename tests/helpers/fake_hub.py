"""A hub on this machine: the requests that huggingface_hub makes, with ranges and with faults."""

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "c" * 40
LARGE_BYTES = 1000  # from here on a file is listed with a SHA-256, as git LFS files are


class FakeHub:
    """One repository, `owner/repo`.

    Attributes:
        files: name -> contents; may be changed between requests.
        commit: what `main` stands for.
        break_after: bytes of a file's body after which connections are cut; None never.
        num_breaks: how many more transfers are cut; after them `refuse_next` counts.
        refuse_next: how many more file requests are answered 403.
        announced: name -> (size, hash) to list instead of the true ones.
        log: "METHOD path [range]" of every request.
    """

    def __init__(self, files: dict[str, bytes]):
        self.files = files
        self.commit = COMMIT
        self.break_after: int | None = None
        self.num_breaks = 0
        self.refuse_next = 0
        self.announced: dict[str, tuple[int, str]] = {}
        self.log: list[str] = []
        self.endpoint = ""

    def transfers(self) -> list[str]:
        """File name and range of each file request."""
        return [entry.split("/resolve/" + self.commit + "/")[1] for entry in self.log if "/resolve/" in entry]

    def listing(self) -> dict:
        siblings = []
        for name, data in self.files.items():
            size, sha256 = self.announced.get(name, (len(data), hashlib.sha256(data).hexdigest()))
            sibling = {"rfilename": name, "size": size, "blobId": git_blob_id(data)}
            if len(data) >= LARGE_BYTES:
                sibling["lfs"] = {"size": size, "sha256": sha256, "pointerSize": 130}
            siblings.append(sibling)
        return {"id": "owner/repo", "modelId": "owner/repo", "sha": self.commit, "siblings": siblings}


def git_blob_id(data: bytes) -> str:
    """The name that git gives to a file's contents."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: FakeHub

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        span = self.headers.get("Range")
        self.hub.log.append(f"GET {path}" + (f" {span}" if span else ""))
        listed = re.fullmatch(r"/api/models/owner/repo/revision/(.+)", path)
        if listed:
            if listed[1] in ("main", self.hub.commit):
                self._answer(200, json.dumps(self.hub.listing()).encode())
            else:
                self._answer(404, b"", {"X-Error-Code": "RevisionNotFound"})
        elif path.startswith(f"/owner/repo/resolve/{self.hub.commit}/"):
            self._send_file(path.split("/", 5)[5], span)
        elif path.startswith("/api/models/owner/gated"):
            self._answer(403, b"", {"X-Error-Code": "GatedRepo"})
        else:
            self._answer(404, b"", {"X-Error-Code": "RepoNotFound"})

    def do_HEAD(self) -> None:
        name = unquote(urlsplit(self.path).path).split("/", 5)[5]
        self.send_response(200)
        self.send_header("X-Repo-Commit", self.hub.commit)
        self.send_header("ETag", hashlib.sha256(self.hub.files[name]).hexdigest())
        self.send_header("Content-Length", str(len(self.hub.files[name])))
        self.end_headers()

    def _send_file(self, name: str, span: str | None) -> None:
        if name not in self.hub.files:
            self._answer(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        if self.hub.num_breaks == 0 and self.hub.refuse_next:
            self.hub.refuse_next -= 1
            self._answer(403, b"")
            return
        data = self.hub.files[name]
        start = int(span.removeprefix("bytes=").removesuffix("-")) if span else 0
        if start >= len(data) > 0:
            self._answer(416, b"")
            return
        headers = {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"} if span else {}
        self._answer(206 if span else 200, data[start:], headers, self.hub.break_after)

    def _answer(self, status: int, body: bytes, headers: dict | None = None, cut: int | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if cut is not None and cut < len(body) and self.hub.num_breaks:
            self.hub.num_breaks -= 1
            self.close_connection = True
            body = body[:cut]
        self.wfile.write(body)


@contextmanager
def serve(files: dict[str, bytes]) -> Iterator[FakeHub]:
    """Run a hub on a free port of the loopback interface."""
    hub = FakeHub(files)
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
