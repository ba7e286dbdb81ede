"""Values of Python files that a command is pointed at: ``FILE.py:NAME``."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from holdfast.errors import Invalid


def loaded(written: str, what: str) -> Any:
    """The value that ``FILE.py:NAME`` names."""
    path, _, name = written.partition(":")
    file = Path(path)
    if not file.is_file():
        raise Invalid(f"{what} {written}: no such file {path}")
    if not name:
        raise Invalid(f"{what} {written}: say which value of the file, such as {path}:pipeline")
    spec = importlib.util.spec_from_file_location(f"holdfast_{file.stem}", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise Invalid(f"{what} {written}: {path} fails: {type(error).__name__}: {error}") from None
    if not hasattr(module, name):
        raise Invalid(f"{what} {written}: {path} has no {name!r}")
    return getattr(module, name)
