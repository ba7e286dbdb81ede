"""The coordinator by hand-worked examples: what it says when all is well, when nodes go, and when they come back."""

from __future__ import annotations

import pytest
from driving import Driver, chain, down_for_two_epochs, task, two_nodes, works

from holdfast.errors import Invalid
from holdfast.runtime.messages import (
    AnswerOverdue,
    CapacityLifted,
    EpochDone,
    Halt,
    Publish,
    Report,
    Run,
    RunBroken,
    RunDone,
)
from holdfast.runtime.settings import Settings
from holdfast.topology import Operator, Stream, Topology


def test_an_epoch_without_trouble_is_exact_final_and_done() -> None:
    driver = Driver(chain(1, 2, 1), nodes=2)
    driver.join(0, 1)
    driver.arrive(0)
    run = driver.only(Run)
    assert run.ingest == 0 and works(run) == {
        "A/0": (0, 0, "checkpoint"),
        "A/1": (0, 0, "checkpoint"),
        "B/0": (0, 0, "checkpoint"),
    }
    driver.finish(run)
    assert driver.only(Publish).outputs == ((0, task("B/0")),) and driver.only(Publish).kind == "final"
    assert driver.only(EpochDone).epoch == 0
    driver.arrive(1)
    assert works(driver.only(Run))["A/0"] == (1, 1, "local")


def test_a_promoted_replica_needs_no_restore_and_no_replay() -> None:
    driver = Driver(chain(1, 1, 1), nodes=3, replicas=(task("A/0"), task("B/0")))
    driver.join(0, 1, 2)
    for epoch in range(3):
        driver.epoch(epoch)
    driver.arrive(3)
    run = driver.only(Run)
    dying = driver.home("A/0")
    twin = driver.parts.assignment.replicas[task("A/0")].node
    driver.lose(int(dying[-1]))
    assert "A/0" in driver.records("promoted")[0]["tasks"]
    driver.tell(RunBroken(run.number))
    again = driver.only(Run)
    assert again.ingest == 3 and works(again)["A/0"] == (3, 3, "local") and driver.home("A/0") == twin
    assert not works(again, "tentative") and not works(again, "side")


def test_an_answer_comes_in_the_epoch_of_the_failure_tentative_where_input_is_missing() -> None:
    driver = two_nodes(capacity=2.0)
    driver.arrive(5)
    run = driver.only(Run)
    driver.lose(1)
    driver.tell(RunBroken(run.number))
    again = next(each for each in driver.of(Run) if each.kind == "epoch")
    assert again.ingest == 5
    assert works(again) == {"A/0": (5, 5, "local")}
    assert works(again, "tentative") == {"B/0": (5, 5, "fork")}
    fork = next(work for work in again.works if work.lane == "tentative")
    assert fork.fidelity == pytest.approx(0.5) and fork.start == 4
    driver.finish(again)
    (said,) = driver.of(Publish)
    assert (said.kind, said.outputs) == ("tentative", ((5, task("B/0")),))
    assert said.fidelity == driver.records("epoch")[0]["fidelity"] == pytest.approx(0.25), "B/1 says nothing at all"
    assert driver.only(EpochDone).epoch == 5
    assert driver.position("B/0") == 4, "the exact timeline is not touched"
    driver.arrive(6)
    following = next(work for work in driver.only(Run).works if work.lane == "tentative")
    assert (following.origin, following.start, following.fork) == ("local", 5, fork.fork)


def one_of_two_paths_lost(lost: str) -> Driver:
    """S to A to B and S to C to D, a node for each task; in epoch 1 that of this task is gone."""
    topology = Topology(
        (Operator("S", 1, costs=(0.0,)), *(Operator(name, stateful=True) for name in ("A", "B", "C", "D"))),
        (Stream("S", "A", "full"), Stream("A", "B", "full"), Stream("S", "C", "full"), Stream("C", "D", "full")),
    )
    driver = Driver(topology, nodes=4, capacity=1.0)
    driver.join(0, 1, 2, 3)
    driver.epoch(0)
    driver.lose(int(driver.home(lost)[-1]))
    driver.arrive(1)
    return driver


def test_what_is_not_downstream_of_a_failure_goes_on_exactly() -> None:
    driver = one_of_two_paths_lost("A/0")
    run = driver.only(Run)
    assert works(run) == {"C/0": (1, 1, "local"), "D/0": (1, 1, "local")}
    assert works(run, "tentative") == {"A/0": (1, 1, "checkpoint"), "B/0": (1, 1, "fork")}
    driver.finish(run)
    final, tentative = driver.of(Publish)
    assert (final.kind, final.outputs) == ("final", ((1, task("D/0")),))
    assert (tentative.kind, tentative.outputs) == ("tentative", ((1, task("B/0")),))
    assert driver.records("epoch")[0]["queries"] == {"B": 0.5, "D": 1.0}, "A/0 has not seen epoch 0"


