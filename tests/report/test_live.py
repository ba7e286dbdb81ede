"""The live page's server: what it serves, to whom, and what it refuses."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest
from histories import half_lost, written

from holdfast.errors import Invalid
from holdfast.report.live import LivePage, LiveServer


@pytest.fixture
def live(tmp_path: Path) -> Iterator[tuple[LivePage, LiveServer]]:
    shown = LivePage(tmp_path, "word-count")
    with LiveServer(shown.routes) as server:
        yield shown, server


def fetched(server: LiveServer, path: str, host: str | None = None) -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request("GET", path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


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
