"""Hosts on one machine: Linux namespaces joined by a bridge, and what can go wrong between them.

A host has an address, a name, processes, a temporary folder of limited size and, where cgroups can be made, limits of
memory and cores of its own. It is held by one process, the first of its process namespace: when that is killed
everything on the host is killed, and cable, mounts and folders go with it. Nothing is named for the whole machine but
the cgroups, and no packet leaves: the bridge is in a namespace too.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

NET = "10.78.0"
COMMANDS = {"ip": "iproute2", "nft": "nftables", "unshare": "util-linux", "nsenter": "util-linux",
            "setpriv": "util-linux"}  # fmt: skip
SPACES = ["unshare", "--net", "--mount", "--uts", "--ipc", "--pid", "--propagation", "private", "--fork"]
CGROUPS = Path("/sys/fs/cgroup")
SWITCH = "switch"
PROJECT = Path(__file__).resolve().parents[2]
PATIENCE = 10.0
FILLER = "filler"
HOSTS = "etc-hosts"

RULES = """
table inet faults {
  chain in {
    type filter hook input priority 0
    iifname "eth0" %s
  }
  chain out {
    type filter hook output priority 0
    oifname "eth0" %s
  }
}
"""


class NoHosts(Exception):
    """Hosts cannot be had here, in one line."""


@cache
def lacking() -> str | None:
    """Why hosts cannot be had here, in a line; None if they can."""
    if os.geteuid() != 0:
        return "hosts in namespaces need root"
    for command, package in COMMANDS.items():
        if shutil.which(command) is None:
            return f"hosts in namespaces need the command {command} (Debian: {package})"
    tried = subprocess.run([*SPACES, "true"], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        return f"namespaces are not allowed here: {tried.stderr.strip()}"
    return None


@dataclass(frozen=True, slots=True)
class Limits:
    """``disk``: bytes of the temporary folder. ``memory`` (bytes) and ``cores`` hold where cgroups can be made."""

    disk: int = 512 * 2**20
    memory: int = 3 * 2**30
    cores: float = 2.0


@dataclass(frozen=True, slots=True)
class Host:
    """``outer`` is the process that made the namespaces, ``first`` the first in them, as this machine numbers them."""

    name: str
    address: str
    outer: int
    first: int
    space: str
    cgroups: tuple[str, ...] = ()

    @property
    def root(self) -> Path:
        """The host's files, as seen from here."""
        return Path(f"/proc/{self.first}/root")

    def alive(self) -> bool:
        """Whether the process is still the one that was begun, not another of the same number."""
        return _space(self.first) == self.space

    def processes(self) -> list[int]:
        """All but the first, as this machine numbers them, and without those that have ended."""
        found = [int(each.name) for each in Path("/proc").iterdir() if each.name.isdecimal()]
        return [each for each in found if each != self.first and _space(each) == self.space and _state(each) != "Z"]

    def entrances(self) -> list[int]:
        """The processes outside that wait for one on the host: they stop with it, and do not go on by themselves."""
        parents = {int(_stat(each)[1]) for each in self.processes()}
        return [each for each in parents if each > 1 and _space(each) != self.space]

    def inside(self, words: Sequence[str]) -> list[str]:
        """A command line that runs this on the host."""
        joined = "".join(f'echo $$ > "{each}/cgroup.procs"; ' for each in self.cgroups)
        return ["bash", "-ec", f'{joined}exec nsenter -t {self.first} --all "$@"', "--", *words]


