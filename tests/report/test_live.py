"""The live page's server: what it serves, to whom, and what it refuses."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

import pytest
from histories import half_lost, written

from holdfast.errors import Invalid
from holdfast.report.live import LivePage, LiveServer, made_token
from waiting import DEADLINE


@pytest.fixture
def live(tmp_path: Path) -> Iterator[tuple[LivePage, LiveServer]]:
    shown = LivePage(tmp_path, "word-count")
    with LiveServer(shown.routes) as server:
        yield shown, server


def asked(server: LiveServer, path: str, **headers: str) -> HTTPResponse:
    connection = HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    answer.text = answer.read().decode()  # type: ignore[attr-defined]
    connection.close()
    return answer


def fetched(server: LiveServer, path: str, host: str | None = None, **headers: str) -> tuple[int, str]:
    answer = asked(server, path, **({"Host": host} if host else {}), **headers)
    return answer.status, answer.text  # type: ignore[attr-defined]


def test_the_page_follows_what_is_heard(live: tuple[LivePage, LiveServer]) -> None:
    shown, server = live
    assert server.url == f"http://127.0.0.1:{server.port}/"
    status, text = fetched(server, "/")
    assert status == 200 and '<script id="data" type="application/json">null</script>' in text
    assert fetched(server, "/data.json") == (200, "null")
    for event in half_lost():
        shown.heard(event)
    data = json.loads(fetched(server, "/data.json")[1])
    assert len(data["epochs"]) == 5 and not data["running"]


def test_earlier_sittings_are_part_of_it(tmp_path: Path) -> None:
    written(tmp_path, half_lost())
    shown = LivePage(tmp_path, "word-count")
    for event in half_lost(5000.0)[:6]:
        shown.heard(event)
    told = json.loads(shown.routes["/data.json"]()[1])
    assert told["sittings"] == 2 and told["running"]


def test_nothing_but_its_own_pages(live: tuple[LivePage, LiveServer]) -> None:
    _, server = live
    assert fetched(server, "/etc/passwd")[0] == 404
    assert fetched(server, "/../history.jsonl")[0] == 404


def test_a_foreign_name_that_points_here_is_refused(live: tuple[LivePage, LiveServer]) -> None:
    _, server = live
    assert fetched(server, "/data.json", "evil.example")[0] == 403
    assert fetched(server, "/data.json", f"localhost:{server.port}")[0] == 200
    assert fetched(server, "/data.json", "[::1]:80")[0] == 200


def test_a_port_that_is_taken_or_none_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            Invalid, match=f"--metrics: port {port} of 127.0.0.1 cannot be used: .*; 0 takes a free one"
        ):
            LiveServer({}, port, option="--metrics")
    with pytest.raises(Invalid, match="a port is from 0"):
        LiveServer({}, 70_000)


TOKEN = "correct-horse-battery"


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[LiveServer]:
    with LiveServer(LivePage(tmp_path, "word-count").routes, token=TOKEN) as server:
        yield server


def test_others_are_let_in_with_a_token_alone() -> None:
    with pytest.raises(Invalid, match=r"^--metrics-host 0.0.0.0: others reach that address; give --token new"):
        LiveServer({}, host="0.0.0.0", option="--metrics")
    with pytest.raises(Invalid, match="at least 16 letters and digits"):
        LiveServer({}, host="0.0.0.0", token="secret")
    made = made_token("new")
    assert made is not None and len(made) >= 32 and made != made_token("new")
    assert made_token(TOKEN) == TOKEN and made_token(None) is None


def test_a_scraper_shows_the_token_in_a_header(guarded: LiveServer) -> None:
    for path in ("/", "/data.json", "/nothing"):
        assert fetched(guarded, path)[0] == 401
    for wrong in ("Bearer", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}", "Bearer \xff"):
        assert fetched(guarded, "/data.json", Authorization=wrong)[0] == 401
    assert fetched(guarded, "/data.json", Authorization=f"Bearer {TOKEN}") == (200, "null")
    assert asked(guarded, "/").getheader("WWW-Authenticate") == "Bearer"


def test_a_browser_gives_the_token_once_and_keeps_something_else(guarded: LiveServer) -> None:
    assert fetched(guarded, "/?token=wrong-horse-battery")[0] == 401
    answer = asked(guarded, f"/?token={TOKEN}")
    assert (answer.status, answer.getheader("Location")) == (303, "/")
    cookie = answer.getheader("Set-Cookie", "")
    assert "HttpOnly" in cookie and TOKEN not in cookie
    kept = cookie.partition(";")[0]
    assert fetched(guarded, "/data.json", Cookie=kept)[0] == 200
    assert fetched(guarded, "/data.json", Cookie=kept[:-1])[0] == 401
    assert fetched(guarded, "/data.json", Cookie=f"holdfast={TOKEN}")[0] == 401
    assert fetched(guarded, "/?token=wrong-horse-battery", Cookie=kept)[0] == 401
    # Whoever sends somewhere else by a path of two slashes does not.
    assert asked(guarded, f"//elsewhere.example/?token={TOKEN}").getheader("Location") == "/"
