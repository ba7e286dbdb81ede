"""The queries of others.py in PyFlink's Table API, by the Python of an environment that has ``apache-flink``.

Two tasks in one JVM, state on the heap, exactly-once checkpoints every ten seconds into a folder, mini-batches of a
second where a query updates its answer. The job runs twice in the same JVM, which the first run warms up; the second
is what counts. A third run gives the answer, to be checked: of counts how many there are, their sum, the least and the
most; of words all of it, in files.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from pyflink.common import Configuration
from pyflink.datastream import StreamExecutionEnvironment
from pyflink.table import StreamTableEnvironment

SETTINGS = {
    "parallelism.default": "2",
    "taskmanager.numberOfTaskSlots": "2",
    "execution.checkpointing.interval": "10 s",
    "execution.checkpointing.mode": "EXACTLY_ONCE",
    "table.exec.mini-batch.enabled": "true",
    "table.exec.mini-batch.allow-latency": "1 s",
    "table.exec.mini-batch.size": "1000000",
    "table.optimizer.agg-phase-strategy": "TWO_PHASE",
    "table.local-time-zone": "UTC",
}
COUNT = "SELECT key, COUNT(*) AS n FROM (SELECT MOD(number * {stride}, {keys}) AS key FROM numbers) GROUP BY key"
WORDS = """
    SELECT CAST(window_start AS STRING), word, COUNT(*) AS n
    FROM TABLE(HOP(TABLE words, DESCRIPTOR(seen), INTERVAL '5' SECONDS, INTERVAL '30' SECONDS))
    GROUP BY window_start, window_end, word
"""


def tables(folder: Path, wait: bool = False) -> Any:
    """``wait``: a job that is done waits for a last checkpoint, up to the interval, and files are whole then."""
    settings = Configuration()
    for name, value in SETTINGS.items():
        settings.set_string(name, value)
    settings.set_string("execution.checkpointing.checkpoints-after-tasks-finish.enabled", str(wait).lower())
    settings.set_string("execution.checkpointing.dir", (folder / "checkpoints").as_uri())
    return StreamTableEnvironment.create(StreamExecutionEnvironment.get_execution_environment(settings))


def numbers(made: Any, rows: int) -> None:
    made.execute_sql(f"""CREATE TEMPORARY TABLE numbers (number BIGINT) WITH ('connector' = 'datagen',
        'rows-per-second' = '1000000000', 'fields.number.kind' = 'sequence', 'fields.number.start' = '0',
        'fields.number.end' = '{rows - 1}')""")


def keyed_count(made: Any, rows: int, given: dict[str, Any]) -> str:
    made.execute_sql(f"""CREATE TEMPORARY TABLE numbers (number BIGINT) WITH ('connector' = 'datagen',
        'rows-per-second' = '1000000000', 'fields.number.kind' = 'sequence', 'fields.number.start' = '0',
        'fields.number.end' = '{rows - 1}')""")
    made.execute_sql("CREATE TEMPORARY TABLE answers (key BIGINT, n BIGINT) WITH ('connector' = 'blackhole')")
    return COUNT.format(**given)


def word_frequency(made: Any, texts: Path, given: dict[str, Any]) -> str:
    made.execute_sql(f"""CREATE TEMPORARY TABLE texts (number BIGINT, line STRING,
        seen AS TO_TIMESTAMP_LTZ(number * 1000 / {given["rate"]}, 3), WATERMARK FOR seen AS seen) WITH (
        'connector' = 'filesystem', 'path' = '{texts.as_uri()}', 'format' = 'csv')""")
    made.execute_sql("""CREATE TEMPORARY VIEW words AS
        SELECT seen, word FROM texts CROSS JOIN UNNEST(SPLIT(TRIM(line), ' ')) AS split (word)""")
    for name, where in (
        ("answers", "'connector' = 'blackhole'"),
        ("files", f"'connector' = 'filesystem', 'path' = '{(texts.parent / 'out').as_uri()}', 'format' = 'csv'"),
    ):
        made.execute_sql(f"CREATE TEMPORARY TABLE {name} (starts STRING, word STRING, n BIGINT) WITH ({where})")
    return WORDS


def timed(made: Any, statement: str) -> float:
    began = time.monotonic()
    made.execute_sql(statement).wait()
    return time.monotonic() - began


def main() -> None:
    query, folder, given = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    seconds = []
    for share in (3, 1):
        made = tables(folder)
        if query == "keyed-count":
            seconds.append(timed(made, "INSERT INTO answers " + keyed_count(made, given["rows"] // share, given)))
        else:
            seconds.append(timed(made, "INSERT INTO answers " + word_frequency(made, folder / "texts", given)))
    made, answer = tables(folder, wait=True), []
    if query == "keyed-count":
        asked = f"SELECT COUNT(*), SUM(n), MIN(n), MAX(n) FROM ({keyed_count(made, given['rows'], given)})"
        with made.execute_sql(asked).collect() as changes:
            for change in changes:
                answer = list(change)
    else:
        timed(made, "INSERT INTO files " + word_frequency(made, folder / "texts", given))
    print(json.dumps({"seconds": seconds[-1], "first": seconds[0], "answer": answer}))


if __name__ == "__main__":
    main()