def test_only_ancestors_are_computed_again_on_the_side() -> None:
    topology = Topology(
        (Operator("S", 1, costs=(0.0,)), *(Operator(name, stateful=True) for name in ("A", "B", "C"))),
        (Stream("S", "A", "full"), Stream("A", "B", "full"), Stream("S", "C", "full")),
    )
    driver = Driver(topology, nodes=3)
    driver.join(0, 1, 2)
    for epoch in range(3):
        driver.epoch(epoch)
    driver.lose(int(driver.home("B/0")[-1]))
    run = driver.only(Run)
    assert run.kind == "replay"
    assert works(run) == {"B/0": (0, 2, "checkpoint")} and works(run, "side") == {"A/0": (0, 2, "checkpoint")}
    assert driver.position("A/0") == 2, "its live state is not touched"


def test_kept_outputs_are_read_instead_of_computed_again() -> None:
    run = down_for_two_epochs().only(Run)
    assert works(run) == {"A/1": (0, 6, "checkpoint"), "B/0": (5, 6, "local"), "B/1": (0, 6, "checkpoint")}
    assert works(run, "side") == {"A/0": (0, 4, "checkpoint")}, "nothing after the failure is computed twice"
    assert dict(run.buffers) == {task("A/0"): ("node-0", 5, 6)}


def test_source_replay_computes_everything_again() -> None:
    run = down_for_two_epochs(recovery="source-replay").only(Run)
    assert works(run, "side") == {"A/0": (0, 6, "checkpoint")} and not run.buffers


def test_upstream_backup_keeps_outputs_before_any_failure() -> None:
    run = down_for_two_epochs(recovery="upstream-backup").only(Run)
    assert not works(run, "side") and dict(run.buffers) == {task("A/0"): ("node-0", 0, 6)}


def test_blocking_recovery_waits_for_room_for_all() -> None:
    driver = two_nodes(capacity=2.0, recovery="blocking")
    driver.lose(1)
    driver.arrive(5)
    assert not driver.of(Run)
    driver.join(2)
    replay = driver.only(Run)
    assert replay.kind == "replay" and works(replay) == {"A/1": (0, 4, "checkpoint"), "B/1": (0, 4, "checkpoint")}
    driver.finish(replay)
    live = driver.only(Run)
    assert live.ingest == 5 and len(works(live)) == 4


def test_outputs_are_kept_for_those_who_miss_them_alone() -> None:
    driver = one_of_two_paths_lost("B/0")
    assert [str(work.task) for work in driver.only(Run).works if work.keep] == ["A/0"]


def test_progress_made_before_another_failure_is_kept() -> None:
    driver = Driver(chain(1, 1, 1), nodes=4, replay_chunk=2, capacity=2.0)
    driver.join(0, 1, 2, 3)
    for epoch in range(6):
        driver.epoch(epoch)
    driver.lose(int(driver.home("B/0")[-1]))
    driver.finish(driver.only(Run))
    assert driver.position("B/0") == 1
    under_way = driver.only(Run)
    spare = next(
        n
        for n in range(4)
        if f"node-{n}" in driver.parts.members.nodes and f"node-{n}" not in {driver.home("A/0"), driver.home("B/0")}
    )
    driver.lose(spare)
    driver.tell(RunBroken(under_way.number))
    again = driver.only(Run)
    assert works(again) == {"B/0": (2, 3, "local")}
    assert works(again, "side") == {"A/0": (2, 3, "local")}, "the side goes on where it was left, too"


def test_a_second_failure_joins_the_recovery() -> None:
    driver = Driver(chain(1, 2, 2), nodes=4, capacity=2.0)
    driver.join(0, 1, 2, 3)
    for epoch in range(3):
        driver.epoch(epoch)
    driver.lose(int(driver.home("B/0")[-1]))
    first = driver.only(Run)
    driver.lose(int(driver.home("B/1")[-1]))
    assert not driver.of(Run), "one replay at a time"
    driver.tell(RunBroken(first.number))
    both = driver.only(Run)
    assert set(works(both)) == {"B/0", "B/1"}


def test_a_run_that_ends_after_its_node_was_lost_does_not_count_there() -> None:
    driver = two_nodes(capacity=2.0)
    driver.arrive(5)
    run = driver.only(Run)
    driver.lose(1)
    driver.join(1)
    driver.finish(run)
    assert driver.position("A/0") == 5
    assert driver.position("A/1") == -1, "the node that has this name now knows nothing of epoch 5"
    assert driver.only(Publish).kind == "final", "but its output was safe, and is exact"


