"""A job whose store is on S3: nodes that die, a restart, the commands by URL, and no credentials anywhere."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from test_job import counting, expected, finished, numbers

import holdfast
from holdfast.errors import HoldfastError, Invalid
from holdfast.runtime.driver.ports import Output
from holdfast.runtime.faults import parse_faults
from holdfast.runtime.history.history import read_history
from holdfast.runtime.history.outputs import read_output
from object_store import BUCKET, KEY, SECRET, Proxy, Server, client, proxied
from waiting import DEADLINE

pytestmark = pytest.mark.spark
HERE = Path(__file__).parent
Begin = Callable[..., holdfast.Job]


@pytest.fixture
def proxy(s3: Server) -> Iterator[Proxy]:
    with proxied(s3) as before:
        yield before


def totals(url: str, options: dict[str, Any]) -> list[tuple[int, int, int]]:
    table = read_output(url, "final", options)
    return list(zip(*(table[name].to_pylist() for name in ("epoch", "keys", "sum")), strict=True))


@pytest.mark.long
def test_nodes_die_on_a_store_on_s3_and_a_restart_goes_on(
    spark: Any,
    begin: Begin,
    proxy: Proxy,
    s3_url: str,
    tmp_path: Path,
    holdfast: Callable[..., CompletedProcess[str]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "holdfast")
    given: list[Output] = []
    common: dict[str, Any] = {
        "store": s3_url, "nodes": 3, "checkpoint_every": 2, "storage_options": proxy.options,
        "spark_log": str(tmp_path / "log"), "sink": given.append, "replicas": ["counts/1"],
    }  # fmt: skip
    faults = parse_faults(["kill node-1 at epoch 2", "kill node-0,node-2 at epoch 4", "join node-0 after 1s"])
    finished(begin(numbers(spark), counting(), epochs=6, faults=faults, rejoin_after=2.0, **common))
    assert totals(s3_url, proxy.options) == expected(6)
    proxy.refuse[:] = [503, 429, 500, 503]
    proxy.seen.clear()
    finished(begin(numbers(spark), counting(), epochs=8, **common))
    assert totals(s3_url, proxy.options) == expected(8) and not proxy.refuse
    assert sorted((each.epoch, each.kind) for each in given if each.kind == "final") == [(e, "final") for e in range(8)]

    for words in (["history", s3_url], ["store", s3_url, "verify"], ["state", s3_url], ["store", s3_url]):
        done = holdfast(*words)
        assert done.returncode == 0, done.stderr
    page = tmp_path / "page.html"
    assert holdfast("report", s3_url, "--out", str(page)).returncode == 0
    kinds = [event["kind"] for event in read_history(s3_url)]
    assert kinds.count("started") == 2 and kinds.count("stopped") == 2 and "recovery plan" in kinds

    api, texts = client(proxy.options), [page.read_text(), caplog.text, json.dumps(list(read_history(s3_url)))]
    prefix = s3_url.removeprefix(f"s3://{BUCKET}/")
    keys = [each["Key"] for each in api.list_objects_v2(Bucket=BUCKET, Prefix=prefix)["Contents"]]
    texts += [api.get_object(Bucket=BUCKET, Key=key)["Body"].read().decode("latin-1") for key in keys]
    assert len(texts) > 30 and not any(SECRET in text or KEY in text for text in texts)


@pytest.mark.long
def test_a_live_job_is_scaled_by_the_url_of_its_store(
    spark: Any, begin: Begin, s3: Server, s3_url: str, tmp_path: Path, holdfast: Callable[..., CompletedProcess[str]]
) -> None:
    job = begin(
        numbers(spark), counting(), store=s3_url, nodes=2, checkpoint_every=2, trigger="500 milliseconds",
        spark_log=str(tmp_path / "log"), storage_options=s3.options,
    )  # fmt: skip
    for tasks in (3, 1):
        done = holdfast("scale", s3_url, "counts", "--to", str(tasks), "--format", "json")
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        assert (told["operator"], told["tasks"], told["changed"]) == ("counts", tasks, True)
    done = holdfast("scale", s3_url, "all", "--to", "2")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1 and "all" in done.stderr
    done = holdfast("scale", s3_url, "counts", "--to", "1")
    assert done.returncode == 0 and "counts has 1 tasks already" in done.stdout
    job.stop()
    found = totals(s3_url, s3.options)
    assert found == expected(len(found)) and found[-1][0] == job.driver.snapshot.head
    scaled = [event["tasks"] for event in read_history(s3_url) if event["kind"] == "scaled" and "new" in event]
    assert scaled == [3, 1]
    refused = holdfast("scale", s3_url, "counts", "--to", "3")
    assert refused.returncode == 2 and "no job is running here" in refused.stderr


@pytest.mark.long
def test_another_log_than_the_stores_own_is_refused_and_so_is_an_older_store(
    spark: Any, begin: Begin, s3: Server, s3_url: str, tmp_path: Path
) -> None:
    """Spark's log lives elsewhere: exactly once holds only while the two belong together and neither goes back."""
    common: dict[str, Any] = {"nodes": 1, "spark_log": str(tmp_path / "log"), "storage_options": s3.options}
    finished(begin(numbers(spark), counting(), store=s3_url, epochs=2, **common))
    for wrong, words in (
        ({"spark_log": str(tmp_path / "other")}, "is not the one that this store was written with"),
        ({"store": f"{s3_url}-new"}, "epoch"),
    ):
        with pytest.raises(HoldfastError, match=words):
            finished(begin(numbers(spark), counting(), **{"store": s3_url, "epochs": 4, **common, **wrong}))
    assert totals(s3_url, {}) == expected(2)


def test_without_a_file_system_of_hadoops_the_log_must_be_named(spark: Any, begin: Begin) -> None:
    """Before anything is asked of the store: no server is there."""
    nowhere = {"key": KEY, "secret": SECRET, "endpoint_url": "http://127.0.0.1:9"}
    with pytest.raises(Invalid, match=r"Spark cannot keep its own log at s3a://.*hadoop-aws.*spark_log=") as told:
        begin(numbers(spark), counting(), store=f"s3://{BUCKET}/job", nodes=1, storage_options=nowhere)
    assert "\n" not in str(told.value)


@pytest.mark.long
def test_executors_without_credentials_end_the_job_in_one_line(
    spark: Any, begin: Begin, s3_url: str, tmp_path: Path
) -> None:
    """The driver has them in its environment; Spark's processes were begun before that."""
    with pytest.raises(HoldfastError, match="S3 does not know who asks") as told:
        finished(begin(numbers(spark), counting(), store=s3_url, nodes=1, epochs=2, spark_log=str(tmp_path / "log")))
    assert "\n" not in str(told.value)


@pytest.mark.long
@pytest.mark.xdist_group("programs")
@pytest.mark.skipif("HADOOP_AWS_JARS" not in os.environ, reason="no hadoop-aws here: name its jars in HADOOP_AWS_JARS")
def test_with_a_file_system_of_hadoops_the_log_is_in_the_store(s3: Server) -> None:
    folders = os.pathsep.join([*map(str, (HERE, HERE.parent)), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(HERE / "s3a_alone.py"), os.environ["HADOOP_AWS_JARS"]],
        env={**os.environ, "PYTHONPATH": folders}, capture_output=True, text=True, timeout=DEADLINE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.endswith("offsets in the store: 4\n")
