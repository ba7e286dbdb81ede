"""What a manifest says of a file, and the JSON documents of a store with their checksums. Plain data, any process."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from holdfast.errors import Invalid, Unrecoverable
from holdfast.state.files import Files
from holdfast.state.forms import misfit
from holdfast.state.names import is_inside

LAYOUT = 1
"""The version of the store's layout, in every document (docs/store-layout.md)."""


STORE = "store"
HEADER = "holdfast-store.json"
"""The document that makes a folder a store."""
SPARK_LOG = "spark-log.json"
"""Which streaming query the store is of."""
FOLDERS = ("fence", "checkpoints", "journal/commits", "shape", "signature", "cursor")
"""Folders of documents from which a lost header gets its id back."""
_CHECKSUM = b', "checksum": "'
_NUMBERED = re.compile(r"\d{10}-\d{10}\.json")


class Damaged(Unrecoverable):
    """A file of the store is torn, truncated, altered, swapped or missing; the message names it."""


class AnotherStore(Invalid):
    """A file belongs to another store; the message names it and says what to do."""


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a file, and its own checksum."""

    at: int
    bytes: int
    checksum: str


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file: where it is, what is in it, and the checksum that proves it. ``since`` None: a whole table.

    ``pages``: where the directory of its pages is, of a file that has one (pages.py).
    """

    path: str
    bytes: int
    checksum: str
    rows: int
    table: str = ""
    epoch: int = 0
    since: int | None = None
    pages: Span | None = None

    def __post_init__(self) -> None:
        if not is_inside(self.path):
            raise Damaged(f"{self.path!r:.100} is no name of a file in a store")

    def to_json(self) -> dict[str, Any]:
        told = {name: getattr(self, name) for name in self.__slots__ if name != "pages"}
        return told if self.pages is None else {**told, "pages": asdict(self.pages)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> FileEntry:
        try:
            pages = content.get("pages")
            return cls(**{**content, "pages": None if pages is None else Span(**pages)})
        except TypeError as error:
            raise Invalid(f"file entry: {error}") from error


def checksum(data: bytes | pa.Buffer) -> str:
    """SHA-256, the first 128 bits of it, in hex."""
    return hashlib.sha256(data).hexdigest()[:32]


def read_checked(files: Files, entry: FileEntry) -> pa.Buffer:
    """The file that ``entry`` describes, or Damaged with what is wrong with it."""
    try:
        data = files.read(entry.path)
    except FileNotFoundError:
        raise Damaged(f"{entry.path} is missing") from None
    if data.size != entry.bytes:
        raise Damaged(f"{entry.path} has {data.size} bytes, {entry.bytes} were written")
    if checksum(data) != entry.checksum:
        raise Damaged(f"{entry.path} was altered: its checksum is not the one in the manifest")
    return data


def store_id(files: Files) -> str | None:
    """The id of the store whose files these are; None if its header is missing or damaged."""
    if files.store_id is None:
        with contextlib.suppress(Damaged):
            files.store_id = str(read_document(files, STORE, HEADER)["id"])
    return files.store_id


def document(files: Files, kind: str, content: Mapping[str, Any]) -> bytes:
    """A JSON document of a store, with the store's id and its own checksum."""
    body = {"format": f"holdfast-{kind}", "layout": LAYOUT, **content}
    if kind != STORE and (own := store_id(files)) is not None:
        body["store"] = own
    try:
        plain = _canonical(body)
        _check_text(body, plain)
    except (TypeError, ValueError) as error:
        raise Invalid(f"{kind}: only JSON can be stored, without NaN or infinity: {error}") from error
    # Written once: one line, the checksum of all before it at its end.
    return b'%b%b%b"}' % (plain[:-1], _CHECKSUM, checksum(plain).encode())


def read_document(files: Files, kind: str, name: str) -> dict[str, Any]:
    """The document of that name, or Damaged; AnotherStore if it says that it is of another one."""
    body = parse_document(files.url, kind, name, read_bytes(files, name))
    check_store(files, name, body.get("store"))
    return body


def numbered(kind: str, token: int, number: int) -> str:
    """The name of a document of which the newest counts; what a superseded writer puts in place later is not it."""
    return f"{kind}/{token:010d}-{number:010d}.json"


def numbered_names(files: Files, kind: str) -> list[str]:
    """The documents of this kind that there are, oldest first."""
    return sorted(f"{kind}/{name}" for name in files.list(kind) if _NUMBERED.fullmatch(name))


def read_numbered(files: Files, kind: str, name: str) -> dict[str, Any]:
    """The document of that name, or Damaged, also if it is another's."""
    body = read_document(files, kind, name)
    if name != numbered(kind, body["token"], body["number"]):
        raise Damaged(f"{name} is of writer {body['token']}: files were swapped")
    return body


def read_bytes(files: Files, name: str) -> bytes:
    try:
        return bytes(files.read(name))
    except FileNotFoundError:
        raise Damaged(f"{name} is missing") from None


def parse_document(url: str, kind: str, name: str, data: bytes) -> dict[str, Any]:
    """What the bytes of a document say, or Damaged. ``check_store`` checks the store's id."""
    if (body := _whole(data)) is None:
        raise Damaged(f"{name} is torn or was altered")
    if body.get("layout") != LAYOUT:
        raise Invalid(f"{url}: {name} has layout {body.get('layout')}, this Holdfast reads layout {LAYOUT}")
    if body.get("format") != f"holdfast-{kind}":
        raise Damaged(f"{name} is a {body.get('format')}, not a holdfast-{kind}: files were swapped")
    if (why := misfit(kind, body)) is not None:
        raise Damaged(f"{name} is no {kind} of Holdfast: {why}")
    return body


def check_store(files: Files, name: str, said: str | None) -> None:
    """AnotherStore if a file has the id of another store. Files from before there were ids have none and pass."""
    if said is None or said == store_id(files):
        return
    files.store_id = None  # the store may have been replaced since its id was read
    if (own := store_id(files)) is None or said == own:
        return
    raise AnotherStore(
        f"store {files.url}: {name} is of another store (id {said}), this one has id {own}: put this store's own "
        f"{name.partition('/')[0]} back, or its own {HEADER} if that was exchanged"
    )


def header(files: Files, unique: Callable[[], str]) -> bytes:
    """The document that makes a folder a store, with the id that the store's documents have, or a new one.

    Invalid if the documents have several ids.
    """
    ids: dict[str, str] = {}
    for folder in FOLDERS:
        for name in files.list(folder):
            if (said := _said_id(files, f"{folder}/{name}")) is not None:
                ids.setdefault(said, f"{folder}/{name}")
    if len(ids) > 1:
        told = ", ".join(f"{name} of {said}" for said, name in ids.items())
        raise Invalid(
            f"store {files.url}: {HEADER} is missing or damaged, and the documents are of several stores ({told}): put "
            "the files of one store back"
        )
    return document(files, STORE, {"id": next(iter(ids), None) or unique()})


def _said_id(files: Files, name: str) -> str | None:
    """The id in a document; None if it has none, or is not whole."""
    body = None
    if name.endswith((".json", ".beat")):
        with contextlib.suppress(Damaged):
            body = _whole(read_bytes(files, name))
    said = None if body is None else body.get("store")
    return said if isinstance(said, str) else None


def _whole(data: bytes) -> dict[str, Any] | None:
    """What a document says; None if its checksum is not that of the rest."""
    try:
        body = json.loads(data)
        _check_text(body, data)
        found = body.pop("checksum")
        # As it was written, the checksum stands at its end, behind what it is of; what was written otherwise is put so.
        plain, _, tail = data.rpartition(_CHECKSUM)
        as_written = tail == b'%b"}' % found.encode() and checksum(plain + b"}") == found
        whole = as_written or checksum(_canonical(body)) == found
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return None
    return dict(body) if whole else None


def _check_text(body: Any, data: bytes) -> None:
    """ValueError if text is no Unicode: half of a pair, which JSON can say, but no file's name and no screen."""
    if b"\\u" in data:
        json.dumps(body, ensure_ascii=False).encode()


def _canonical(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
