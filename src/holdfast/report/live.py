"""A small web server for a running job: pages made when they are asked for, on loopback unless told otherwise.

Elsewhere whoever asks must show a token: in a header, or once as ``?token=``, for which a browser gets a cookie.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import secrets
import sys
import threading
import time
from collections.abc import Callable, Mapping
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, urlsplit

from holdfast.errors import Invalid
from holdfast.report.digest import digest_events, ending
from holdfast.report.page import page
from holdfast.runtime.history.history import NAME, read_history

LOOPBACK = "127.0.0.1"
Route = Callable[[], tuple[str, str]]
"""The type of a content, and the content."""
COOKIE = "holdfast"
SHORTEST = 16
"""Characters of a token."""
NEW = "new"
"""In place of a token: one shall be made."""
SHARE = 10
"""A digest is made again no sooner than this many times the time it took."""


def check_port(port: int, option: str) -> None:
    if not 0 <= port <= 65535:
        raise Invalid(f"{option} {port}: a port is from 0 (any free one) to 65535")


def check_access(host: str, token: str | None, option: str) -> None:
    """Invalid for an address that others reach without a token, or for one that is easily guessed."""
    if token is not None and (len(token) < SHORTEST or not token.isascii() or not token.isprintable() or " " in token):
        raise Invalid(f"--token: at least {SHORTEST} letters and digits are needed, or the word {NEW}, which makes one")
    if token is None and not _is_loopback(host):
        raise Invalid(f"{option} {host}: others reach that address; give --token {NEW}, or a token in HOLDFAST_TOKEN")


def made_token(asked: str | None) -> str | None:
    """The token that was given, or a new one if one was asked for."""
    return secrets.token_urlsafe(24) if asked == NEW else asked


class LiveServer:
    """Serves these routes in threads of its own until it is closed; with a ``token`` only to those who show it."""

    def __init__(
        self,
        routes: Mapping[str, Route],
        port: int = 0,
        host: str = LOOPBACK,
        option: str = "--ui",
        token: str | None = None,
    ) -> None:
        check_port(port, option)
        check_access(host, token, f"{option.removesuffix('-port')}-host")
        try:
            self._server = _Server((host, port), _handler(routes, _is_loopback(host), token))
        except OSError as error:
            raise Invalid(
                f"{option}: port {port} of {host} cannot be used: {error.strerror}; 0 takes a free one"
            ) from None
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


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Who hangs up in the middle is no news; anything else is one line."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            print(f"holdfast: a page could not be made: {type(error).__name__}: {error}", file=sys.stderr)


def _proof(token: str) -> str:
    """What a browser keeps in place of the token."""
    return hmac.new(token.encode(), b"holdfast page", "sha256").hexdigest()


def _same(given: str, expected: str) -> bool:
    """In a time that does not tell how much of it was right."""
    return hmac.compare_digest(given.encode(errors="replace"), expected.encode())


def _handler(routes: Mapping[str, Route], loopback: bool, token: str | None) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 30.0
        server_version, sys_version = "holdfast", ""

        def do_GET(self) -> None:
            if loopback and not _is_loopback(_host_of(self.headers.get("Host", ""))):
                # Another site's name that was made to point here: its pages must not read ours.
                self._answer(403, "text/plain; charset=utf-8", "only for this machine\n")
                return
            asked = urlsplit(self.path)
            if token is not None and (shown := parse_qs(asked.query).get("token", [""])[0]):
                if _same(shown, token):
                    # The token leaves the address bar, and with it the history and what is sent on.
                    cookie = f"{COOKIE}={_proof(token)}; HttpOnly; SameSite=Lax; Path=/"
                    back = {"Location": asked.path if asked.path in routes else "/", "Set-Cookie": cookie}
                    self._answer(303, "text/plain; charset=utf-8", "", back)
                    return
            elif token is None or self._knows(token):
                self._route(asked.path)
                return
            self._answer(401, "text/plain; charset=utf-8", "a token is needed\n", {"WWW-Authenticate": "Bearer"})

        def _knows(self, token: str) -> bool:
            kind, _, shown = self.headers.get("Authorization", "").partition(" ")
            if kind.lower() == "bearer":
                return _same(shown.strip(), token)
            try:
                kept = SimpleCookie(self.headers.get("Cookie", "")).get(COOKIE)
            except CookieError:
                return False
            return kept is not None and _same(kept.value, _proof(token))

        def _route(self, path: str) -> None:
            route = routes.get(path)
            if route is None:
                known = ", ".join(routes)
                self._answer(404, "text/plain; charset=utf-8", f"nothing here; known: {known}\n")
                return
            self._answer(200, *route())

        def _answer(self, status: int, kind: str, text: str, more: Mapping[str, str] | None = None) -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.send_header("Referrer-Policy", "no-referrer")
            for name, value in (more or {}).items():
                self.send_header(name, value)
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
