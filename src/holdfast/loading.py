"""Values of Python files that a command is pointed at: ``FILE.py:NAME``."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

from holdfast.errors import Invalid


def loaded(written: str, what: str) -> Any:
    """The value that ``FILE.py:NAME`` names."""
    from pyspark import cloudpickle

    tool: Any = cloudpickle
    path, _, name = written.partition(":")
    file = Path(path)
    if not file.is_file():
        raise Invalid(f"{what} {written}: no such file {path}")
    if not name:
        raise Invalid(f"{what} {written}: say which value of the file, such as {path}:pipeline")
    spec = importlib.util.spec_from_file_location(f"holdfast_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise Invalid(f"{what} {written}: a file of Python is needed, such as {file.stem}.py:{name}, got {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # as an import does: dataclasses look up there what an annotation means
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[spec.name]
        raise Invalid(f"{what} {written}: {path} fails: {type(error).__name__}: {error}") from None
    tool.register_pickle_by_value(module)  # workers cannot import it
    if not hasattr(module, name):
        raise Invalid(f"{what} {written}: {path} has no {name!r}")
    return getattr(module, name)
