"""``holdfast doctor``: what a machine has and lacks for running jobs. It starts nothing but ``java -version``."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from holdfast.cli.output import Format, FormatOption, answer

JAVA = 17
"""The oldest that Spark 4 takes."""
MEMORY = 4
"""GiB for a driver and two small executors; the demo's four want twice as much."""
DISK = 2


@dataclass(frozen=True, slots=True)
class Finding:
    """``status``: ok, warning (some things will not work) or missing (jobs will not run). ``advice``: what to do."""

    check: str
    status: str
    found: str
    advice: str = ""


def doctor(
    store: Annotated[Path | None, typer.Option(help="folder that jobs will write to; a temporary one if none")] = None,
    form: FormatOption = Format.text,
) -> None:
    """What this machine has and lacks for running jobs.

    Each line is ok, or says what to do. Exit code 1 if something is missing without which no job runs.

    Examples:
    holdfast doctor;
    holdfast doctor --store /data/jobs
    """
    findings = [
        python_version(sys.version_info[:3]),
        java(_java_output()),
        *(package(name) for name in ("pyspark", "pyarrow", "polars", "numpy", "scipy")),
        memory(_available()),
        processors(os.cpu_count() or 1),
        loopback(),
        unix_sockets(),
        executors(),
        writable(store),
        disk(store),
    ]
    ready = all(each.status != "missing" for each in findings)
    content: dict[str, Any] = {"ready": ready, "checks": [asdict(each) for each in findings]}
    answer(content, form, lambda console: _read(console, findings, ready))
    if not ready:
        raise typer.Exit(1)


def python_version(version: tuple[int, ...]) -> Finding:
    found = ".".join(map(str, version))
    if tuple(version[:2]) >= (3, 11):
        return Finding("Python", "ok", found)
    return Finding("Python", "missing", found, "install Python 3.11 or newer")


def java(output: str | None) -> Finding:
    """From what ``java -version`` said; None: there is none."""
    install = "sudo apt-get install openjdk-17-jre-headless, or set JAVA_HOME to one that is there"
    if output is None:
        return Finding("Java", "missing", "none on PATH, and JAVA_HOME is not set", f"install Java {JAVA}: {install}")
    match = re.search(r'version "(\d+)(?:\.(\d+))?', output)
    if match is None:
        return Finding(
            "Java", "warning", f"version unknown: {output.strip()[:60]}", f"Spark needs Java {JAVA} or newer"
        )
    major = int(match[2] or 0) if match[1] == "1" else int(match[1])
    if major >= JAVA:
        return Finding("Java", "ok", f"version {major}")
    return Finding("Java", "missing", f"version {major}", f"Spark needs Java {JAVA} or newer: {install}")


def package(name: str) -> Finding:
    if find_spec(name) is None:
        return Finding(name, "missing", "not installed", f"pip install {name}, in the environment of holdfast")
    found = metadata.version(name)
    if name == "pyspark" and int(found.partition(".")[0]) < 4:
        return Finding(name, "missing", found, "pip install 'pyspark>=4.1,<5'")
    return Finding(name, "ok", found)


def memory(gib: float | None) -> Finding:
    if gib is None:
        return Finding("memory", "warning", "cannot be told here", f"jobs want {MEMORY} GiB or more")
    found = f"{gib:.1f} GiB free"
    if gib >= 2 * MEMORY:
        return Finding("memory", "ok", found)
    if gib >= MEMORY:
        return Finding(
            "memory", "warning", found, "little for four executors; use --master local[2], or demo --logical"
        )
    advice = "little for Spark; close other programs, or lower --memory of holdfast run to 1g"
    return Finding("memory", "warning", found, advice)


def processors(count: int) -> Finding:
    if count >= 2:
        return Finding("processors", "ok", str(count))
    return Finding(
        "processors", "warning", str(count), "everything works, but an epoch takes long; 2 or more are better"
    )


