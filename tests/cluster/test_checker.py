"""The checker of histories finds what it is for in logs made by hand, and nothing in those that are right."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from checker import KINDS, Delivery, Fault, judged

KEYS = {"count/0": ("a", "b"), "count/1": ("c",)}
EPOCHS = 6
EXPECTED = [(epoch, key, 10 * (epoch + 1)) for epoch in range(EPOCHS) for key in ("a", "b", "c")]
FAULT = Fault("cut", ("w1",), 2.5, 4.5)
Log = list[Delivery]


def said(epoch: int, task: str, kind: str = "final", at: float | None = None, driver: str = "first") -> Delivery:
    rows = tuple((key, 10 * (epoch + 1)) for key in KEYS[task])
    return Delivery(float(epoch) if at is None else at, driver, epoch, task, kind, 1.0, rows)  # type: ignore[arg-type]


def good() -> Log:
    """Epoch n at n seconds; while w1 is cut off count/1 answers tentatively, and later for good."""
    log = [said(epoch, task) for epoch in range(3) for task in KEYS]
    for epoch in (3, 4):
        log += [said(epoch, "count/0"), replace(said(epoch, "count/1", "tentative"), fidelity=0.5, rows=(("c", 7),))]
    log += [said(3, "count/1", at=4.8), said(4, "count/1", at=4.9)]
    return log + [said(5, task) for task in KEYS]


def test_a_right_history_is_right_and_its_times_are_told() -> None:
    verdict = judged([FAULT], good(), EXPECTED, EPOCHS)
    assert verdict.right and verdict.words() == "right" and verdict.epochs == EPOCHS and verdict.again == 0
    (seen,) = verdict.faults
    assert (seen.next_s, seen.of, seen.fidelity) == (0.5, "final", 1.0)
    assert seen.exact_s == 2.5, "epoch 5: the first new one of which nothing tentative was said"
    assert seen.gap_s == 1.0


def without(log: Log, epoch: int, task: str, kind: str = "final") -> Log:
    return [each for each in log if (each.epoch, each.task, each.kind) != (epoch, task, kind)]


def _value(log: Log, epoch: int, task: str, rows: tuple[tuple[str, int], ...]) -> Log:
    return [replace(e, rows=rows) if (e.epoch, e.task, e.kind) == (epoch, task, "final") else e for e in log]


BROKEN: dict[str, tuple[Callable[[Log], Log], dict[str, int]]] = {
    "an output is missing": (lambda log: without(log, 2, "count/0"), {"lost": 2}),
    "the end is missing": (lambda log: [e for e in log if e.epoch < 5], {"lost": 3}),
    "a row is missing": (lambda log: _value(log, 1, "count/0", (("a", 20),)), {"lost": 1}),
    "a row comes twice": (lambda log: _value(log, 1, "count/1", (("c", 20), ("c", 20))), {"doubled": 1}),
    "a row comes from two tasks": (lambda log: _value(log, 1, "count/1", (("c", 20), ("a", 20))), {"doubled": 1}),
    "an output is taken twice": (lambda log: [*log, said(5, "count/1", at=5.5)], {"doubled": 1, "out of order": 1}),
    "an epoch counted twice": (lambda log: _value(log, 4, "count/1", (("c", 60),)), {"wrong value": 1}),
    "a row of nowhere": (lambda log: _value(log, 4, "count/1", (("c", 50), ("x", 1))), {"wrong value": 1}),
    "epochs change places": (lambda log: [log[2], log[3], log[0], log[1], *log[4:]], {"out of order": 2}),
    "tentative after final": (
        lambda log: [*log, said(5, "count/1", "tentative", at=5.5)],
        {"out of order": 1},
    ),
    "never settled": (lambda log: without(log, 3, "count/1"), {"lost": 1, "tentative without a final": 1}),
    "the old driver speaks on": (
        lambda log: [*(replace(e, driver="second") for e in log[:-1]), replace(log[-1], driver="first")],
        {},
    ),
    "the old driver comes back": (
        lambda log: [log[0], *(replace(e, driver="second") for e in log[1:-1]), log[-1]],
        {"superseded": 1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_wrong_is_named(what: str) -> None:
    change, kinds = BROKEN[what]
    verdict = judged([FAULT], change(good()), EXPECTED, EPOCHS)
    found = {kind: sum(each.kind == kind for each in verdict.violations) for kind in KINDS}
    assert {kind: count for kind, count in found.items() if count} == kinds
    assert verdict.right == (not kinds) and all(kind in verdict.words(9) for kind in kinds)


def test_what_the_sink_had_and_left_out_counts_for_nothing() -> None:
    log = good()
    again = [replace(each, time=9.0, again=True, driver="first") for each in log]
    verdict = judged([FAULT], [*log, Delivery.of(_line(log[0])), *again], EXPECTED, EPOCHS)
    assert verdict.right and verdict.again == len(log) + 1


def _line(each: Delivery) -> dict[str, object]:
    names = ("time", "driver", "epoch", "task", "kind", "fidelity", "rows")
    return {**{name: getattr(each, name) for name in names}, "again": True}


def test_epochs_that_only_the_job_knows_of_are_missed() -> None:
    log = [each for each in good() if each.epoch < 5]
    assert judged([], log, EXPECTED).violations[:1] == ()
    assert {each.kind for each in judged([], log, EXPECTED, EPOCHS).violations} == {"lost"}


def test_a_fault_without_an_answer_after_it_has_no_times() -> None:
    verdict = judged([Fault("driver", ("driver",), 9.0)], good(), EXPECTED)
    assert (verdict.faults[0].next_s, verdict.faults[0].exact_s) == (None, None)


def test_each_fault_is_told_up_to_the_next() -> None:
    faults = [Fault("frozen", ("w2",), 4.95), FAULT]
    first, second = judged(faults, good(), EXPECTED).faults
    assert (first.fault.what, first.exact_s) == ("cut", None), "not before the second came"
    assert second.next_s == second.exact_s == pytest.approx(0.05)


def test_what_comes_when_a_fault_is_settled_is_not_its_doing() -> None:
    log = [*good(), said(6, "count/0", "tentative")]
    settled = replace(FAULT, settled=5.0)
    assert judged([FAULT], log, EXPECTED).faults[0].exact_s is None
    assert judged([settled], log, EXPECTED).faults[0].exact_s == 2.5


def test_an_answer_is_worth_what_its_least_part_is() -> None:
    log = [said(epoch, task) for epoch in range(3) for task in KEYS]
    log += [replace(said(3, task, "tentative"), fidelity=f) for task, f in zip(KEYS, (1.0, 0.5), strict=True)]
    seen = judged([FAULT], log, EXPECTED).faults[0]
    assert (seen.of, seen.fidelity, seen.exact_s) == ("tentative", 0.5, None)


def test_any_one_output_taken_out_or_changed_is_noticed() -> None:
    """Of random right histories: no single output can go, come twice or have another value without a word."""
    drawn = random.Random(7)
    for _ in range(200):
        log = good()
        at = drawn.choice([n for n, each in enumerate(log) if each.kind == "final"])
        chosen = log[at]
        wrong = replace(chosen, rows=((chosen.rows[0][0], chosen.rows[0][1] + drawn.choice((-1, 1))), *chosen.rows[1:]))
        how = drawn.choice(("gone", "twice", "changed"))
        log[at : at + 1] = {"gone": [], "twice": [chosen, chosen], "changed": [wrong]}[how]
        assert not judged([FAULT], log, EXPECTED, EPOCHS).right, (how, chosen)
