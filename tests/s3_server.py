"""An S3 server on loopback that lives in the test's process, and a proxy before it that counts, breaks and stalls."""

from __future__ import annotations

import http.client
import logging
import random
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

Fault = str | int | None
"""A status to answer with; "stall": no answer; "cut": half of one; "lost": done but not answered; None: all is well."""


@contextmanager
def s3_server() -> Iterator[int]:
    """Run moto's server, all of it in memory, and yield its port."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        yield server.get_host_and_port()[1]
    finally:
        server.stop()


def environment(port: int) -> dict[str, str]:
    """Return what a user of a server at a port has in the environment; outages are short."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "nobody",
        "AWS_SECRET_ACCESS_KEY": "not-to-be-told",
        "AWS_REGION": "us-east-1",
        "NO_PROXY": "127.0.0.1",
        "GRACE_STORE_REQUEST_SECONDS": "20",
        "GRACE_STORE_OUTAGE_SECONDS": "20",
    }


def new_bucket(port: int) -> str:
    """Make a bucket of a name that no other test has."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("PUT", f"/{name}")
    assert connection.getresponse().status == 200
    connection.close()
    return name


class Proxy:
    """Stands before a server. `fault` says what befalls each request; `counts` says what was asked for."""

    def __init__(self, port: int) -> None:
        self._behind = port
        self.fault: Callable[[str, str], Fault] = lambda method, path: None
        self.error_body = b"<Error><Code>InternalError</Code></Error>"
        self.requests: list[tuple[str, str]] = []
        self._lock = threading.Lock()
        self._ended = threading.Event()
        handler = type("Handler", (_Handler,), {"proxy": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]

    def __enter__(self) -> Proxy:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._server.shutdown()
        self._server.server_close()

    def counts(self) -> dict[str, int]:
        """Return how many requests of each kind there were since the last time, and forget them."""
        with self._lock:
            seen, self.requests = self.requests, []
        return dict(sorted(Counter(kind for kind, _ in seen).items()))

    def note(self, method: str, path: str) -> Fault:
        parts = urlsplit(path)
        kind = "LIST" if method == "GET" and "list-type" in parse_qs(parts.query) else method
        with self._lock:
            self.requests.append((kind, path))
            return self.fault(kind, parts.path)

    def wait_for_end(self) -> None:
        self._ended.wait(60)

    def forward(self, method: str, path: str, headers: dict[str, str], body: bytes) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self._behind, timeout=60)
        connection.request(method, path, body, headers)
        return connection.getresponse()


class _Handler(BaseHTTPRequestHandler):
    proxy: Proxy
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault = self.proxy.note(self.command, self.path)
        if isinstance(fault, int):
            self._answer(fault, {}, self.proxy.error_body)
        elif fault == "stall":
            self.proxy.wait_for_end()
            self.close_connection = True
        else:
            answer = self.proxy.forward(self.command, self.path, dict(self.headers), body)
            content = answer.read()
            if fault == "lost":
                self.close_connection = True
                return
            self._answer(answer.status, dict(answer.headers), content, is_cut=fault == "cut")

    def _answer(self, status: int, headers: dict[str, str], content: bytes, *, is_cut: bool = False) -> None:
        self.send_response_only(status)
        length = headers.get("Content-Length", str(len(content)))
        for name, value in headers.items():
            if name.lower() not in ("content-length", "connection", "transfer-encoding"):
                self.send_header(name, value)
        self.send_header("Content-Length", length if self.command == "HEAD" else str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content[: len(content) // 2] if is_cut else content)
        if is_cut:
            self.wfile.flush()
            self.close_connection = True

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _handle  # noqa: N815 - as http.server calls them


def random_faults(seed: int, share: float) -> Callable[[str, str], Fault]:
    """Return faults of every kind that befall a share of requests, the same ones for the same order of requests."""
    dice = random.Random(seed)
    kinds: list[Fault] = [500, 503, 429, "cut", "lost"]

    def fault(method: str, path: str) -> Fault:
        return dice.choice([*kinds, *kinds, "stall"]) if dice.random() < share else None

    return fault
