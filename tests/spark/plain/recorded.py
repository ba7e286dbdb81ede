"""What Structured Streaming answers to composed queries, and a record of it: it need not be asked in every run.

``make record-queries`` writes it. It says which pyspark answered, over which rows, to which queries; whatever is
another now is told, and never taken for an answer.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyspark
from composing import Composed, composed
from pyspark.sql import DataFrame, SparkSession
from queries import EVENTS
from side_by_side import Rows, at_once, tidy

from holdfast.runtime.spark import spark_session
from spark_settings import SETTINGS

FILE = Path(__file__).with_name("recorded.jsonl.gz")
AGAIN = "make record-queries asks Structured Streaming again and writes the record anew"
MANY, AT_ONCE = 200, 4
BATCHES, ROWS = 3, 50
STREAMS = 3
SMALL = {
    "spark.sql.shuffle.partitions": "1", "spark.sql.adaptive.enabled": "false",
    "spark.sql.leafNodeDefaultParallelism": "1",
}  # fmt: skip
"""Of a session: rows so few are one partition everywhere."""


@dataclass(frozen=True)
class Answers:
    """To a query: the rows of each batch as text, in an order of their own.

    ``watermarks``: for each start of the query those that Spark had for its batches with rows, in microseconds, and at
    last the one for a batch to come.
    """

    text: str
    batches: dict[str, list[str]]
    watermarks: list[list[int]]

    def differences(self, ours: dict[str, list[str]]) -> Iterator[str]:
        """What Holdfast answers otherwise, a line for each batch."""
        for batch in sorted({*ours, *self.batches}, key=int):
            if batch not in ours or batch not in self.batches:
                yield f"batch {batch}: only {'Holdfast' if batch in ours else 'Structured Streaming'} has it"
            elif ours[batch] != self.batches[batch]:
                mine, theirs = Counter(ours[batch]), Counter(self.batches[batch])
                yield f"batch {batch}: Holdfast has {[*mine - theirs][:3]}, Structured Streaming {[*theirs - mine][:3]}"


def write_streams(root: Path) -> list[Path]:
    """One with nulls and late rows; one whose second batch is empty; one without nulls and with few keys."""
    folders = [root / f"stream-{seed}" for seed in range(STREAMS)]
    for seed, folder in enumerate(folders):
        folder.mkdir()
        _write(folder, random.Random(seed), [None] if seed < 2 else [], seed == 1)
    return folders


def _write(folder: Path, draw: random.Random, nulls: list[None], gap: bool) -> None:
    for batch in range(BATCHES):
        rows = []
        for number in range(0 if gap and batch == 1 else ROWS):
            minute = batch * 20 + draw.randrange(20) - draw.choice((0, 0, 0, 35, 70))
            moment = f"2026-03-29 {5 + minute // 60:02d}:{minute % 60:02d}:{number % 60:02d}"
            rows.append({
                "k": draw.choice(["ann", "bob", "cy", *nulls]), "n": draw.choice([*range(9), *nulls]),
                "x": draw.choice([round(draw.uniform(-5, 9), 3), -0.0, 0.0, "NaN", *nulls]),
                "cents": draw.choice([f"{draw.randrange(9999) / 100:.2f}", *nulls]),
                "ts": draw.choice([*15 * [moment], *nulls]), "day": f"2026-01-{1 + draw.randrange(3):02d}",
                "yes": draw.choice([True, False, *nulls]),
            })  # fmt: skip
        path = folder / f"{batch}.json"
        path.write_text("\n".join(map(json.dumps, rows)))
        os.utime(path, (1_700_000_000 + batch,) * 2)


def stream_of(spark: SparkSession, folder: Path) -> DataFrame:
    reader = spark.readStream.schema(EVENTS).option("maxFilesPerTrigger", 1).option("allowNonNumericNumbers", True)
    return reader.json(str(folder))


def starts(seed: int, batches: Sequence[Any]) -> list[Sequence[Any]]:
    """What is there at each start of a query: every fourth is stopped and started again."""
    return [batches[:2], batches[2:]] if seed % 4 == 3 else [batches]


def told(rows: Rows) -> list[str]:
    """As text that is the same wherever it is written: pyspark gives times in the zone of the machine."""
    return sorted(str(_in_utc(row)) for row in rows)


def _in_utc(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).replace(tzinfo=None).isoformat(" ")
    if isinstance(value, (tuple, list)):
        return type(value)(map(_in_utc, value))
    return value


def asked(query: Composed, files: Sequence[Path], rows: Path, log: Path, seed: int) -> Answers:
    """What Structured Streaming answers. ``rows``: the folder that the query reads, into which files are put."""
    got: dict[str, list[str]] = {}
    watermarks = []
    for part in starts(seed, files):
        put(part, rows)
        writing = query.frame.writeStream.outputMode(query.mode).option("checkpointLocation", str(log))
        writing = writing.foreachBatch(lambda frame, batch: got.update({str(batch): told(tidy(frame))}))
        running: Any = writing.trigger(availableNow=True).start()
        running.awaitTermination()
        went_by = [_watermark(each) for each in running.recentProgress][: len(part)]
        to_come = int(running._jsq.streamingQuery().watermarkTracker().currentWatermark()) * 1000
        watermarks.append([*went_by, to_come])
    return Answers(query.text, got, watermarks)


def put(files: Sequence[Path], rows: Path) -> None:
    for file in files:
        shutil.copy2(file, rows)


def _watermark(progress: Any) -> int:
    told = progress["eventTime"].get("watermark", "1970-01-01T00:00:00.000Z")
    return round(datetime.fromisoformat(told).timestamp() * 1000) * 1000


def header(folders: Sequence[Path]) -> dict[str, str]:
    """What answered, over what."""
    rows = b"\0".join(file.read_bytes() for folder in folders for file in sorted(folder.iterdir()))
    return {"pyspark": pyspark.__version__, "rows": hashlib.sha256(rows).hexdigest()}


class Record:
    """The answers that were written down, by seed."""

    def __init__(self, folders: Sequence[Path]) -> None:
        with gzip.open(FILE, "rt", encoding="utf-8") as lines:
            head, *rest = map(json.loads, lines)
        self.wrong = "" if head == header(folders) else f"the record is of {head}, here is {header(folders)}; {AGAIN}"
        self._answers = [Answers(**each) for each in rest]

    def of(self, seed: int, text: str) -> Answers | str:
        """The answers to this query; or what is wrong with the record."""
        if self.wrong or not 0 <= seed < len(self._answers):
            return self.wrong or f"the record has {len(self._answers)} queries; {AGAIN}"
        found = self._answers[seed]
        return found if found.text == text else f"the record is of another query: {found.text}; {AGAIN}"


def main() -> None:
    spark = spark_session("local[2]", name="holdfast-record", settings={**SETTINGS, **SMALL})
    with tempfile.TemporaryDirectory(prefix="holdfast-record-", ignore_cleanup_errors=True) as made:
        place = Path(made)
        folders = write_streams(place)

        def one(seed: int) -> Answers:
            rows = place / f"rows-{seed}"
            rows.mkdir()
            query = composed(stream_of(spark, rows), seed)
            return asked(query, sorted(folders[seed % STREAMS].iterdir()), rows, place / f"log-{seed}", seed)

        lines = [header(folders)]
        for first in range(0, MANY, AT_ONCE):
            lines += [asdict(each) for each in at_once(*(partial(one, seed) for seed in range(first, first + AT_ONCE)))]
            print(f"{first + AT_ONCE} of {MANY}", file=sys.stderr)
    spark.stop()
    written = "".join(json.dumps(line, separators=(",", ":"), ensure_ascii=False) + "\n" for line in lines)
    FILE.write_bytes(gzip.compress(written.encode(), 9, mtime=0))


if __name__ == "__main__":
    main()
