"""Pipeline files that people write, in JSON or YAML: stages with quantities as strings (``window: 10m``)."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from holdfast.errors import Invalid
from holdfast.resilience.pipeline import Stage
from holdfast.resilience.quantities import duration, is_size, rate, size
from holdfast.resilience.scenario import Scenario


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _StageRow(_Row):
    name: str
    window: str | None = None
    checkpoint: str | None = None
    rate: str | None = None
    mtbf: str | None = None
    shards: int = Field(1, strict=True)


class _PipelineFile(_Row):
    sla: float | None = None
    mtbf: str | None = None
    storage_copies: int = Field(3, strict=True)
    stages: list[_StageRow]


@dataclass(frozen=True, slots=True)
class PipelineFile:
    """The stages, and the SLA if the file says one."""

    sla: float | None
    stages: tuple[Stage, ...]


def read_pipeline(path: Path, mtbf: float | None = None) -> PipelineFile:
    """The pipeline of a file; ``mtbf`` is for those that give none. Invalid names the file and the mistake."""
    try:
        text = path.read_text(encoding="utf-8")
        content: Any = yaml.safe_load(text) if path.suffix in (".yaml", ".yml") else json.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise Invalid(f"{path}: neither JSON nor YAML: {' '.join(str(error).split())}") from None
    try:
        file = _PipelineFile.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "a pipeline"
        raise Invalid(f"{path}: {where}: {first['msg'].lower()}, got {str(first['input'])[:60]!r}") from None
    if len({row.name for row in file.stages}) < len(file.stages):
        raise Invalid(f"{path}: stages: every name may occur once, got {', '.join(row.name for row in file.stages)}")
    with_rate = [row.name for row in file.stages if row.rate is not None]
    if with_rate and len(with_rate) < len(file.stages):
        raise Invalid(f"{path}: stages: give a rate for all or for none, got one for {', '.join(with_rate)} only")
    if file.mtbf is not None:
        mtbf = duration(file.mtbf, f"{path}: mtbf")
    return PipelineFile(file.sla, tuple(_stage(row, f"{path}: stage {row.name}", mtbf, file) for row in file.stages))


def _stage(row: _StageRow, where: str, mtbf: float | None, file: _PipelineFile) -> Stage:
    speed = rate(row.rate, f"{where}: rate") if row.rate else None
    moved = checkpoint_time(row.checkpoint, speed, f"{where}: checkpoint") if row.checkpoint else math.inf
    fails = duration(row.mtbf, f"{where}: mtbf") if row.mtbf else mtbf
    if fails is None:
        raise Invalid(f"{where}: mtbf is missing, here and for the whole file")
    try:
        scenario = Scenario(
            sla=0.5,
            mtbf=fails,
            window=duration(row.window, f"{where}: window") if row.window else math.inf,
            checkpoint=moved,
            storage_copies=file.storage_copies,
            shards=row.shards,
        )
    except Invalid as error:
        raise Invalid(f"{where}: {error}" if not str(error).startswith(where) else str(error)) from None
    return Stage(row.name, scenario, speed or 1.0)


def checkpoint_time(text: str, speed: float | None, name: str) -> float:
    """Seconds to move a checkpoint at the input rate: given as a duration, or as a size over a rate."""
    if not is_size(text):
        return duration(text, name)
    if speed is None:
        raise Invalid(f"{name}: a size such as {text} needs the input rate too (rate, such as 50MB/s)")
    return size(text, name) / speed
