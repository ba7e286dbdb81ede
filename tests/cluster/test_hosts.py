"""Hosts in namespaces do what is said of them, without Spark: who reaches whom, what is stopped, what is left."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from network import CGROUPS, Limits, Network, lacking, network
from spark_hosts import until

pytestmark = [pytest.mark.long, pytest.mark.skipif(lacking() is not None, reason=lacking() or "")]
SIZE = 4 * 2**20
SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "hosts"


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Network]:
    with network(("a", "b"), tmp_path, {"a": Limits(disk=SIZE)}) as made:
        yield made


LISTENING = "import socketserver as s; s.TCPServer(('', 7), s.BaseRequestHandler).serve_forever()"


def reaches(hosts: Network, one: str, other: str) -> bool:
    """Whether a connection is made."""
    ask = f"import socket; socket.create_connection(('{hosts.hosts[other].address}', 7), 0.5)"
    try:
        hosts.call(one, [sys.executable, "-c", ask])
    except subprocess.CalledProcessError:
        return False
    return True


def test_cables_are_cut_and_directions_dropped(pair: Network, tmp_path: Path) -> None:
    for name in ("a", "b"):
        pair.begin(name, [sys.executable, "-c", LISTENING], {}, tmp_path / name)
    until("the hosts listen", lambda: reaches(pair, "a", "b") and reaches(pair, "b", "a"))
    deaf, mute = (lambda: pair.drop("b", coming=100)), (lambda: pair.drop("b", going=100))
    for fault in (lambda: pair.cut("b"), deaf, mute, lambda: pair.part("b", ["a"])):
        fault()
        assert not reaches(pair, "a", "b") and not reaches(pair, "b", "a")
        pair.mend("b")
        assert reaches(pair, "a", "b")
    pair.part("b", ["b"])
    assert reaches(pair, "a", "b"), "others are meant"
    pair.mend("b")
    pair.drop("b", coming=30)
    counted = [reaches(pair, "a", "b") for _ in range(30)]
    assert any(counted) and not all(counted), "some packets are lost"
    pair.mend("b")
    pair.freeze("b")
    state = [Path(f"/proc/{each}/stat").read_text().split()[2] for each in pair.hosts["b"].processes()]
    assert state and set(state) == {"T"}
    pair.thaw("b")
    assert reaches(pair, "a", "b")
    pair.kill("b")
    assert not pair.hosts["b"].processes() and not reaches(pair, "a", "b")


def test_a_host_has_a_disk_and_a_name_of_its_own(pair: Network, tmp_path: Path) -> None:
    assert pair.call("a", ["hostname"]) == "a\n"
    assert pair.call("a", ["getent", "hosts", "b"]).split() == [pair.hosts["b"].address, "b"]
    pair.fill("a")
    with pytest.raises(subprocess.CalledProcessError, match="status 1"):
        pair.call("a", ["sh", "-c", "echo more > /tmp/more"])
    pair.call("b", ["sh", "-c", "echo more > /tmp/more"])
    pair.empty("a")
    pair.call("a", ["mkdir", "-p", "/tmp/x/holdfast-nodes-1", "/dev/shm/holdfast-2"])
    assert pair.left("a") == ["dev/shm/holdfast-2", "tmp/x/holdfast-nodes-1"] and not pair.left("b")
    assert (tmp_path / "seen").write_text("by all") and pair.call("b", ["cat", str(tmp_path / "seen")]) == "by all"


def test_nothing_remains_of_hosts_that_end_in_any_state(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), network(("a", "b"), tmp_path, {}) as made:
        hosts = list(made.hosts.values())
        process = made.begin("a", ["sleep", "1000"], {}, tmp_path / "log")
        until("it runs", hosts[1].processes)
        made.freeze("a")
        made.cut("b")
        raise KeyboardInterrupt
    assert process.wait(10) != 0
    assert not any(each.alive() or each.processes() for each in hosts)
    assert not list(CGROUPS.glob(f"*/holdfast-{os.getpid()}-*"))


def test_hosts_die_with_who_made_them(tmp_path: Path) -> None:
    program = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from network import Network
made = Network.up(["a"], Path({str(tmp_path)!r}), {{}})
made.begin("a", ["sleep", "1000"], {{}}, Path({str(tmp_path / "log")!r}))
made.save(Path({str(tmp_path / "hosts.json")!r}))
os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", program], check=False)
    hosts = Network.load(tmp_path / "hosts.json")
    until("they are gone", lambda: not any(each.alive() for each in hosts.hosts.values()))
    hosts.down()


def test_what_is_not_there_is_told_in_one_line() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "cut", "w9"], capture_output=True, text=True, check=False,
                          env={**os.environ, "HOLDFAST_HOSTS": os.devnull})  # fmt: skip
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr
