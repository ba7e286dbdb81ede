"""What starts a run of a workload: its folder, a Spark, the job, and whether an earlier run there can go on."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.cli import interrupts
from holdfast.cli.display import Display
from holdfast.cli.output import progress
from holdfast.cli.summary import summarise
from holdfast.errors import HoldfastError, Invalid
from holdfast.runtime.settings import seconds_of
from holdfast.state.places import on_disk
from holdfast.workloads import Options, Workload

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETUP = "run.json"
SUMMARY = "summary.json"


class NoSpark(HoldfastError):
    """Spark did not start."""


def spark_interval(written: str) -> str:
    """A time between epochs as Spark writes it: 500ms, 2s, 1.5 seconds, 1 minute."""
    return f"{round(seconds_of(written, '--trigger') * 1000)} milliseconds"


def make_folder(out: Path | None, prefix: str) -> Path:
    """Make the folder of a run now, or a new one: to be told after a minute that it cannot be written is no fun."""
    if out is None:
        return Path(tempfile.mkdtemp(prefix=prefix)).absolute()
    if (path := on_disk(str(out))) is None:
        raise Invalid(f"--out {out}: a run is kept in a folder, not at a URL; name a folder")
    folder = path.absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise Invalid(f"--out {folder}: cannot be written: {error.strerror or error}; name another folder") from None
    return folder


@contextmanager
def spark_on(master: str, settings: dict[str, str]) -> Iterator[SparkSession]:
    """A Spark of our own, stopped in the end."""
    from holdfast.runtime.spark import spark_session

    with interrupts.held():
        try:
            session = spark_session(master, settings=settings)
        except HoldfastError:
            raise
        except Exception as error:
            interrupts.check()
            why = " ".join(str(error).split())[:200]
            raise NoSpark(f"Spark cannot be started on {master}: {why}; holdfast doctor says what is missing") from None
        try:
            interrupts.take()
            interrupts.check()
            yield session
        finally:
            session.stop()


def carry_out(
    chosen: Workload,
    options: Options,
    folder: Path,
    session: SparkSession,
    display: Display,
    parallelism: int | None,
    **settings: Any,
) -> dict[str, Any]:
    """Run the job to its end, watched by this display; ``settings`` are those of ``holdfast.start``. Its summary.

    Interrupted, the job ends after the epoch at hand, so that it can go on later; the summary says so.
    """
    from holdfast.runtime.spark import start

    began = time.monotonic()
    interrupted = False
    pipeline = chosen.pipeline() if parallelism is None else chosen.pipeline(parallelism=parallelism)
    with display:
        job = start(
            chosen.stream(session, options),
            pipeline,
            store=folder,
            epochs=options.epochs,
            bounded=options.input is not None,
            **settings,
        )
        _put(folder / SETUP, _setup(chosen.name, options, parallelism))
        display.watch(job)
        try:
            interrupts.check()
            job.awaitTermination()
        except KeyboardInterrupt:
            interrupted = True
            progress.print("interrupted: stopping after this epoch; again to stop at once", highlight=False)
            job.stop()
    summary = {**summarise(folder, chosen.name, time.monotonic() - began), "interrupted": interrupted}
    _put(folder / SUMMARY, summary)
    return summary


def _setup(name: str, options: Options, parallelism: int | None) -> dict[str, Any]:
    return {
        "workload": name,
        "input": None if options.input is None else str(Path(options.input).absolute()),
        "epochs": options.epochs,
        "rate": options.rate,
        "seed": options.seed,
        "column": options.column,
        "expressways": options.expressways,
        "parallelism": parallelism,
    }


def resumed(folder: Path, name: str, options: Options, parallelism: int | None, epochs: int | None) -> Options:
    """The options of a run that goes on; Invalid if what is asked for now does not fit what is there."""
    try:
        before = json.loads((folder / SETUP).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return options
    except NotADirectoryError:
        raise Invalid(f"--out {folder}: this is a file, or lies in one; name a folder") from None
    except (OSError, ValueError) as error:
        raise Invalid(f"--out {folder}: {SETUP} cannot be read: {error}") from None
    now = _setup(name, options, parallelism)
    if options.input is None or epochs is None:
        # A generator may go on for longer; a file is cut into as many epochs as it was at first.
        now["epochs"] = before["epochs"] if epochs is None else epochs
        before = {**before, "epochs": now["epochs"]}
    for key, value in before.items():
        if key != "parallelism" and now.get(key) != value:
            raise Invalid(
                f"--out {folder}: this run has {key} {value!r}, now it is {now.get(key)!r}; use another folder"
            )
    return replace(options, epochs=now["epochs"])


def _put(path: Path, content: dict[str, Any]) -> None:
    temporary = path.with_name(f".{path.name}.part")
    temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)
