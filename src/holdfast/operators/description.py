"""What an operator does, as plain data that is put down beside its state, and in words for people.

A description is JSON with the ``kind`` of operator. What stands under ``answers`` decides only what is told of the
state, not what the state is made of: it may change while the state stays.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from holdfast.errors import Invalid

ANSWERS = "answers"
Description: TypeAlias = Mapping[str, Any]
Version: TypeAlias = int | str
_UNITS = ((86_400_000_000, "d"), (3_600_000_000, "h"), (60_000_000, "min"), (1_000_000, "s"), (1_000, "ms"), (1, "us"))


def name_of(function: Callable[..., Any]) -> str:
    """A function by its qualified name, without the module; whatever is called without one by that of its class."""
    if isinstance(function, functools.partial):
        return name_of(function.func)
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def as_json(does: Description, who: str) -> dict[str, Any]:
    """The same as it will be read back from a file; Invalid, naming the operator, if that cannot be."""
    try:
        plain = json.loads(json.dumps(does, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise Invalid(f"operator {who}: describe must give JSON, without NaN or infinity: {error}") from None
    if not isinstance(plain, dict):
        raise Invalid(f"operator {who}: describe must give a mapping, got {type(does).__name__}")
    return plain


def remembers(does: Description) -> dict[str, Any]:
    """The part of a description that says what the state is made of."""
    return {name: value for name, value in does.items() if name != ANSWERS}


def change(old: Description, new: Description) -> str:
    """How a description was and how it is now, in words: ``was sum(amount) by page, is max(amount) by page now``."""
    was, now = told(old), told(new)
    if was != now:
        return f"was {was}, is {now} now"
    return ", ".join(f"had {path} {_said(a)}, has {_said(b)} now" for path, a, b in _differences(old, new))


def told(does: Description) -> str:
    """A description in a few words; one of a kind that is not known here, as it stands."""
    try:
        return _WORDS[does["kind"]](does)
    except (KeyError, TypeError, AttributeError):
        return json.dumps(does, sort_keys=True)


def _differences(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in {**old, **new}:
            yield from _differences(old.get(name), new.get(name), f"{path}.{name}" if path else str(name))
    elif old != new:
        yield path, old, new


def _said(value: Any) -> str:
    return "none" if value is None else value if isinstance(value, str) else json.dumps(value)


def _time(micros: int) -> str:
    scale, unit = next((scale, unit) for scale, unit in _UNITS if micros % scale == 0)
    return f"{micros // scale} {unit}"


def _aggregates(does: Description) -> str:
    keys = f" by {', '.join(does['by'])}" if does["by"] else ""
    return f"{', '.join(does['computes'].values())}{keys}"


def _lasting(does: Description) -> str:
    return f", forgotten {_time(does['ttl_us'])} of {does['time']} after their last row" if "ttl_us" in does else ""


def _windows(does: Description) -> str:
    step = "" if does["every_us"] == does["size_us"] else f" every {_time(does['every_us'])}"
    return f"in windows of {_time(does['size_us'])}{step}"


def _windowed(does: Description) -> str:
    top = does[ANSWERS]["top"]
    best = f", the {top[0]} with the largest {top[1]}" if top else ""
    return f"{_aggregates(does)} {_windows(does)} of {does['time']}{best}{_emitted(does)}"


def _emitted(does: Description) -> str:
    """Append, which says everything once, goes without saying."""
    emit = does[ANSWERS].get("emit", "append")
    return "" if emit == "append" else f", emit {emit}"


def _sessions(does: Description) -> str:
    span = f"from {does['start']} to {does['end']}" if does["time"] is None else f"of {does['time']}"
    gap = f", gap {_time(does['gap_us'])}" if does["gap_us"] else ""
    return f"{_aggregates(does)} in sessions {span}{gap}{_meant(does)}{_emitted(does)}"


def _meant(does: Description) -> str:
    return "".join(f"; {name} is {text}" for name, text in does.get("meaning", {}).items())


def _joined(does: Description) -> str:
    sides = f"{does['left']['stream']} and {does['right']['stream']}"
    return f"{does[ANSWERS]['how']} join of {sides} by {', '.join(does['by'])} {_windows(does)}"


def _ranked(does: Description) -> str:
    keep = does["keep"] if does["rising"] else does[ANSWERS]["keep"]
    within = f" within {', '.join(does['within'])}" if does["within"] else ""
    closes = f", closed by {does['closes']}" if does["closes"] else ""
    return f"top {keep} by {does['value']} of {', '.join(does['key'])}{within}{closes}{', rising' * does['rising']}"


def _first(does: Description) -> str:
    within = f" within {_time(does['within_us'])} of {does['time']}" if does["time"] else ""
    return f"the first row by {', '.join(does['by'])}{within}"


def _rows(what: str, given: str) -> Callable[[Description], str]:
    def words(does: Description) -> str:
        if "function" in does:
            return f"{what} {_function(does)}"
        made = does[given]
        return f"{what} {made if isinstance(made, str) else ', '.join(made)}"

    return words


def _function(does: Description) -> str:
    return f"{does['function']} version {does['version']}"


def _grouped(does: Description) -> str:
    closes = f", closed by {does['closes']}" if does["closes"] else ""
    return f"{_aggregates(does)}{closes}{_meant(does)}"


def _stream_joined(does: Description) -> str:
    where = "".join(f", {' '.join(each)}" for each in does["where"])
    return f"{does['how']} join of two streams by {', '.join(does['by'])}{where}{_meant(does)}"


def _first_rows(does: Description) -> str:
    forgotten = f", forgotten {_time(does['keeps_us'])} after {does['time']}" if does["keeps_us"] is not None else ""
    return f"the first row by {', '.join(does['by'])}{forgotten}{_meant(does)}"


_WORDS: Mapping[str, Callable[[Description], str]] = {
    "aggregate": lambda does: f"{_aggregates(does)}{_lasting(does)}",
    "grouped": _grouped,
    "first rows": _first_rows,
    "combine": lambda does: f"{_aggregates(does)} within an epoch",
    "window": _windowed,
    "sessions": _sessions,
    "join": _joined,
    "stream_join": _stream_joined,
    "top_k": _ranked,
    "deduplicate": _first,
    "map": _rows("map", "columns"),
    "filter": _rows("filter", "condition"),
    "flat_map": _rows("flat map", "list"),
    "chain": lambda does: ", then ".join(told(each) for each in does["operators"]),
    "function": _function,
    "operator": lambda does: f"{does['class']} version {does['version']}",
    "source": lambda does: told(does["operator"]),
}
