"""The driver alone, on simulated ports: whoever fails beside it, nothing is lost and nobody fails unseen."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from driver_alone import TIMING, Alone, Recorded

from holdfast.errors import HoldfastError, Invalid
from holdfast.runtime.driver import publishing
from holdfast.runtime.driver.durable import GIVE_UP, Durable, StoreRefused
from holdfast.runtime.driver.ports import CodeFailed, Failed, Output, Retry, RunResult
from holdfast.runtime.driver.publishing import BACKLOG, SinkFailed
from holdfast.runtime.driver.running import SUSPICION, TRIES, RunFailed
from holdfast.runtime.driver.telling import LISTENED
from holdfast.runtime.driver.watching import TOGETHER
from holdfast.runtime.messages import NodeInfo, Run, ScaleWanted
from holdfast.runtime.simulation.cluster import SimulatedNodes, SimulatedRunner
from holdfast.runtime.simulation.disk import DiskFiles
from holdfast.runtime.simulation.loop import Environment, VirtualLoop
from holdfast.runtime.simulation.schedule import Timing
from holdfast.runtime.worker.plan import RunPlan
from holdfast.state import Damaged, Unusable, cursor, output
from holdfast.state.entries import document, numbered_names
from holdfast.state.names import task_folder
from holdfast.state.output import STAGED, output_name, place, stage
from holdfast.state.sums import Sums

# Who listens


def test_a_listener_that_raises_is_told_and_dropped_and_others_hear_everything() -> None:
    heard: list[str] = []
    raised: list[str] = []

    def moody(event: Mapping[str, Any]) -> None:
        raised.append(event["kind"])
        raise RuntimeError("not today")

    alone = Alone(listeners=(moody, lambda event: heard.append(event["kind"]))).end()
    assert alone.ended == [None] and alone.head == 5
    (failed,), (dropped,) = alone.events("listener failed"), alone.events("listener dropped")
    assert failed["times"] == 1 and dropped["times"] == LISTENED and dropped["error"] == "RuntimeError: not today"
    assert heard == alone.kinds()
    after = alone.kinds().index("listener dropped")
    assert len(raised) <= after < len(heard), "once it is dropped it hears nothing more"


def test_a_history_that_cannot_be_written_ends_the_job_with_its_word() -> None:
    class Full(Recorded):
        def add(self, event: Mapping[str, Any]) -> None:
            if event["kind"] == "epoch" and event["epoch"] == 3:
                raise OSError("no room for the history")
            super().add(event)

    recorder = Full()
    alone = Alone(recorder=recorder).end()
    (error,) = alone.ended
    assert isinstance(error, RunFailed) and str(error) == "OSError: no room for the history"
    assert alone.source.error is error and recorder.events[-1]["error"] == str(error)


# What the store refuses


class Queues:
    """Durable queues over a store that refuses while ``refusing`` says so."""

    def __init__(self) -> None:
        self.world = Environment()
        self.told: list[tuple[str, Mapping[str, Any]]] = []
        self.failed: list[BaseException] = []
        self.done: list[str] = []
        self.tried: list[tuple[str, float]] = []
        self.refusing: Callable[[str], bool] = lambda name: False
        loop = VirtualLoop(self.world, Random("1 queues"), 0.01)
        self.durable = Durable(loop, loop, lambda kind, fields: self.told.append((kind, fields)), self.failed.append)

    def submit(self, queue: Any, name: str) -> None:
        def work() -> str:
            self.tried.append((name, self.world.now))
            if self.refusing(name):
                raise Unusable(f"cannot write {name}: the disk is full")
            return name

        self.durable.submit(queue, work, self.done.append)

    def run(self, until: float) -> None:
        while not self.durable.idle and not self.failed and self.world.now < until and self.world.step():
            pass


def test_a_queue_keeps_its_order_while_the_store_refuses_and_others_go_on() -> None:
    queues = Queues()
    queues.refusing = lambda name: name == "first" and queues.world.now < 3.0
    for name in ("first", "second", "third"):
        queues.submit("commit", name)
    queues.submit("publish", "beside")
    queues.run(until=10.0)
    assert queues.done == ["beside", "first", "second", "third"] and queues.durable.idle and not queues.failed
    tries = [at for name, at in queues.tried if name == "first"]
    pauses = [later - earlier for earlier, later in pairwise(tries)]
    assert len(tries) > 3 and pauses[-1] > 2 * pauses[0], "each pause is longer than the one before"
    assert queues.told[0][0] == "store unusable" and queues.told[0][1]["retry_seconds"] > 0, "the page tells it"
    assert queues.told[0][1]["message"] == "cannot write first: the disk is full"
    assert queues.told[-1][0] == "store usable" and queues.told[-1][1]["after_seconds"] > 2


def test_a_store_that_takes_nothing_for_too_long_ends_the_job_with_its_word() -> None:
    queues = Queues()
    queues.refusing = lambda name: True
    queues.submit("commit", "first")
    queues.submit("commit", "second")
    queues.run(until=10 * GIVE_UP)
    (error,) = queues.failed
    assert isinstance(error, StoreRefused)
    assert str(error) == f"cannot write first: the disk is full; it was asked again for {GIVE_UP:.0f} s"
    assert GIVE_UP < queues.world.now < GIVE_UP + 5 and not queues.done
    assert {name for name, _ in queues.tried} == {"first"} and [kind for kind, _ in queues.told] == ["store unusable"]


def test_anything_else_that_a_write_raises_ends_the_job_at_once() -> None:
    queues = Queues()

    def work() -> None:
        raise HoldfastError("a newer writer has the store")

    queues.durable.submit("commit", work, queues.done.append)
    queues.run(until=10.0)
    assert [str(error) for error in queues.failed] == ["a newer writer has the store"] and not queues.told


# Who is there


def runs_of(alone: Alone) -> list[Run]:
    """The runs that will be asked for."""
    runs: list[Run] = []
    alone.driver.watchers.append(lambda _, answer: runs.extend(each for each in answer if isinstance(each, Run)))
    return runs


def test_a_node_that_goes_while_the_job_gathers_is_no_ghost() -> None:
    alone = Alone(node_count=3)
    runs = runs_of(alone)
    alone.until(lambda: len(alone.driver.nodes) == 2)
    alone.nodes.kill(["node-1"])
    alone.until(lambda: set(alone.driver.nodes) == {"node-0"})
    assert not alone.driver.watching.gathered, "it was only seen for a while"
    alone.nodes.boot(["node-2", "node-3"])
    alone.end()
    used = {work.node for run in runs for work in run.works}
    assert used and "node-1" not in used and alone.driver.snapshot.nodes == ("node-0", "node-2", "node-3")
    assert not alone.events("nodes lost") and not alone.events("run broken")


class Falling(SimulatedNodes):
    """When somebody was seen to be gone, node-1 goes too, ``later`` seconds after that look."""

    later = TOGETHER / 2
    hit = False

    def look(self) -> Mapping[str, NodeInfo]:
        seen = super().look()
        if "node-0" not in seen and not self.hit:
            self.hit = True
            self.world.after(self.later, lambda: self.kill(["node-1"]))
        return seen


class FallingLater(Falling):
    later = 20 * TOGETHER


@pytest.mark.parametrize(
    ("kind", "failures"), [(Falling, [["node-0", "node-1"]]), (FallingLater, [["node-0"], ["node-1"]])]
)
def test_losses_close_to_one_another_are_one_failure(kind: type[Falling], failures: list[list[str]]) -> None:
    names = tuple(f"node-{number}" for number in range(4))
    alone = Alone(epochs=30, nodes=kind, present=names, node_count=4)
    alone.until(lambda: alone.head == 3)
    alone.nodes.kill(["node-0"])
    alone.end()
    assert [event["nodes"] for event in alone.events("nodes lost")] == failures and alone.ended == [None]


class Misled(SimulatedNodes):
    """In its twentieth look a fault is due that asks for what is not there."""

    looks = 0

    def look(self) -> Mapping[str, NodeInfo]:
        self.looks += 1
        if self.looks == 20:
            raise Invalid("fault 'kill domain up at 3s': no domain 'up'; domains: left, right")
        return super().look()


def test_a_fault_that_cannot_be_ends_the_job_with_its_word() -> None:
    (error,) = Alone(epochs=1000, nodes=Misled).end().ended
    assert isinstance(error, Invalid) and "no domain 'up'" in str(error)


# Runs that fail


class Flaky:
    """A runner of which the first runs fail for no reason that anybody can see."""

    def __init__(self, usual: SimulatedRunner, failures: int, error: Exception | None) -> None:
        self.usual = usual
        self.error = error
        self.failures = failures
        self.started: list[tuple[int, float]] = []
        self.save, self.cancel, self.cancel_save, self.close = usual.save, usual.cancel, usual.cancel_save, usual.close

    def start(self, plan: RunPlan, batch: object, done: Callable[[RunResult | Failed], None]) -> None:
        world = self.usual._nodes.world
        self.started.append((plan.run, world.now))
        if len(self.started) > self.failures:
            self.usual.start(plan, batch, done)
        else:
            error = self.error or ConnectionError(f"fetch failed in run {plan.run}")
            world.after(0.05, lambda: done(Failed(error)))


def flaky(failures: int, error: Exception | None = None) -> tuple[Alone, Flaky]:
    made: list[Flaky] = []

    def runner(usual: SimulatedRunner) -> Flaky:
        made.append(Flaky(usual, failures, error))
        return made[0]

    return Alone(runner=runner), made[0]


def test_a_run_that_fails_with_nobody_lost_is_tried_again() -> None:
    alone, runner = flaky(TRIES)
    alone.end()
    assert alone.ended == [None] and alone.head == 5
    broken = alone.events("run broken")
    assert len(broken) == TRIES and broken[0]["reason"] == "ConnectionError: fetch failed in run 0"
    assert runner.started[1][1] - runner.started[0][1] >= SUSPICION, "a lost node had time to be noticed"


def test_a_run_that_fails_by_the_user_s_code_is_tried_once_more_at_once() -> None:
    broken = CodeFailed("KeyError: 'a' (job.py, line 3, in ratio)")
    broken.__cause__ = KeyError("a")
    alone, runner = flaky(1, broken)
    assert alone.end().ended == [None] and alone.head == 5
    assert runner.started[1][1] - runner.started[0][1] < SUSPICION, "no node is to blame"
    alone, runner = flaky(1000, broken)
    (error,) = alone.end().ended
    assert isinstance(error, RunFailed) and len(runner.started) == 2 and error.__cause__ is broken.__cause__
    assert str(error) == "epoch 0 failed in 2 tries: KeyError: 'a' (job.py, line 3, in ratio)"


def test_a_run_that_keeps_failing_with_nobody_lost_ends_the_job_and_names_the_cause() -> None:
    alone, runner = flaky(1000)
    alone.end()
    (error,) = alone.ended
    assert isinstance(error, RunFailed) and len(runner.started) == TRIES + 1
    assert str(error).startswith(f"Spark could not finish a run in {TRIES} tries: ConnectionError: fetch failed in run")
    assert alone.source.error is error and alone.head == -1


class Plans:
    """A runner that remembers what it was given, and says of every work that it took so many seconds."""

    def __init__(self, usual: SimulatedRunner, seconds: Callable[[int], float]) -> None:
        self.usual, self.seconds = usual, seconds
        self.widths: list[tuple[int, ...]] = []
        self.save, self.cancel, self.cancel_save, self.close = usual.save, usual.cancel, usual.cancel_save, usual.close

    def start(self, plan: RunPlan, batch: object, done: Callable[[RunResult | Failed], None]) -> None:
        number = len(self.widths)
        self.widths.append(plan.widths)

        def told(result: RunResult | Failed) -> None:
            assert isinstance(result, RunResult)
            reports = [replace(each, took=self.seconds(number)) for each in result.reports]
            done(RunResult(tuple(reports), result.pieces))

        self.usual.start(plan, batch, told)


def widths(took: float, timing: Timing = TIMING) -> list[tuple[int, ...]]:
    """Of twelve epochs of three works on a node of two cores. In the sixth each work took so many seconds."""
    made: list[Plans] = []

    def runner(usual: SimulatedRunner) -> Plans:
        made.append(Plans(usual, lambda number: took if number == 5 else 0.001))
        return made[0]

    class TwoCores(SimulatedNodes):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self.cores = 2

    alone = Alone(epochs=12, runner=runner, nodes=TwoCores, present=("node-0",), node_count=1, timing=timing).end()
    assert alone.ended == [None]
    return made[0].widths


def test_epochs_with_little_to_do_have_one_slot_for_each_place() -> None:
    """A x2 and B: two levels of two slots and one; together when the last three epochs took little."""
    assert widths(0.2) == [*[(2, 1)] * 3, *[(1,)] * 3, *[(2, 1)] * 3, *[(1,)] * 3]


def test_on_a_busy_machine_little_is_what_takes_less_than_all_else() -> None:
    busy = replace(TIMING, run=2.0)
    assert widths(0.07, busy) == [*[(2, 1)] * 3, *[(1,)] * 9]
    assert widths(0.1, busy) == [*[(2, 1)] * 3, *[(1,)] * 3, *[(2, 1)] * 3, *[(1,)] * 3]


def test_names_that_were_staged_go_when_nobody_waits() -> None:
    alone = Alone(epochs=12)
    alone.until(lambda: alone.head == 11)
    left = {name.split("-")[1] for name in alone.store("driver").files.list(STAGED)}
    assert len(left) <= 1, "of the last run alone"


# The sink


class Refusing:
    """A sink that raises so often over the first output of an epoch."""

    def __init__(self, times: int, epoch: int = 0, error: type[Exception] = ConnectionError) -> None:
        self.error = error
        self.times = times
        self.epoch = epoch
        self.taken: list[Output] = []
        self.raised = 0

    def __call__(self, output: Output) -> None:
        if output.epoch == self.epoch and self.raised < self.times:
            self.raised += 1
            raise self.error("not this one")
        self.taken.append(output)


def ids(taken: Sequence[Output]) -> list[tuple[int, str, str]]:
    return [output.id for output in taken]


def test_what_a_sink_refuses_comes_again_after_a_pause_and_before_everything_else() -> None:
    usual, sink = Alone(epochs=12).end(), Refusing(times=4)
    alone = Alone(epochs=12, sink=sink).end()
    assert sink.raised == 4 and ids(sink.taken) == ids(usual.taken) and len(usual.taken) > 6
    told = alone.events("sink failed")
    assert [event["tries"] for event in told] == [1, 2, 3, 4]
    assert [event["retry_seconds"] for event in told] == [0.1, 0.2, 0.4, 0.8]
    assert "final output of B/0 in epoch 0: ConnectionError: not this one" in told[0]["output"]


def test_a_sink_that_raises_what_does_not_pass_is_given_an_output_once_more() -> None:
    usual, sink = Alone(epochs=12).end(), Refusing(times=1, error=KeyError)
    assert Alone(epochs=12, sink=sink).end().ended == [None] and ids(sink.taken) == ids(usual.taken)
    sink = Refusing(times=1000, epoch=4, error=KeyError)
    (error,) = Alone(epochs=12, sink=sink).end().ended
    assert isinstance(error, SinkFailed) and sink.raised == 2 and isinstance(error.__cause__, KeyError)
    assert "final output of B/0 in epoch 4: KeyError: 'not this one' (test_driver.py, line " in str(error)


def test_a_sink_that_keeps_refusing_ends_the_job_and_the_next_one_goes_on_there() -> None:
    usual, sink = Alone(epochs=12).end(), Refusing(times=1000, epoch=4)
    alone = Alone(epochs=12, sink=sink).end()
    (error,) = alone.ended
    limit = publishing.TRIES.limit
    assert isinstance(error, SinkFailed) and sink.raised == limit
    assert "final output of B/0 in epoch 4: ConnectionError: not this one (test_driver.py, line " in str(error)
    assert str(error).endswith(f" ({limit} times)")
    again = Alone(epochs=12, after=alone).end()
    assert again.ended == [None]
    assert ids(sink.taken) + ids(again.taken) == ids(usual.taken), "nothing is missing, nothing came twice"


def behind_checkpoints(epoch: int = 9) -> tuple[Refusing, Alone]:
    """A job that ended for its sink, which has had nothing from an epoch on, with checkpoints later than that."""
    sink = Refusing(times=1000, epoch=epoch)
    alone = Alone(epochs=18, sink=sink).end()
    assert isinstance(alone.ended[0], SinkFailed)
    made = [one.epoch for one in alone.store("test").checkpoints()]
    assert min(made) < epoch < max(made), made
    return sink, alone


@pytest.mark.parametrize("how", ["flip", "cut", "lose"])
def test_what_the_sink_has_not_had_is_made_again_though_a_later_checkpoint_is_there(how: str) -> None:
    usual = Alone(epochs=18).end()
    sink, alone = behind_checkpoints()
    name = output_name("final", 9, "B/0")
    alone.disk.damage(f"store/{name}", how)
    again = Alone(epochs=18, after=alone).end()
    assert again.ended == [None] and any(name in note and "made again" in note for note in again.driver.notes)
    assert ids(sink.taken) + ids(again.taken) == ids(usual.taken), "nothing is missing, nothing came twice"
    rows = {output.id: output.table for output in usual.taken}
    assert all(output.table.equals(rows[output.id]) for output in again.taken)


@pytest.mark.parametrize("how", ["flip", "lose"])
def test_a_store_whose_checksums_are_empty_files_goes_on_and_damage_is_found(how: str) -> None:
    """As they were before there were documents, and a cursor that does not say up to where all was delivered."""
    usual = Alone(epochs=18).end()
    sink, alone = behind_checkpoints()
    files, folder = alone.store("test").files, "output/sums/final"
    for (epoch, task), proofs in Sums(files).list("final").items():
        for proof in proofs:
            files.put(f"{folder}/{epoch:012d}-{task_folder(task)}-{proof}", b"", True)
    files.delete_many([f"{folder}/{name}" for name in files.list(folder) if name.endswith(".json")])
    for name in numbered_names(files, "cursor"):
        told = json.loads(files.read(name).to_pybytes())
        assert told.pop("upto") < 9
        plain = {key: told[key] for key in ("token", "number", "final", "tentative")}
        files.put(name, document(files, "cursor", plain), True)
    name = output_name("final", 9, "B/0")
    alone.disk.damage(f"store/{name}", how)
    again = Alone(epochs=18, after=alone).end()
    assert again.ended == [None] and any(name in note and "made again" in note for note in again.driver.notes)
    assert ids(sink.taken) + ids(again.taken) == ids(usual.taken), "nothing is missing, nothing came twice"


def test_a_sink_that_has_had_all_up_to_a_checkpoint_is_not_asked_of_older_outputs_again() -> None:
    alone = Alone(epochs=18)
    alone.end()
    files = alone.store("test").files
    reached = cursor.read(files)
    assert reached is not None and 0 < reached.upto <= max(one.epoch for one in alone.store("test").checkpoints())
    read: list[str] = []
    real = DiskFiles.read

    def noting(self: DiskFiles, name: str) -> pa.Buffer:
        read.append(name)
        return real(self, name)

    with mock.patch.object(DiskFiles, "read", noting):
        Alone(epochs=18, after=alone)
    told = {int(name.rpartition("/")[2][:12]) for name in read if name.startswith("output/sums/final")}
    assert all(epoch > reached.upto for epoch in told), (told, reached.upto)


def test_what_is_made_again_comes_to_the_sink_before_what_came_after_it() -> None:
    usual, sink = Alone(epochs=40).end(), Refusing(times=1000, epoch=9)
    alone = Alone(epochs=40, sink=sink, checkpoint_every=100).end()
    assert alone.head > 10 and not alone.store("test").checkpoints()
    alone.disk.damage(f"store/{output_name('final', 9, 'B/0')}", "cut")
    again = Alone(epochs=40, after=alone).end()
    assert again.ended == [None] and ids(sink.taken) + ids(again.taken) == ids(usual.taken)


def test_what_no_checkpoint_can_make_again_is_refused_with_what_to_do() -> None:
    usual = Alone(epochs=18).end()
    sink, alone = behind_checkpoints()
    name = output_name("final", 9, "B/0")
    store, kept = alone.store("test"), alone.disk.copy()
    for one in store.checkpoints():
        if one.epoch < 9:
            store.files.delete(one.name)
    alone.disk.damage(f"store/{name}", "cut")
    with pytest.raises(Damaged, match=f"{name} is torn.*the sink has not had it yet.*put it back from a copy, or del"):
        Alone(epochs=18, after=alone)
    # Without it, as the message says:
    store.files.delete_many(
        [
            name,
            *(
                f"output/sums/final/{one}"
                for one in store.files.list("output/sums/final")
                if one.startswith("000000000009-")
            ),
        ]
    )
    again = Alone(epochs=18, after=alone).end()
    assert again.ended == [None] and ids(sink.taken) + ids(again.taken) == [
        one for one in ids(usual.taken) if one[:2] != (9, "B/0")
    ]
    # And with a copy:
    alone.disk.put_back(kept)
    assert Alone(epochs=18, after=alone).end().ended == [None]


def rows_of(alone: Alone, name: str) -> dict[int, pa.Table]:
    files = alone.store("test").files
    there = [epoch for epoch, task in output.written(files, "final") if task == name]
    return {epoch: output.read(files, "final", epoch, name) for epoch in there}


@pytest.mark.parametrize("how", ["cut", "lose"])
def test_what_has_to_be_made_again_is_made_though_long_replays_are_shared_out(how: str) -> None:
    """Those that share a task's keys say nothing of epochs of which it has said something later."""
    usual = rows_of(Alone(epochs=16).end(), "B/0")
    settings = {"checkpoint_every": 100, "parallel_recovery": 2, "replay_chunk": 3}
    alone = Alone(epochs=16, **settings)
    alone.until(lambda: alone.head == 12)
    assert "shape" not in alone.kinds()
    alone.disk.damage(f"store/{output_name('final', 6, 'B/0')}", how)
    again = Alone(epochs=16, after=alone, **settings).end()
    assert again.ended == [None]
    assert rows_of(again, "B/0")[6]["key"].equals(usual[6]["key"])