def test_a_replica_promoted_in_the_midst_of_a_run_has_done_its_work() -> None:
    driver = Driver(chain(1, 1), nodes=2, replicas=(task("A/0"),))
    driver.join(0, 1)
    driver.epoch(0)
    driver.arrive(1)
    run = driver.only(Run)
    driver.lose(int(driver.home("A/0")[-1]))
    driver.finish(run)
    assert driver.position("A/0") == 1 and not driver.of(Run)


def test_a_function_that_fails_ends_the_job() -> None:
    driver = Driver(chain(1, 1), nodes=1)
    driver.join(0)
    driver.arrive(0)
    driver.finish(driver.only(Run), "failed", of="A/0")
    assert driver.only(Halt).message == "failed"
    assert driver.arrive(1) == []


def test_a_function_that_fails_on_incomplete_input_only_falls_silent() -> None:
    driver = two_nodes(capacity=2.0)
    driver.lose(1)
    driver.arrive(5)
    driver.finish(driver.only(Run), "failed", of="B/0", lane="tentative")
    assert not driver.of(Halt) and driver.records("mute")[0]["task"] == "B/0"
    silent = driver.only(Run)
    assert silent.ingest == 5 and not works(silent, "tentative"), "what is healthy goes on without it"
    driver.finish(silent)
    driver.join(2)
    driver.settle()
    driver.arrive(6)
    assert len(works(driver.only(Run))) == 4


def test_kept_outputs_that_are_gone_are_computed_again() -> None:
    driver = down_for_two_epochs()
    run = driver.only(Run)
    driver.finish(run, "blocked", of="B/1")
    again = driver.only(Run)
    assert not again.buffers and works(again, "side") == {"A/0": (0, 6, "checkpoint")}


def test_barriers_that_never_come_end_the_job_at_last() -> None:
    driver = Driver(chain(1, 1), nodes=1)
    driver.join(0)
    driver.arrive(0)
    for _ in range(20):
        if driver.of(Halt):
            return
        driver.finish(driver.only(Run), "blocked", of="A/0")
    raise AssertionError("it goes on for ever")


def test_state_that_is_missing_is_restored() -> None:
    driver = Driver(chain(1, 1, 1), nodes=2)
    driver.join(0, 1)
    driver.epoch(0)
    driver.arrive(1)
    driver.finish(driver.only(Run), "missing", of="A/0")
    replay = next(run for run in driver.of(Run) if run.kind == "replay")
    assert works(replay) == {"A/0": (0, 0, "checkpoint")}


def test_nobody_else_is_coming_so_those_who_are_there_carry_everything() -> None:
    driver = two_nodes(capacity=2.0)
    driver.lose(1)
    assert len(driver.parts.assignment.down) == 2
    driver.tell(CapacityLifted())
    assert not driver.parts.assignment.down
    driver.settle()
    driver.join(2)
    driver.lose(2)
    driver.lose(0)
    driver.join(3)
    assert len(driver.parts.assignment.down) == 2, "somebody came after all: capacity counts again"


def test_what_is_healthy_goes_on_even_when_nobody_can_answer() -> None:
    driver = Driver(chain(1, 1, 1), nodes=2, capacity=1.0)
    driver.join(0, 1)
    driver.epoch(0)
    driver.lose(int(driver.home("B/0")[-1]), answer_due=True)
    driver.arrive(1)
    asked = driver.only(Run)
    assert works(asked) == {"A/0": (1, 1, "local")} and works(asked, "tentative") == {"B/0": (1, 1, "checkpoint")}
    driver.finish(asked, "failed", of="B/0", lane="tentative")
    assert driver.records("mute")[0]["task"] == "B/0"
    run, replay = driver.of(Run)
    assert works(run) == {"A/0": (1, 1, "local")} and run.works[0].keep and not works(run, "tentative")
    assert replay.kind == "replay", "recovery does not wait for a run that cannot answer"
    driver.finish(run)
    assert not driver.of(Publish) and driver.records("epoch")[0]["fidelity"] == 0 and driver.only(EpochDone).epoch == 1


