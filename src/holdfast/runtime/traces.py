"""Failure traces: recorded losses of real machines as a fault script, compressed in time. CSV, also .xz and .gz.

Two forms are known: ``node,down,up`` in seconds, and the records that Los Alamos published about its clusters.
"""

from __future__ import annotations

import csv
import gzip
import io
import lzma
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from holdfast.errors import Invalid
from holdfast.runtime.faults import Fault, When

PLAIN = ("node", "down", "up")
LANL = ("System", "nodenum", "Prob Started", "Prob Fixed")
MOMENT = "%m/%d/%Y %H:%M"

Outage = tuple[str, float, float]


def trace_faults(fault: Fault, nodes: Sequence[str]) -> list[Fault]:
    """The kills and joins of a trace on these nodes, in time order, ``factor`` seconds of it to one of ours.

    Machines of the trace are dealt over the nodes in the order in which they first fail. Overlapping outages of a node
    are one. Time begins at the first outage.
    """
    assert fault.path is not None and fault.factor is not None
    outages = sorted(_outages(Path(fault.path), fault.system), key=lambda outage: outage[1])
    if not outages:
        raise Invalid(f"fault {str(fault)!r}: the trace has no failures" + (" of this system" if fault.system else ""))
    begin = outages[0][1]
    named: dict[str, str] = {}
    spans: dict[str, list[tuple[float, float]]] = {}
    for machine, down, up in outages:
        node = named.setdefault(machine, nodes[len(named) % len(nodes)])
        first, last = (down - begin) / fault.factor, (max(up, down) - begin) / fault.factor
        held = spans.setdefault(node, [])
        if held and first <= held[-1][1]:
            held[-1] = (held[-1][0], max(held[-1][1], last))
        else:
            held.append((first, last))
    events = [
        (moment, what, node)
        for node, outs in spans.items()
        for first, last in outs
        for moment, what in ((first, "kill"), (last, "join"))
    ]
    order = {"kill": 0, "join": 1}
    return [
        Fault("kill" if what == "kill" else "join", When(seconds=round(moment, 6)), nodes=(node,))
        for moment, what, node in sorted(events, key=lambda event: (event[0], order[event[1]], event[2]))
    ]


def _outages(path: Path, system: str | None) -> Iterator[Outage]:
    rows = csv.DictReader(io.StringIO(_text(path)))
    columns = rows.fieldnames or []
    if all(name in columns for name in LANL):
        yield from _lanl(rows, system)
    elif all(name in columns for name in PLAIN):
        for number, row in enumerate(rows, 2):
            try:
                yield row["node"], float(row["down"]), float(row["up"])
            except (TypeError, ValueError):
                raise Invalid(f"{path}, line {number}: down and up must be seconds, found {row}") from None
    else:
        found = ", ".join(columns[:6]) or "nothing"
        raise Invalid(f"{path}: columns {', '.join(PLAIN)} are needed, or {', '.join(LANL)}; found {found}")


def _lanl(rows: csv.DictReader[str], system: str | None) -> Iterator[Outage]:
    for row in rows:
        if (system is not None and row["System"] != system) or not row["nodenum"]:
            continue  # of one system nobody wrote down which machine it was
        try:
            down, up = (
                datetime.strptime(row[name], MOMENT).replace(tzinfo=UTC).timestamp()
                for name in ("Prob Started", "Prob Fixed")
            )
        except (TypeError, ValueError):
            # A few records were never closed: nobody can say how long such a machine was away.
            continue
        yield f"{row['System']}/{row['nodenum']}", down, up


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
        if path.suffix == ".xz":
            data = lzma.decompress(data)
        elif path.suffix == ".gz":
            data = gzip.decompress(data)
        return data.decode("utf-8")
    except (OSError, lzma.LZMAError, EOFError, UnicodeDecodeError) as error:
        raise Invalid(f"{path}: cannot be read as CSV: {getattr(error, 'strerror', None) or error}") from None