def test_what_nothing_can_make_again_since_its_task_was_scaled_is_refused_with_what_to_do() -> None:
    alone = Alone(epochs=30, checkpoint_every=100)
    alone.until(lambda: alone.head == 9)
    alone.driver.tell(ScaleWanted("B", 2))
    alone.until(lambda: alone.driver.snapshot.shape.version > 0)
    alone.disk.damage(f"store/{output_name('final', alone.head - 1, 'B/0')}", "cut")
    with pytest.raises(
        Damaged, match=r"B-0.parquet is torn.*B was scaled since.*put it back from a copy, or delete it"
    ):
        Alone(epochs=30, after=alone)


def test_a_damaged_tentative_answer_that_the_sink_has_not_had_is_left_out_and_told() -> None:
    _, alone = behind_checkpoints()
    files = alone.store("test").files
    place(files, [stage(files, "1-1", "tentative", 9, "B/0", pa.table({"n": [1]}), 0.5, sync=True)], sync=True)
    alone.disk.damage(f"store/{output_name('tentative', 9, 'B/0')}", "cut")
    again = Alone(epochs=18, after=alone).end()
    assert again.ended == [None] and any("the sink gets the final one only" in note for note in again.driver.notes)
    assert {output.kind for output in again.taken} == {"final"}


