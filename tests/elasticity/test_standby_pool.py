"""The pool of standby nodes: who gets one, who waits, how many are kept, and that none is lost or given twice."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.elasticity import Pool, PoolPolicy
from holdfast.errors import Invalid

QUICK = settings(deadline=None, derandomize=True, max_examples=60)


def test_a_request_is_served_at_once_and_the_pool_refilled_behind_it() -> None:
    pool = Pool(PoolPolicy(provisioning=90, least=2), idle=["a", "b"])
    assert pool.wanted(0) == 0
    assert pool.request(10, 1) == ["a"]
    assert pool.wanted(10) == 1
    pool.ordered(10, 1)
    assert pool.wanted(10) == 0
    assert pool.arrived(100, ["c"]) == []
    assert pool.idle == ("b", "c")


def test_who_finds_the_pool_empty_waits_for_the_next_arrival() -> None:
    pool = Pool(PoolPolicy(least=0), idle=["a"])
    assert pool.request(0, 3) == ["a"]
    # Two for those who wait, and three more, as three were asked for at once.
    assert (pool.waiting, pool.wanted(0)) == (2, 5)
    pool.ordered(0, 5)
    assert pool.arrived(90, ["b"]) == ["b"]
    assert pool.returned(["c", "d"]) == ["c"]
    assert (pool.waiting, pool.idle, pool.coming) == (0, ("d",), 4)
    assert pool.request(91, 2) == ["d"]


def test_it_grows_with_the_requests_and_shrinks_when_they_stop() -> None:
    pool = Pool(PoolPolicy(provisioning=100, least=1, most=6, memory=500), idle=["a"])
    for at in (0, 30, 60, 90):
        pool.request(at)
    # Four in 100 s, then four in 400 s and in the whole memory; each is forgotten when 500 s old.
    assert [pool.target(at) for at in (90, 200, 400, 500, 531, 591)] == [4, 2, 1, 1, 1, 1]
    for at in range(600, 700, 10):
        pool.request(at, 3)
    assert pool.target(700) == 6
    assert pool.target(1199) == 1


def test_a_rate_that_lasts_is_served_by_what_comes_in_the_meantime() -> None:
    pool = Pool(PoolPolicy(provisioning=60, least=0, most=9, memory=600))
    for at in range(0, 1200, 20):
        pool.request(at)
    assert pool.target(1200) == 3


def test_how_long_a_node_takes_is_measured() -> None:
    pool = Pool(PoolPolicy(provisioning=10))
    pool.ordered(0, 3)
    pool.arrived(200, ["a", "b"])
    assert pool.provisioning == 200
    pool.arrived(400, ["c"])
    assert pool.provisioning == pytest.approx(800 / 3)
    # Two requests in 267 s and less: two are expected while one node is on its way, not the 1 of a 10 s delay.
    pool.request(500)
    pool.request(600)
    assert pool.target(600) == 2


def test_lost_refused_and_spare_nodes() -> None:
    pool = Pool(PoolPolicy(least=2), idle=["a", "b", "c", "d"])
    pool.lost(["b"])
    assert pool.idle == ("a", "c", "d")
    assert pool.surplus(0) == 1
    assert pool.release(0) == ["d"]
    assert pool.release(0) == []
    pool.lost(["a", "c"])
    pool.ordered(0, 2)
    assert pool.wanted(0) == 0
    pool.refused(1)
    assert pool.wanted(0) == 1


def naive_target(requests: list[tuple[float, int]], now: float, policy: PoolPolicy) -> int:
    """In exact arithmetic, from all requests there ever were."""
    count = sum(n for at, n in requests if at >= now - policy.memory)
    age = now - requests[0][0]
    seen = max(policy.provisioning, min(policy.memory, age))
    expected = -(-Fraction(count) * Fraction(policy.provisioning) // Fraction(seen))
    return int(min(max(expected, policy.least), policy.most))


@QUICK
@given(st.lists(st.tuples(st.integers(0, 400), st.integers(1, 3)), min_size=1, max_size=30), st.integers(1, 150))
def test_the_target_is_what_one_provisioning_time_will_ask_for(
    requests: list[tuple[int, int]], provisioning: int
) -> None:
    policy = PoolPolicy(provisioning=provisioning, least=1, most=20, memory=200)
    pool = Pool(policy)
    asked: list[tuple[float, int]] = []
    for at, n in sorted(requests):
        pool.request(at, n)
        asked.append((at, n))
        assert pool.target(at) == naive_target(asked, at, policy)
    for now in (400, 500, 550, 601):
        assert pool.target(now) == naive_target(asked, now, policy)


@QUICK
@given(st.lists(st.tuples(st.sampled_from(["request", "tick", "back"]), st.integers(1, 3)), max_size=60))
def test_no_node_is_lost_or_given_twice_and_everyone_is_served_in_the_end(steps: list[tuple[str, int]]) -> None:
    pool = Pool(PoolPolicy(provisioning=30, least=1, most=5), idle=["n0"])
    known, used, now, asked, due = 1, [], 0.0, 0, []
    for step, n in [*steps, *[("tick", 3)] * 20]:
        if step == "request":
            used += pool.request(now, n)
            asked += n
        elif step == "back" and used:
            back, used = used[:n], used[n:]
            asked -= len(back)
            used += pool.returned(back)
        else:
            now += 10.0 * n
            names = [f"n{known + i}" for i in range(sum(1 for at in due if at <= now))]
            known += len(names)
            due = [at for at in due if at > now]
            used += pool.arrived(now, names)
        order = pool.wanted(now)
        pool.ordered(now, order)
        due += [now + 30.0] * order
        assert len(set(used) | set(pool.idle)) == len(used) + len(pool.idle) == known
        assert pool.waiting == asked - len(used)
        assert not (pool.waiting and pool.idle)
        assert pool.wanted(now) == 0
    assert pool.waiting == 0


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(Invalid, match="needs 0 <= least <= most, got 3 and 2"):
        PoolPolicy(least=3, most=2)
    with pytest.raises(Invalid, match="provisioning must take more than 0 seconds, got 0"):
        PoolPolicy(provisioning=0)
    with pytest.raises(Invalid, match="memory must be more than 0 seconds, got -1"):
        PoolPolicy(memory=-1)
    pool = Pool(idle=["a"])
    with pytest.raises(Invalid, match="one node or more can be requested, got 0"):
        pool.request(0, 0)
    with pytest.raises(Invalid, match="node a stands by already"):
        pool.returned(["a"])