def loopback() -> Finding:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname(), 2):
            return Finding("loopback", "ok", "127.0.0.1 can be listened on and connected to")
    except OSError as error:
        advice = "Spark talks to itself over loopback: allow it in the sandbox or firewall, or ip link set lo up"
        return Finding("loopback", "missing", error.strerror or str(error), advice)


def unix_sockets() -> Finding:
    advice = "set spark.python.unix.domain.socket.enabled=false in your own session; Python tasks then cost more"
    if not hasattr(socket, "AF_UNIX"):
        return Finding("unix sockets", "warning", "not on this system", advice)
    try:
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as server:
            server.bind(str(Path(folder) / "probe"))
    except OSError as error:
        return Finding("unix sockets", "warning", error.strerror or str(error), advice)
    return Finding("unix sockets", "ok", "can be made in the temporary folder")


def executors() -> Finding:
    if Path("/proc/self/cmdline").exists():
        return Finding("executors", "ok", "processes can be seen in /proc, so faults can kill local executors")
    advice = "faults and the demo use logical nodes instead (--master local[*] --nodes 4)"
    return Finding("executors", "warning", "no /proc", advice)


def writable(store: Path | None) -> Finding:
    """Whether a file can be put in place where jobs will write, as the store does it."""
    folder = _existing(store)
    name = str(store) if store is not None else f"{folder} (temporary)"
    try:
        with tempfile.TemporaryDirectory(prefix=".holdfast-doctor-", dir=folder) as trial:
            (Path(trial) / "part").write_bytes(b"x")
            (Path(trial) / "part").replace(Path(trial) / "whole")
    except OSError as error:
        advice = "choose another folder (--out, --store), or make this one writable"
        return Finding("store", "missing", f"{name}: {error.strerror or error}", advice)
    return Finding("store", "ok", f"{name} can be written")


def disk(store: Path | None) -> Finding:
    free = shutil.disk_usage(_existing(store)).free / 2**30
    if free >= DISK:
        return Finding("disk", "ok", f"{free:.1f} GiB free")
    return Finding("disk", "warning", f"{free:.1f} GiB free", f"journal and checkpoints want room: {DISK} GiB or more")


def _existing(store: Path | None) -> Path:
    """The folder, or the nearest one above it that is there."""
    folder = (store if store is not None else Path(tempfile.gettempdir())).absolute()
    return next(each for each in (folder, *folder.parents) if each.exists())


def _java_output() -> str | None:
    home = os.environ.get("JAVA_HOME")
    command = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if command is None or not Path(command).exists():
        return None
    try:
        done = subprocess.run([command, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stderr or done.stdout


def _available() -> float | None:
    """GiB of memory that new programs can have, within the limit of a container if there is one."""
    found = []
    sources: list[tuple[str, Callable[[str], float]]] = [
        ("/proc/meminfo", lambda text: int(re.findall(r"MemAvailable:\s+(\d+)", text)[0]) / 2**20),
        ("/sys/fs/cgroup/memory.max", lambda text: int(text) / 2**30),
    ]
    for name, read in sources:
        try:
            found.append(read(Path(name).read_text(encoding="utf-8")))
        except (OSError, ValueError, IndexError):
            continue  # another system, or no limit
    return min(found, default=None)


def _read(console: Console, findings: list[Finding], ready: bool) -> None:
    styles = {"ok": "green", "warning": "yellow", "missing": "bold red"}
    for each in findings:
        line = Text(f"{each.status:<8}", style=styles[each.status])
        line.append(f"{each.check:<13} {each.found}", style="default")
        console.print(line, highlight=False, soft_wrap=True)
        if each.advice:
            console.print(Text(f"{'':8}{'':13} -> {each.advice}"), highlight=False, soft_wrap=True)
    verdict = "ready to run jobs" if ready else "jobs will not run here until what is missing is there"
    console.print(verdict, style="bold", highlight=False)
