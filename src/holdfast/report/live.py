"""A small web server for a running job: pages made when they are asked for, on loopback unless told otherwise."""

from __future__ import annotations

import ipaddress
import json
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

from holdfast.errors import Invalid
from holdfast.report.digest import digest_events, ending
from holdfast.report.page import page
from holdfast.runtime.history.history import NAME, read_history

LOOPBACK = "127.0.0.1"
Route = Callable[[], tuple[str, str]]
"""The type of a content, and the content."""
SHARE = 10
"""A digest is made again no sooner than this many times the time it took."""


def check_port(port: int, option: str) -> None:
    if not 0 <= port <= 65535:
        raise Invalid(f"{option} {port}: a port is from 0 (any free one) to 65535")


class LiveServer:
    """Serves these routes in threads of its own until it is closed."""

    def __init__(self, routes: Mapping[str, Route], port: int = 0, host: str = LOOPBACK, option: str = "--ui") -> None:
        check_port(port, option)
        try:
            self._server = ThreadingHTTPServer((host, port), _handler(routes, _is_loopback(host)))
        except OSError as error:
            raise Invalid(
                f"{option}: port {port} of {host} cannot be used: {error.strerror}; 0 takes a free one"
            ) from None
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.port}/"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="holdfast-web", daemon=True
        )
        self._thread.start()

    def __enter__(self) -> LiveServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class LivePage:
    """A job's listener, and the routes of the page that shows what it has heard. Earlier sittings are read first."""

    def __init__(self, folder: Path, title: str) -> None:
        self._events = list(read_history(folder)) if (folder / NAME).is_file() else []
        self._title = title
        self._lock = threading.Lock()
        self._made = (-1, "null", 0.0)

    def heard(self, event: dict[str, Any]) -> None:
        with self._lock:
            self._events.append(event)

    @property
    def routes(self) -> dict[str, Route]:
        return {"/": self._page, "/data.json": self._data}

    def _page(self) -> tuple[str, str]:
        return "text/html; charset=utf-8", page(None, f"Holdfast: {self._title}")

    def _data(self) -> tuple[str, str]:
        with self._lock:
            events = list(self._events)
        count, text, due = self._made
        ended = ending(events) is not None
        if len(events) != count and events and (time.monotonic() >= due or ended):
            began = time.monotonic()
            text = json.dumps(digest_events(events, self._title), allow_nan=False)
            now = time.monotonic()
            self._made = (len(events), text, now + SHARE * (now - began))
        return "application/json", text


def _handler(routes: Mapping[str, Route], loopback: bool) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if loopback and not _is_loopback(_host_of(self.headers.get("Host", ""))):
                # Another site's name that was made to point here: its pages must not read ours.
                self._answer(403, "text/plain; charset=utf-8", "only for this machine\n")
                return
            route = routes.get(self.path.partition("?")[0])
            if route is None:
                known = ", ".join(routes)
                self._answer(404, "text/plain; charset=utf-8", f"nothing here; known: {known}\n")
                return
            self._answer(200, *route())

        def _answer(self, status: int, kind: str, text: str) -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Requests are no news."""

    return Handler


def _host_of(header: str) -> str:
    """The name in a Host header, without its port."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0]


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