@dataclass
class Network:
    """Hosts by name. ``up`` makes one; a network that was written down can be had again from another process."""

    hosts: dict[str, Host]
    lasting: bool = False

    @classmethod
    def up(cls, names: Sequence[str], shared: Path, limits: Mapping[str, Limits], lasting: bool = False) -> Network:
        """Make the hosts. ``shared``: a folder that all of them see, under the same name, beside this project.

        Unless it is ``lasting`` everything ends with this process, however that ends.
        """
        why = lacking()
        if why is not None:
            raise NoHosts(why)
        made = cls({}, lasting)
        known = [f"{NET}.{10 + number} {name}" for number, name in enumerate(names)]
        (shared / HOSTS).write_text("\n".join(["127.0.0.1 localhost", *known, ""]))
        try:
            made._add(SWITCH, 0, shared, Limits(disk=2**20))
            made._ip(SWITCH, "link", "add", "br0", "type", "bridge")
            made._ip(SWITCH, "link", "set", "br0", "up")
            for number, name in enumerate(names):
                made._add(name, 10 + number, shared, limits.get(name, Limits()))
                peer = ["type", "veth", "peer", "name", "eth0", "netns", str(made.hosts[name].first)]
                made._ip(SWITCH, "link", "add", cable(name), *peer)
                made._ip(SWITCH, "link", "set", cable(name), "master", "br0", "up")
                made._ip(name, "addr", "add", f"{made.hosts[name].address}/24", "dev", "eth0")
                made._ip(name, "link", "set", "eth0", "up")
        except BaseException:
            made.down()
            raise
        return made

    def _add(self, name: str, number: int, shared: Path, limits: Limits) -> None:
        limited = _cgroups(name, limits) if name != SWITCH else ()
        seen = sorted({str(PROJECT), sys.prefix, str(shared)})
        script = [
            f"hostname {name}",
            f'mount --bind "{shared / HOSTS}" /etc/hosts; mount --bind /dev/null /etc/resolv.conf',
            "mount -t tmpfs -o size=1m tmpfs /mnt",  # what is shared is kept here while folders are covered
            *(f'mkdir -p "/mnt/hf{n}"; mount --bind "{each}" "/mnt/hf{n}"' for n, each in enumerate(seen)),
            f"mount -t tmpfs -o size={limits.disk},mode=1777 tmpfs /tmp",
            *(f"mount -t tmpfs -o size={limits.disk},mode=1777 tmpfs {each}" for each in ("/var/tmp", "/dev/shm")),
            *(
                f'mkdir -p "{each}"; mount --bind "/mnt/hf{n}" "{each}"'
                for n, each in enumerate(seen)
                if each.startswith("/tmp/")
            ),
            "ip link set lo up",
            "echo ready",
            "exec env --ignore-signal=CHLD sleep infinity",  # so that who is left without a parent leaves no trace
        ]
        words = [*self._tied(), *SPACES, "--kill-child", "--mount-proc", "bash", "-ec", "; ".join(script)]
        outer = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        assert outer.stdout is not None and outer.stderr is not None
        told = outer.stdout.readline()
        if told != b"ready\n":
            outer.kill()
            for each in limited:
                _removed(Path(each))
            raise NoHosts(f"host {name} cannot be made: {outer.stderr.read().decode(errors='replace').strip()}")
        (first,) = _children(outer.pid)
        self.hosts[name] = Host(name, f"{NET}.{number}", outer.pid, first, _space(first), limited)

    def _tied(self) -> list[str]:
        """Before a command: it dies with this process."""
        return [] if self.lasting else ["setpriv", "--pdeathsig", "KILL"]

    def down(self) -> None:
        """Everything on the hosts ends, and they go."""
        for host in self.hosts.values():
            if host.alive():
                entrances = host.entrances()
                _signalled([host.first], signal.SIGKILL)
                _signalled(entrances, signal.SIGCONT)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(host.outer, 0)
            for each in host.cgroups:
                _removed(Path(each))
        self.hosts.clear()

    def save(self, path: Path) -> None:
        path.write_text(json.dumps([asdict(each) for each in self.hosts.values()], indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Network:
        made = [Host(**{**each, "cgroups": tuple(each["cgroups"])}) for each in json.loads(path.read_text())]
        return cls({each.name: each for each in made}, lasting=True)

    # What runs there

    def begin(self, name: str, words: Sequence[str], env: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
        """A process on a host, in a process group of its own."""
        whole = [*self._tied(), *self.hosts[name].inside(words)]
        around, nothing = {**os.environ, **env}, subprocess.DEVNULL
        with log.open("ab") as out:
            return subprocess.Popen(whole, stdin=nothing, stdout=out, stderr=out, start_new_session=True, env=around)

    def call(self, name: str, words: Sequence[str], env: Mapping[str, str] | None = None, timeout: float = 60) -> str:
        """What a short command on a host prints."""
        return subprocess.run(
            self.hosts[name].inside(words), env={**os.environ, **(env or {})}, capture_output=True, text=True,
            timeout=timeout, check=True,
        ).stdout  # fmt: skip

    def begun(self, process: subprocess.Popen[bytes]) -> list[int]:
        """The process on the host behind one that ``begin`` gave, for signals: that one only waits for it."""
        return _children(process.pid)

    # What goes wrong

    def cut(self, name: str) -> None:
        self._ip(SWITCH, "link", "set", cable(name), "down")

    def drop(self, name: str, coming: int = 0, going: int = 0) -> None:
        """So many per cent of what comes to a host, and of what it sends, are lost."""
        words = {0: "accept", 100: "drop"}
        told = [words.get(share, f"numgen random mod 100 < {share} drop") for share in (coming, going)]
        self._in(name, "nft", "-f", "-", given=RULES % tuple(told))

    def part(self, name: str, others: Sequence[str]) -> None:
        """A host and these others no longer hear one another; everybody else hears all of them."""
        whom = "{ " + ", ".join(self.hosts[each].address for each in others) + " }"
        rules = RULES % (f"ip saddr {whom} drop", f"ip daddr {whom} drop")
        self._in(name, "nft", "-f", "-", given=rules)

    def mend(self, name: str) -> None:
        """Its cable is in place, and nothing is dropped."""
        self._ip(SWITCH, "link", "set", cable(name), "up")
        self._in(name, "nft", "flush", "ruleset")

    def freeze(self, name: str) -> None:
        """Every process of the host is stopped, also those that are begun meanwhile."""
        host, until = self.hosts[name], time.monotonic() + PATIENCE
        while running := [each for each in host.processes() if _state(each) not in "Tt"]:
            if time.monotonic() > until:
                raise NoHosts(f"host {name} does not stop: {running}")
            _signalled(running, signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        host = self.hosts[name]
        _signalled([*host.processes(), *host.entrances()], signal.SIGCONT)

    def kill(self, name: str) -> None:
        """Every process of the host is killed; its files stay, as on a disk."""
        host, until = self.hosts[name], time.monotonic() + PATIENCE
        entrances = host.entrances()
        while there := host.processes():
            if time.monotonic() > until:
                raise NoHosts(f"host {name} has processes that cannot be killed: {there}")
            _signalled(there, signal.SIGKILL)
            _signalled(entrances, signal.SIGCONT)

    def fill(self, name: str) -> None:
        """Its temporary folder is full to the last byte."""
        with contextlib.suppress(OSError), (self.hosts[name].root / "tmp" / FILLER).open("wb", buffering=0) as file:
            for size in (2**20, 4096, 1):
                with contextlib.suppress(OSError):
                    while file.write(bytes(size)):
                        pass

    def empty(self, name: str) -> None:
        (self.hosts[name].root / "tmp" / FILLER).unlink(missing_ok=True)

    def left(self, name: str, pattern: str = "holdfast-*") -> list[str]:
        """Files and folders of this name in the temporary folders of a host, but what it shares with others."""
        found: list[str] = []
        for folder in ("tmp", "var/tmp", "dev/shm"):
            top = self.hosts[name].root / folder
            device = top.stat().st_dev
            for at, folders, files in os.walk(top):
                here = Path(at)
                folders[:] = [each for each in folders if _device(here / each) == device]
                found += [str((here / each).relative_to(self.hosts[name].root)) for each in (*folders, *files)
                          if (here / each).match(pattern)]  # fmt: skip
        return sorted(found)

    def _ip(self, name: str, *words: str) -> None:
        self._in(name, "ip", *words)

    def _in(self, name: str, *words: str, given: str = "") -> None:
        """A command of this machine on a host's network: its own files and processes may be in any state."""
        done = subprocess.run(
            ["nsenter", "-t", str(self.hosts[name].first), "--net", *words], input=given, capture_output=True,
            text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise NoHosts(f"{' '.join(words)} on host {name}: {done.stderr.strip()}")


@contextlib.contextmanager
def network(names: Sequence[str], shared: Path, limits: Mapping[str, Limits]) -> Iterator[Network]:
    made = Network.up(names, shared, limits)
    try:
        yield made
    finally:
        made.down()


def cable(name: str) -> str:
    """The switch's end of it."""
    return f"p-{name}"


def _space(process: int) -> str:
    try:
        return str(Path(f"/proc/{process}/ns/pid").readlink())
    except OSError:
        return ""


def _stat(process: int) -> list[str]:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["Z", "0"]


def _state(process: int) -> str:
    return _stat(process)[0]


def _children(process: int) -> list[int]:
    found = (int(each.name) for each in Path("/proc").iterdir() if each.name.isdecimal())
    return [each for each in found if _stat(each)[1] == str(process)]


def _signalled(processes: Sequence[int], number: int) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


def _device(path: Path) -> int:
    try:
        return path.lstat().st_dev
    except OSError:
        return -1


def _cgroups(name: str, limits: Limits) -> tuple[str, ...]:
    """Of the first version, where they can be made; none elsewhere."""
    values = {
        "memory": {"memory.limit_in_bytes": limits.memory},
        "cpu": {"cpu.cfs_period_us": 100_000, "cpu.cfs_quota_us": int(limits.cores * 100_000)},
    }
    made = []
    for controller, settings in values.items():
        folder = CGROUPS / controller / f"holdfast-{os.getpid()}-{name}"
        if (CGROUPS / controller / "cgroup.procs").exists():
            with contextlib.suppress(OSError):
                folder.mkdir(exist_ok=True)
                made.append(str(folder))
                for setting, value in settings.items():
                    (folder / setting).write_text(str(value))
    return tuple(made)


def _removed(folder: Path) -> None:
    """Once the last process has left it."""
    until = time.monotonic() + PATIENCE
    while folder.exists():
        try:
            folder.rmdir()
        except OSError:
            if time.monotonic() > until:
                return
            time.sleep(0.02)
