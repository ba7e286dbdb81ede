"""Fencing: one writer to a store. Each takes the next token; commits of an older one fail, or are ignored for good.

A claim is a file created exclusively. After claiming, the new writer lists what it found committed; whatever an older
writer puts in place later is not on that list and does not exist for any reader (docs/store-layout.md has the proof).
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from holdfast.errors import HoldfastError
from holdfast.state.entries import Damaged, document, read_document
from holdfast.state.files import Files, Unusable, exists

FOLDER = "fence"
CLAIMS_KEPT = 100
"""So many older claims stay: from any of them that a listing has, the newest is found by name."""
LEASE = 30.0
"""Seconds without a sign of life after which another writer may take over, unless a writer says otherwise."""
FRESH = 0.2
"""Seconds for which one look at the fence counts before user code is called, of a store behind a URL."""
_CLAIM = re.compile(r"(\d{10})\.json")


class Held(HoldfastError):
    """Another writer holds the store. Exit code 1."""


class Fenced(HoldfastError):
    """A newer writer has taken the store over; this one can commit nothing more. Exit code 1."""


def is_running(process: str) -> bool:
    """Whether a process of this machine, as ``Identity.here`` names it, is still there."""
    number = process.partition("@")[0]
    return number.isdecimal() and _process(int(number)) == process


def unique_id() -> str:
    return uuid4().hex


@dataclass(frozen=True, slots=True)
class Identity:
    """Who claims a store: a machine since its boot, and a process of it.

    ``alive``: whether a process of the same machine still runs; what it held is free at once if it does not.
    ``unique``: ids that nobody else has.
    """

    host: str
    process: str
    alive: Callable[[str], bool] = is_running
    unique: Callable[[], str] = unique_id

    @classmethod
    def here(cls, number: int | None = None) -> Identity:
        """This process on this machine, or the one of this number."""
        return cls(_host(), _process(os.getpid() if number is None else number))


@dataclass(frozen=True, slots=True)
class Claim:
    """Who took the store, and with which token. ``id``: of this claim, so that no two are the same bytes.

    ``keep``: so many checkpoints it retains; 0 where nobody said. ``at``: when it was made, the first sign of life.
    """

    token: int
    owner: str
    host: str
    process: str
    lease: float
    id: str
    keep: int = 0
    at: float = 0.0


def newest_token(files: Files) -> int:
    """The highest token ever claimed; 0 for none. Those that a listing does not have yet are asked for by name."""
    newest = max(_tokens(files), default=0)
    while exists(files, _claim_name(newest + 1)):
        newest += 1
    return newest


def check(files: Files, token: int) -> None:
    """Fenced if a newer writer has claimed the store. Asked by name alone: two requests, and no listing.

    The next claim first, then our own: who takes over deletes older claims in their order, so whoever finds its own
    there and had not found the next one before was the newest when it asked.
    """
    if not exists(files, _claim_name(token + 1)) and exists(files, _claim_name(token)):
        return
    if (newest := newest_token(files)) <= token:
        raise Unusable(f"store {files.url}: vanished while it was in use: the claim of writer {token} is gone")
    raise Fenced(f"store {files.url}: writer {token} was superseded by writer {newest}; it can commit nothing more")


class Guard:
    """Looks at the fence before user code is called. ``now``: seconds of a clock that does not stop with the process.

    In a folder it looks before every call. Behind a URL a look is two requests, so one counts for ``FRESH`` seconds, if
    the first half of a lease that was renewed lasts as long: until then no other writer can have come but by force.
    """

    def __init__(self, files: Files, token: int, lease: float, renewed: float, now: Callable[[], float]) -> None:
        self._files = files
        self._token = token
        self._half = lease / 2
        self._renewed: float | None = renewed
        self._looked = float("-inf")
        self._now = now

    def renewed(self, at: float) -> None:
        """The lease was renewed, by a request sent at that time or later."""
        self._renewed = at

    def released(self) -> None:
        self._renewed = None

    def look(self) -> None:
        """Fenced if a newer writer has come."""
        now, renewed = self._now(), self._renewed
        held = renewed is not None and now < renewed + self._half
        if self._files.far and held and now < self._looked + FRESH:
            return
        check(self._files, self._token)
        self._looked = now


def running_time() -> float:
    """Seconds, also of those for which this process was stopped or the machine asleep."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot is None else time.clock_gettime(boot)


def _tokens(files: Files) -> set[int]:
    """Of all writers of whom anything is there."""
    return {int(name[:10]) for name in files.list(FOLDER) if name[:10].isdecimal()}