def test_nobody_speaks_tentatively_when_nobody_hears_it() -> None:
    driver = Driver(chain(1, 2, 1, 1), nodes=4, capacity=1.0)
    driver.join(0, 1, 2, 3)
    driver.epoch(0)
    driver.lose(int(driver.home("A/0")[-1]))
    driver.arrive(1)
    heard = driver.only(Run)
    assert set(works(heard, "tentative")) == {"B/0", "C/0"}
    driver.finish(heard, "failed", of="C/0", lane="tentative")
    run = driver.only(Run)
    assert works(run) == {"A/1": (1, 1, "local")} and not works(run, "tentative"), "B/0 would tell it to nobody"


def test_an_epoch_is_held_when_nothing_at_all_can_run() -> None:
    driver = Driver(chain(1, 1), nodes=1)
    driver.join(0)
    driver.epoch(0)
    driver.lose(0)
    driver.arrive(1)
    assert not driver.of(Run) and not driver.of(EpochDone)
    driver.join(1)
    run = driver.only(Run)
    assert run.ingest == 1 and works(run, "tentative") == {"A/0": (1, 1, "checkpoint")}
    driver.finish(run)
    assert driver.only(EpochDone).epoch == 1 and driver.records("epoch")[0]["fidelity"] == 0.5
    assert works(driver.only(Run)) == {"A/0": (0, 1, "checkpoint")}, "what it missed follows"


def test_those_who_are_nearly_there_join_although_others_are_still_down() -> None:
    driver = Driver(chain(1, 1, 3), nodes=4, capacity=1.0)
    driver.join(0, 1, 2, 3)
    for epoch in range(3):
        driver.epoch(epoch)
    driver.lose(*(int(driver.home(lost)[-1]) for lost in ("B/0", "B/1")))
    driver.join(4)
    back = next(name for name in ("B/0", "B/1") if task(name) in driver.parts.assignment.primaries)
    replay = driver.only(Run)
    driver.arrive(3)
    live = driver.only(Run)
    driver.finish(replay)
    driver.finish(live)
    again = next(run for run in driver.of(Run) if run.kind == "replay")
    driver.arrive(4)
    assert not driver.of(Run), "it is one epoch behind: the next one waits for it"
    driver.finish(again)
    assert back in works(driver.only(Run)) and len(driver.parts.assignment.down) == 1


def test_a_source_with_a_backlog_does_not_run_away_from_those_who_catch_up() -> None:
    driver = Driver(chain(1, 1, 2), nodes=3, capacity=1.0, checkpoint_every=100, replay_chunk=4)
    driver.join(0, 1, 2)
    for epoch in range(20):
        driver.epoch(epoch)
    driver.lose(int(driver.home("B/1")[-1]))
    driver.join(3)
    replay = next(run for run in driver.of(Run) if run.kind == "replay")
    for epoch in (20, 21):
        driver.arrive(epoch)
        driver.finish(driver.only(Run))
    driver.arrive(22)
    assert not driver.of(Run), "half a chunk of epochs, then those behind gain on it"
    driver.finish(replay)
    assert {run.kind for run in driver.of(Run)} == {"epoch", "replay"}


def test_reports_of_runs_that_are_over_are_passed_over() -> None:
    driver = Driver(chain(1, 1), nodes=1)
    driver.join(0)
    driver.arrive(0)
    run = driver.only(Run)
    driver.finish(run)
    assert driver.tell(RunDone(run.number, (Report(task("A/0"), "exact", "node-0", "committed", 0),))) == []


@pytest.mark.parametrize("what", ["nodes", "checkpoint_every", "replay_chunk"])
def test_settings_must_make_sense(what: str) -> None:
    with pytest.raises(Invalid, match=f"{what} must be at least 1, got 0"):
        Settings(**{what: 0})


def test_settings_name_what_they_know() -> None:
    with pytest.raises(Invalid, match="recovery must be one of incremental, blocking"):
        Settings(recovery="hope")  # type: ignore[arg-type]
    with pytest.raises(Invalid, match="replica S/0: only tasks with inputs"):
        Driver(chain(1, 1), replicas=(task("S/0"),))


def test_an_answer_that_is_due_comes_before_the_recovery_that_would_keep_its_nodes_busy() -> None:
    driver = two_nodes(capacity=8.0)
    driver.lose(1, answer_due=True)
    assert driver.parts.assignment.primaries[task("A/1")].node == "node-0" and not driver.of(Run)
    driver.arrive(5)
    run = driver.only(Run)
    assert run.ingest == 5
    driver.finish(run)
    assert [run.kind for run in driver.of(Run)] == ["replay"]


def test_a_recovery_does_not_wait_for_an_epoch_that_does_not_come() -> None:
    driver = two_nodes(capacity=8.0)
    driver.lose(1, answer_due=True)
    assert not driver.of(Run)
    driver.tell(AnswerOverdue())
    assert driver.only(Run).kind == "replay"