def test_a_restart_reads_manifests_and_leaves_states_to_whoever_restores_them(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = Alone(epochs=12).end()
    read: list[str] = []
    usual = DiskFiles.read

    def told(self: DiskFiles, name: str) -> pa.Buffer:
        read.append(name)
        return usual(self, name)

    monkeypatch.setattr(DiskFiles, "read", told)
    again = Alone(epochs=14, after=alone)
    assert [name for name in read if name.startswith("checkpoints/")]
    assert not [name for name in read if name.startswith("state/")]
    again.end()
    assert [name for name in read if name.startswith("state/")] and again.ended == [None]


def test_the_source_waits_for_a_sink_that_is_far_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "TRIES", Retry(limit=6, first=8.0, most=8.0))
    sink = Refusing(times=5)
    ahead: list[int] = []
    alone = Alone(epochs=60, sink=sink)
    alone.driver.watchers.append(lambda *_: ahead.append(alone.driver.publisher.backlog))
    alone.until(lambda: sink.raised == 5)
    held = len(alone.source.released)
    # The epoch that is held and the one before it were answered before their own outputs had come to the queue.
    most = BACKLOG + 2
    assert BACKLOG < alone.driver.publisher.backlog <= most
    alone.until(lambda: bool(sink.taken))
    assert len(alone.source.released) == held, "nothing was released while it was too far behind"
    alone.end()
    assert alone.ended == [None] and max(ahead) <= most and alone.head == 59


def test_a_job_that_stops_gives_the_sink_everything_first() -> None:
    usual = Alone(epochs=8).end()
    last = max(output.epoch for output in usual.taken)
    sink = Refusing(times=5, epoch=last)
    alone = Alone(epochs=8, sink=sink).end()
    assert sink.raised == 5 and ids(sink.taken) == ids(usual.taken) and alone.ended == [None]
    assert alone.kinds()[-1] == "stopped" and alone.recorder.closed and alone.source.closed


def test_a_job_has_ended_when_its_store_is_tidy() -> None:
    """Who copies a store as soon as the job has ended finds nothing on its way out."""
    begun: list[str] = []
    done: list[str] = []
    alone = Alone(epochs=6, checkpoint_every=2)
    submit = alone.loop.submit

    def slowly(queue: Any, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        def later(result: Any) -> None:
            alone.loop.after(1.0, lambda: (done.append(queue), then(result)))

        if queue == "tidy":
            begun.append(queue)
        submit(queue, work, later if queue == "tidy" else then)

    alone.loop.submit = slowly  # type: ignore[method-assign]
    alone.end()
    assert alone.ended == [None] and begun and done == begun