def _claim_name(token: int) -> str:
    return f"{FOLDER}/{token:010d}.json"


def claim(files: Files, owner: str, lease: float, force: bool, now: float, identity: Identity, keep: int = 0) -> Claim:
    """The next token, or Held if a live writer has the store and ``force`` is not set."""
    newest = newest_token(files)
    if newest and not force:
        _refuse_if_held(files, newest, now, identity)
    mine = Claim(newest + 1, owner, identity.host, identity.process, lease, identity.unique(), keep, now)
    try:
        files.create(_claim_name(mine.token), document(files, "claim", asdict(mine)), sync=True)
    except FileExistsError:
        raise Held(f"store {files.url}: another writer took it at this very moment") from None
    beat(files, mine.token, now)
    return mine


def inherit(files: Files, token: int, found: Mapping[str, list[str]]) -> None:
    """Put down what was committed when this writer came: nothing else of older writers counts from now on."""
    files.put(f"{FOLDER}/{token:010d}.found.json", document(files, "found", {"token": token, **found}), sync=True)


def forget_older(files: Files, token: int) -> None:
    """What older writers said goes, and claims of long ago; those in their order, see ``check``."""
    old = [name for name in files.list(FOLDER) if name[:10].isdecimal() and int(name[:10]) < token]
    for name in sorted(name for name in old if _CLAIM.fullmatch(name) and int(name[:10]) < token - CLAIMS_KEPT):
        files.delete(f"{FOLDER}/{name}")
    if rest := [f"{FOLDER}/{name}" for name in old if not _CLAIM.fullmatch(name)]:
        files.delete_many(rest)


def kept_by(files: Files, token: int) -> int | None:
    """How many checkpoints that writer retains; None if it did not say."""
    try:
        return int(read_document(files, "claim", _claim_name(token)).get("keep", 0)) or None
    except Damaged:
        return None


def inherited(files: Files, before: int | None = None) -> tuple[int, dict[str, Any] | None]:
    """The newest writer (before token ``before``) that put down what it found, and what that was.

    Documents of its token and later ones count, and those of older ones that it found. A writer that died between its
    claim and its list changes nothing; where nobody has a list (None), everything counts.
    """
    tokens = sorted((token for token in _tokens(files) if before is None or token < before), reverse=True)
    for token in tokens:
        if (found := _found(files, token)) is not None:
            return token, found
    return max(tokens, default=0), None


def _found(files: Files, token: int) -> dict[str, Any] | None:
    try:
        return read_document(files, "found", f"{FOLDER}/{token:010d}.found.json")
    except Damaged:
        return None


def beat(files: Files, token: int, now: float, released: bool = False) -> None:
    """A sign of life. It needs no fsync: after a machine's crash there is no life."""
    files.put(
        f"{FOLDER}/{token:010d}.beat",
        document(files, "beat", {"token": token, "at": now, "released": released}),
        sync=False,
    )


def held(files: Files, now: float, identity: Identity | None = None) -> bool:
    """Whether a live writer has the store."""
    try:
        _refuse_if_held(files, newest_token(files), now, identity or Identity.here())
    except Held:
        return True
    return False


def _refuse_if_held(files: Files, token: int, now: float, identity: Identity) -> None:
    try:
        body = read_document(files, "claim", _claim_name(token))
    except Damaged:
        return
    try:
        last = read_document(files, "beat", f"{FOLDER}/{token:010d}.beat")
    except Damaged:
        last = {"at": body.get("at", 0.0), "released": False}  # it has just come, and has not beaten yet
    if last["released"] or now - last["at"] > body["lease"]:
        return
    if body["host"] == identity.host and not identity.alive(body["process"]):
        return
    raise Held(
        f"store {files.url}: held by {body['owner']} (process {body['process'].partition('@')[0]}), last heard "
        f"{max(now - last['at'], 0):.0f} s ago; stop it, wait until {body['lease']:.0f} s have passed, or take over "
        "with --force (force=True)"
    )


def _host() -> str:
    """This machine since its last boot; in a container, the container, whose process numbers are its own."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        space = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        boot = space = ""
    return f"{socket.gethostname()}@{boot}@{space}"


def _process(pid: int) -> str:
    """A process by its number and start, so that a number used again is not taken for the same process."""
    try:
        return f"{pid}@{Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[19]}"
    except (OSError, IndexError):
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except OSError:
        pass
    return f"{pid}@"
