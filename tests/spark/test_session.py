"""The settings that a session is started with: what is set over what spark-defaults.conf has, and what is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.runtime.spark.session import HEARTBEATS, REGIONS, chosen_settings

DRIVER, EXECUTORS = "spark.driver.extraJavaOptions", "spark.executor.defaultJavaOptions"


@pytest.mark.parametrize("master", ["local[2]", "spark://head:7077", "yarn", "k8s://https://head:443"])
def test_what_administrators_say_to_executors_of_a_cluster_stays(
    master: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is set here would take the place of what is in that file."""
    (tmp_path / "spark-defaults.conf").write_text(f"{EXECUTORS} -Djavax.net.ssl.trustStore=/etc/trusted\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    large = {"spark.driver.memory": "8g", "spark.executor.memory": "8g"}
    assert EXECUTORS not in chosen_settings(master, large)
    assert chosen_settings(master, {EXECUTORS: "-Dmine=1"})[EXECUTORS] == "-Dmine=1"


@pytest.mark.parametrize(
    ("memory", "large"),
    [
        (None, False),
        ("1g", False),
        ("4095m", False),
        ("4096m", True),
        ("4g", True),
        ("4GB", True),
        ("1t", True),
        ("much", False),
    ],
)
def test_only_a_large_heap_has_large_regions(memory: str | None, large: bool) -> None:
    given = {"spark.driver.memory": memory} if memory is not None else {}
    assert (REGIONS in chosen_settings("local[2]", given)[DRIVER]) is large
    assert "log4j2" in chosen_settings("local[2]", given)[DRIVER]


def test_executors_of_a_local_cluster_have_what_their_heap_allows() -> None:
    assert EXECUTORS not in chosen_settings("local-cluster[2,1,1024]", {"spark.driver.memory": "8g"})
    assert chosen_settings("local-cluster[2,1,8192]", {})[EXECUTORS] == REGIONS
    assert EXECUTORS not in chosen_settings("local-cluster[2,1,8192]", {"spark.executor.memory": "1g"})
    assert chosen_settings("local-cluster[2,1,1024]", {})["spark.executor.memory"] == "768m"


@pytest.mark.parametrize(
    ("master", "short"),
    [
        ("local[2]", False),
        ("local[*]", False),
        ("local-cluster[2,1,1024]", True),
        ("spark://head:7077", True),
    ],
)
def test_heartbeats_are_short_where_an_executor_can_fall_silent(master: str, short: bool) -> None:
    """Spark ends a process whose heartbeats were late 60 times in a row. In local mode that is the driver's own, whose
    heartbeats are late when the machine is busy, and nobody else could be found lost by them.
    """
    chosen = chosen_settings(master, {})
    assert all((name in chosen) is short for name in HEARTBEATS)
    assert (
        chosen_settings(master, {"spark.executor.heartbeatInterval": "7s"})["spark.executor.heartbeatInterval"] == "7s"
    )
