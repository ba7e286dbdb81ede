"""Ways to change a file of a store: damage, which the checksums must show, and forgery, with checksums that are right.

Which way is drawn from a seed; the file's own kind says which ways there are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from holdfast.runtime.history.history import NAME
from holdfast.state.entries import checksum

Files = dict[str, bytes]


@dataclass(frozen=True)
class Change:
    """Files that are not what was written any more. ``forged``: with checksums that are right."""

    told: str
    files: Files
    forged: bool = False


def _swapped(name: str, random: Random, files: Files) -> Files:
    alike = [other for other in files if other != name and other.rpartition(".")[2] == name.rpartition(".")[2]]
    other = random.choice(alike or [each for each in files if each != name])
    return {name: files[other], other: files[name]}


def _raw(name: str, random: Random, files: Files) -> tuple[str, Files]:
    data = files[name]
    at = random.randrange(len(data)) if data else 0
    kind = random.choice(
        ("cut", "flip", "bytes", "zeros", "insert", "repeat", "empty", "noise", "swap", "nest", "huge")
    )
    match kind:
        case "cut":
            changed = data[:at]
        case "flip":
            changed = data[:at] + bytes([(data[at] if data else 0) ^ (1 << random.randrange(8))]) + data[at + 1 :]
        case "bytes":
            changed = data[:at] + random.randbytes(random.randrange(1, 9)) + data[at + 8 :]
        case "zeros":
            changed = data[:at] + bytes(len(data[at : at + 64])) + data[at + 64 :]
        case "insert":
            changed = data[:at] + random.randbytes(3) + data[at:]
        case "repeat":
            changed = data + data[at:]
        case "empty":
            changed = b""
        case "noise":
            changed = random.randbytes(len(data))
        case "nest":
            deep = random.choice((b'{"a":', b"["))
            changed = deep * 100_000 if random.random() < 0.5 else data[:at] + deep * 20_000
        case "huge":
            changed = data.replace(b"1", b"9" * random.choice((20, 400, 5000)), random.randrange(1, 4))
        case _:
            return kind, _swapped(name, random, files)
    return kind, {name: changed}


ODD: tuple[Any, ...] = (
    None, True, "", "x", "../../../etc/passwd", "/etc/passwd", "a/../../b", "..", "\x00", "state/../../x", [], {}, [[]],
    "\ud800", "[/red]",  # text that is no UTF-8, and markup that would be wrong
    -1, 0, 1, 2**31, 2**63, 2**64, 10**30, 1e308, 0.5, "9" * 400, {"a": {"b": []}},
)  # fmt: skip


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where in a document something stands."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inside:
        yield (*path, key)
        yield from _places(each, (*path, key))


def _edited(body: Any, random: Random) -> str:
    """Change one thing in a document; what it was."""
    places = list(_places(body))
    *above, last = random.choice(places)
    held = body
    for key in above:
        held = held[key]
    match random.choice(("delete", "odd", "odd", "odd", "swap", "number", "rename", "deep")):
        case "delete":
            del held[last]
            how = "deleted"
        case "swap":
            *above, other = random.choice(places)
            there = body
            for key in above:
                there = there[key]
            held[last], there[other] = json.loads(json.dumps([there[other], held[last]]))
            how = f"swapped with {other}"
        case "number" if isinstance(held[last], int | float):
            held[last] = random.choice((held[last] + 1, held[last] - 1, -held[last], held[last] * 1000))
            how = f"now {held[last]}"
        case "rename" if isinstance(held, dict):
            held[random.choice(("x", "../x", f"{last}x", "count/0", "", "\ud800", "[/red]"))] = held.pop(last)
            how = "renamed"
        case "deep":
            for _ in range(500):
                held[last] = [held[last]]
            how = "nested"
        case _:
            held[last] = random.choice(ODD)
            how = f"now {held[last]!r:.30}"
    return f"{'.'.join(map(str, [*above, last]))} {how}"


def signed(body: dict[str, Any]) -> bytes:
    body.pop("checksum", None)
    plain = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    return json.dumps({**body, "checksum": checksum(plain)}).encode()


def drawn(name: str, random: Random, files: Files) -> Change:
    """One way to change a file."""
    document = name.endswith((".json", ".beat"))
    if document and random.random() < 0.6:
        body = json.loads(files[name])
        forged = random.random() < 0.7
        told = _edited(body, random)
        return Change(f"{name}: {told}", {name: signed(body) if forged else json.dumps(body).encode()}, forged)
    if name == NAME and random.random() < 0.7:
        lines = files[name].splitlines()
        at = random.randrange(len(lines))
        body = json.loads(lines[at])
        told = _edited(body, random)
        lines[at] = json.dumps(body).encode()
        return Change(f"{name}: line {at + 1}: {told}", {name: b"\n".join(lines) + b"\n"}, forged=True)
    kind, changed = _raw(name, random, files)
    return Change(f"{name}: {kind}", changed, forged=name == NAME)
