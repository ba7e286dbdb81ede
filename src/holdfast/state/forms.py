"""What each document of a store must look like. A checksum shows damage; a document may still be none of ours.

A form is a type (whole numbers are no booleans and fit into 64 bits), ``[form]`` for a list, several in it for a
list of that length, ``Each(form)`` for an object with any keys, or an object of forms by key. ``"key?"`` may be
missing, ``None`` in a tuple of forms may be null.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from holdfast.state.names import is_inside
from holdfast.state.origin import FORM as ORIGIN

LARGEST = 2**63


@dataclass(frozen=True, slots=True)
class Each:
    """An object whose values all have this form."""

    form: Any


class Name:
    """The name of a file in the store."""


ENTRY = {
    "path": Name,
    "bytes": int,
    "checksum": str,
    "rows": int,
    "table": str,
    "epoch": int,
    "since": (int, None),
    "pages?": ({"at": int, "bytes": int, "checksum": str}, None),
}
ROUTING = {"version": int, "ranges": [[int]]}
FORMS: Mapping[str, Any] = {
    "store": {"id": str},
    "claim": {
        "token": int,
        "owner": str,
        "host": str,
        "process": str,
        "lease": float,
        "id": str,
        "keep?": int,
        "at?": float,
    },
    "found": {"token": int, "checkpoints": [Name], "journal": [Name]},
    "beat": {"token": int, "at": float, "released": bool},
    "index": {"token": int, "manifests": [Name]},
    "checkpoint": {
        "epoch": int,
        "token": int,
        "revision": int,
        "tasks": Each([ENTRY]),
        "routing": Each(ROUTING),
        "extra": {
            "signature?": dict,
            "shape?": dict,
            "rows?": int,
            "origin?": ORIGIN,
            "measured?": (
                {"rates?": Each(float), "seconds?": Each(float), "epochs?": [[int, int, (int, None)]]},
                None,
            ),
        },
    },
    "journal": {
        "epoch": int,
        "token": int,
        "tasks": Each(ENTRY),
        "extra": {
            "pieces?": int,
            "routings?": Each(ROUTING),
            "time?": (int, None),
            "total?": int,
            "origin?": ORIGIN,
        },
    },
    "cursor": {"token": int, "number": int, "final": Each(int), "tentative": Each(int), "upto?": int},
    "sums": {"kind": str, "epoch": int, "sums": Each(str)},
    "shape": {"token": int, "number": int, "shape": dict},
    "signature": {"token": int, "number": int, "signature": dict, "since": int},
    "batches": {"epoch": int, "token?": int},
    "spark-log": {"query": str},
    "output-owner": {"store": str, "url": str},
    "idle": {"before": int, "epochs": [[int, int, int]]},
}


def misfit(kind: str, body: Mapping[str, Any]) -> str | None:
    """What is not as it must be in a document of this kind; None if all is."""
    return _misfit(body, {"store?": str, **FORMS.get(kind, {})}, "")


def _misfit(value: Any, form: Any, at: str) -> str | None:
    if isinstance(form, tuple):
        told = [_misfit(value, each, at) for each in form]
        return None if None in told else told[0]
    if isinstance(form, list):
        if not isinstance(value, list):
            return _told(at, "a list", value)
        if len(form) > 1 and len(form) != len(value):
            return _told(at, f"a list of {len(form)}", value)
        forms = form if len(form) > 1 else form * len(value)
        both = enumerate(zip(value, forms, strict=True))
        return next((why for n, (each, of) in both if (why := _misfit(each, of, f"{at}[{n}]"))), None)
    if isinstance(form, Each):
        if not isinstance(value, dict):
            return _told(at, "an object", value)
        return next((why for key, each in value.items() if (why := _misfit(each, form.form, f"{at}.{key}"))), None)
    if isinstance(form, dict):
        return _misfit_of_keys(value, form, at)
    return None if _is(value, form) else _told(at, _WORDS[form], value)


def _misfit_of_keys(value: Any, form: Mapping[str, Any], at: str) -> str | None:
    if not isinstance(value, dict):
        return _told(at, "an object", value)
    for written, each in form.items():
        key = written.removesuffix("?")
        if key in value:
            if (why := _misfit(value[key], each, f"{at}.{key}")) is not None:
                return why
        elif key == written:
            return f"{at}.{key} is missing".removeprefix(".")
    return None


def _is(value: Any, form: Any) -> bool:
    if form is None:
        return value is None
    if form is int:
        return isinstance(value, int) and not isinstance(value, bool) and -LARGEST <= value < LARGEST
    if form is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    if form is Name:
        return isinstance(value, str) and is_inside(value)
    return isinstance(value, form)


_WORDS = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "true or false",
    dict: "an object",
    Name: "the name of a file in the store",
    None: "null",
}


def _told(at: str, needed: str, value: Any) -> str:
    return f"{at.removeprefix('.') or 'it'} must be {needed}, found {value!r:.60}"
