"""A store goes on under another pipeline: what its checkpoint then holds is what that pipeline would have made."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast import operators as op
from holdfast.errors import Invalid
from holdfast.runtime.driver.fitting import Fit
from holdfast.runtime.driver.migration import migrate, resume, serves, shapes
from holdfast.runtime.shape import Shape, grown, reshaped_pipeline, resized, routing_of
from holdfast.runtime.worker.blocks import Block
from holdfast.runtime.worker.processing import outgoing, process, process_source
from holdfast.state import Checkpoint, Damaged, Fenced, Routing, Store, Sync, TaskState, Writer, signature
from holdfast.state.entries import numbered_names
from holdfast.state.signature import Started
from holdfast.topology import Task

States = Mapping[Task, TaskState]
AS_DECLARED = Shape()
NOTHING = Sync(checkpoints=False)
LAST = 3
"""The epoch of the checkpoint in every test."""


def clicks(
    total: op.Aggregation | None = None,
    tasks: int = 2,
    counted: int = 1,
    window: str = "3 s",
    straight: bool = False,
    at_least: int = 3,
) -> op.Pipeline:
    """clicks -> good -> totals -> ranks, and windows beside."""
    totals = op.aggregate("page", total=total or op.sum("amount"))
    return op.Pipeline(
        op.source("clicks", event_time="time"),
        op.step("good", op.filter(f"amount >= {at_least}"), "clicks"),
        op.step("totals", totals, op.stream("clicks" if straight else "good", key="page"), parallelism=tasks),
        op.step("ranks", op.top_k(3, "total", "page"), "totals"),
        op.step("counts", op.tumbling(window, by="page", time="time", n=op.count()), "good", parallelism=counted),
    )


MAXIMA = op.max("amount")


def batches(count: int, seed: int = 5) -> list[pa.Table]:
    draw = random.Random(seed)

    def batch(epoch: int) -> pa.Table:
        rows = [(draw.choice("abcdefghij"), draw.randint(0, 50), 2 * epoch + draw.randint(0, 3)) for _ in range(40)]
        pages, amounts, times = zip(*rows, strict=True)
        return pa.table({"page": pages, "amount": amounts, "time": times})

    return [batch(epoch) for epoch in range(count)]


def journalled(pipeline: op.Pipeline, rows: Sequence[pa.Table], first: int = 0) -> list[list[Block]]:
    """What the sources send in each epoch."""
    return [
        outgoing(pipeline, Task("clicks", 0), process_source(pipeline, Task("clicks", 0), batch, epoch), epoch, {})
        for epoch, batch in enumerate(rows, first)
    ]


def replayed(pipeline: op.Pipeline, states: States, journal: Sequence[list[Block]], first: int = 0) -> States:
    """The states of all tasks after these epochs."""
    now = dict(states)
    for epoch, sent in enumerate(journal, first):
        blocks = list(sent)
        for task in pipeline.topology.tasks:
            if pipeline.by_name[task.operator].inputs:
                made = process(pipeline, task, now[task], [each for each in blocks if each.receiver == task], epoch)
                now[task] = made.state
                blocks += outgoing(pipeline, task, made, epoch, {})
    return now


def empty(pipeline: op.Pipeline, epoch: int = -1) -> States:
    return {task: pipeline.empty_state(task.operator, epoch) for task in pipeline.topology.tasks}


def ran(pipeline: op.Pipeline, rows: Sequence[pa.Table]) -> States:
    return replayed(pipeline, empty(pipeline), journalled(pipeline, rows))


def plain(states: States) -> dict[str, dict[str, list[str]]]:
    """Tables as rows that can be compared, those of tasks without any left out."""
    return {
        str(task): {name: sorted(map(str, table.to_table().to_pylist())) for name, table in state.tables.items()}
        for task, state in states.items()
        if state.tables
    }


def committed(
    store: Store, writer: Writer, pipeline: op.Pipeline, states: States, epoch: int = LAST, shape: Shape = AS_DECLARED
) -> Checkpoint:
    entries = {
        str(task): store.write_task(str(task), epoch, state, token=writer.token)
        for task, state in states.items()
        if state.tables
    }
    said = {"signature": pipeline.signature, "shape": shape.to_json(), "other": 7}
    return writer.commit_checkpoint(epoch, entries, shape.routings, said)


def kept(store: Store, found: Checkpoint) -> States:
    def task(written: str) -> Task:
        name, _, number = written.rpartition("/")
        return Task(name, int(number))

    return {task(each): store.restore(each, found.epoch)[0] for each in found.tasks}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path, NOTHING)


@pytest.fixture
def writer(store: Store) -> Iterator[Writer]:
    with store.writer("test") as writer:
        yield writer


@pytest.mark.parametrize(("tasks", "counted"), [(3, 1), (1, 1), (2, 3), (5, 2)])
def test_resized_operators_have_the_state_that_so_many_tasks_would_have(
    store: Store, writer: Writer, tasks: int, counted: int
) -> None:
    rows = batches(LAST + 1)
    committed(store, writer, clicks(), ran(clicks(), rows))
    now = clicks(tasks=tasks, counted=counted)
    found, fit = resume(store, writer, now, LAST)
    assert found is not None and found == store.latest()
    assert set(fit.resized) == ({"totals"} if tasks != 2 else set()) | ({"counts"} if counted != 1 else set())
    assert plain(kept(store, found)) == plain(ran(now, rows))
    assert (found.extra["signature"], found.extra["other"]) == (now.signature, 7)
    # There and back again.
    back, fit = resume(store, writer, clicks(), LAST)
    assert back is not None and fit.migrates
    assert plain(kept(store, back)) == plain(ran(clicks(), rows))


def test_an_operator_that_begins_anew_is_empty_and_all_others_stay(store: Store, writer: Writer) -> None:
    states = ran(clicks(), batches(LAST + 1))
    committed(store, writer, clicks(), states)
    now = clicks(MAXIMA)
    with pytest.raises(Invalid, match=r"operator totals was sum\(amount\) by page, is max\(amount\) by page now"):
        resume(store, writer, now, LAST)
    assert signature.read(store.files) is None, "a pipeline that was refused is not put down"
    found, fit = resume(store, writer, now, LAST, ["totals"])
    assert found is not None and fit.anew == ("totals",)
    expected = {**states, **{t: s for t, s in empty(now, LAST).items() if t.operator == "totals"}}
    assert plain(kept(store, found)) == plain(expected)
    assert signature.read(store.files) == Started(now.signature)
    assert resume(store, writer, now, LAST, ["totals"]) == (found, Fit()), "begun anew a second time"


def test_new_operators_begin_empty_and_state_that_was_let_go_is_gone(store: Store, writer: Writer) -> None:
    states = ran(clicks(), batches(LAST + 1))
    committed(store, writer, clicks(), states)
    least = op.step("least", op.aggregate("page", low=op.min("amount")), op.stream("good", key="page"), parallelism=3)
    now = op.Pipeline(*(step for step in clicks().steps if step.name != "counts"), least)
    found, fit = resume(store, writer, now, LAST, ["counts"])
    assert found is not None and (fit.added, fit.removed) == (("least",), ("counts",))
    expected = {t: s for t, s in states.items() if t.operator != "counts"}
    expected |= {t: s for t, s in empty(now, LAST).items() if t.operator == "least"}
    assert plain(kept(store, found)) == plain(expected)


def test_what_begins_anew_is_made_from_the_old_journal(store: Store, writer: Writer) -> None:
    """Epochs after the checkpoint were journalled by the old pipeline; the new one replays them."""
    rows = batches(LAST + 4)
    before, now = clicks(), clicks(MAXIMA)
    committed(store, writer, before, ran(before, rows[: LAST + 1]))
    found, _ = resume(store, writer, now, LAST + 3, ["totals"])
    assert found is not None
    restored = {**empty(now, LAST), **kept(store, found)}
    mine = replayed(now, restored, journalled(before, rows[LAST + 1 :], LAST + 1), LAST + 1)
    alone = replayed(now, empty(now, LAST), journalled(now, rows[LAST + 1 :], LAST + 1), LAST + 1)
    whole = ran(before, rows)

    def of(states: States, *names: str) -> dict[str, dict[str, list[str]]]:
        return plain({task: state for task, state in states.items() if task.operator in names})

    assert of(mine, "totals") == of(alone, "totals") != of(whole, "totals")
    assert of(mine, "counts") == of(whole, "counts")


@pytest.mark.parametrize(
    ("before", "now", "what"),
    [
        (clicks(), clicks(tasks=3), "the parallelism of totals"),
        (clicks(straight=True), clicks(MAXIMA, straight=True), "what totals makes of rows before they are sent"),
        (clicks(), clicks(straight=True), "who reads source clicks"),
    ],
)
def test_what_the_journal_was_cut_for_cannot_change_while_epochs_are_to_be_replayed(
    store: Store, writer: Writer, before: op.Pipeline, now: op.Pipeline, what: str
) -> None:
    found = committed(store, writer, before, ran(before, batches(LAST + 1)))
    with pytest.raises(Invalid, match=f"{what}.*changed, but epochs 4 to 5 are still to be replayed with the old one"):
        resume(store, writer, now, LAST + 2, ["totals"])
    assert store.latest() == found and store.shape() is None and signature.read(store.files) is None
    resume(store, writer, now, LAST, ["totals"])


def test_the_journal_is_of_the_pipeline_that_was_started_last(store: Store, writer: Writer) -> None:
    """The checkpoint is of one pipeline, the epochs after it of another that fitted it."""
    committed(store, writer, clicks(), ran(clicks(), batches(LAST + 1)))
    more = op.Pipeline(*clicks().steps, op.step("all", op.map("page"), "clicks"))
    found, fit = resume(store, writer, more, LAST)
    assert found is not None and found.extra["signature"] == clicks().signature and not fit.migrates
    with pytest.raises(
        Invalid, match=r"who reads source clicks \(stream clicks -> all\) changed, but epoch 4 is still"
    ):
        resume(store, writer, clicks(), LAST + 1)
    for _ in range(2):
        assert resume(store, writer, more, LAST + 1) == (found, Fit())


def test_epochs_from_before_the_last_change_need_the_pipeline_of_then(store: Store, writer: Writer) -> None:
    """The checkpoint after which the pipeline was changed is damaged, and the one before it takes its place."""
    rows = batches(LAST + 3)
    committed(store, writer, clicks(), ran(clicks(), rows[: LAST + 1]))
    newer = committed(store, writer, clicks(), ran(clicks(), rows), LAST + 2)
    now = clicks(tasks=3)
    resume(store, writer, now, LAST + 2)
    assert signature.read(store.files) == Started(now.signature, since=LAST + 3)
    latest = store.latest()
    assert latest is not None and latest.epoch == newer.epoch and latest != newer
    for chain in latest.tasks.values():
        store.files.delete(chain[0].path)
    for pipeline in (now, clicks()):
        with pytest.raises(Invalid, match="changed, but epochs 4 to"):
            resume(store, writer, pipeline, LAST + 4)


@pytest.mark.parametrize(
    ("now", "serving"),
    [
        (clicks(), True),
        (clicks(at_least=9), True),
        (clicks(tasks=3), False),
        (clicks(MAXIMA), False),
        (op.Pipeline(*clicks().steps, op.step("all", op.map("page"), "clicks")), False),
    ],
    ids=["the same", "another filter", "resized", "begun anew", "another reader of the source"],
)
def test_an_older_checkpoint_serves_only_if_it_fits_as_it_is(
    store: Store, writer: Writer, now: op.Pipeline, serving: bool
) -> None:
    rows = batches(LAST + 3)
    older = committed(store, writer, clicks(), ran(clicks(), rows[: LAST + 1]))
    committed(store, writer, clicks(), ran(clicks(), rows), LAST + 2)
    found, _ = resume(store, writer, now, LAST + 2, ["totals"])
    assert found is not None and found.epoch == LAST + 2
    assert serves(store, now, found)
    assert serves(store, now, older) == serving


def test_a_journal_without_a_checkpoint_is_of_the_pipeline_that_was_put_down(store: Store, writer: Writer) -> None:
    assert resume(store, writer, clicks(), -1) == (None, Fit())
    # Nothing was ever journalled, so nothing has to fit.
    assert resume(store, writer, clicks(MAXIMA, tasks=4), -1) == (None, Fit())
    assert resume(store, writer, clicks(), -1) == (None, Fit())
    with pytest.raises(Invalid, match="operator counts was count"):
        resume(store, writer, clicks(window="5 s"), 2)
    found, fit = resume(store, writer, clicks(window="5 s"), 2, ["counts"])
    assert found is None and fit.anew == ("counts",)
    with pytest.raises(Invalid, match="the parallelism of totals changed, but epochs 0 to 2 are still"):
        resume(store, writer, clicks(window="5 s", tasks=3), 2)


def test_a_journal_that_nobody_put_a_name_to_is_taken_with_a_word(store: Store, writer: Writer) -> None:
    found, fit = resume(store, writer, clicks(), 2)
    assert found is None
    assert fit == Fit(
        notes=(f"store {store.url} does not say which pipeline wrote its journal; it is taken to be this one",)
    )
    assert signature.read(store.files) == Started(clicks().signature)


def test_a_damaged_signature_stops_only_those_who_need_it(store: Store, writer: Writer, tmp_path: Path) -> None:
    found = committed(store, writer, clicks(), ran(clicks(), batches(LAST + 1)))
    resume(store, writer, clicks(), LAST)
    (name,) = numbered_names(store.files, "signature")
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(Damaged, match=f"{name} is torn or was altered; it says which pipeline wrote the journal"):
        resume(store, writer, clicks(), LAST + 1)
    again, fit = resume(store, writer, clicks(), LAST)
    assert again == found and not fit.migrates
    (note,) = fit.notes
    assert name in note and note.endswith("No epoch is to be replayed, so it was not needed")
    # What was before is not known any more, so it does not count.
    assert signature.read(store.files) == Started(clicks().signature, since=LAST + 1)


def scaled(pipeline: op.Pipeline, name: str, tasks: int) -> Shape:
    routing = resized(routing_of(pipeline.topology, Shape(), name), tasks)
    return grown(pipeline.topology, Shape(), name, routing, 1, {})


def test_an_operator_that_was_scaled_begins_anew_in_its_shape(store: Store, writer: Writer) -> None:
    shape = scaled(clicks(), "totals", 4)
    wide = reshaped_pipeline(clicks(), shape)
    states = ran(wide, batches(LAST + 1))
    committed(store, writer, clicks(), states, shape=shape)
    writer.commit_shape(shape.to_json())
    found, fit = resume(store, writer, clicks(MAXIMA), LAST + 2, ["totals"])
    assert found is not None and fit.anew == ("totals",)
    assert found.routing == shape.routings
    assert shapes(store, writer, clicks(MAXIMA), LAST) == (shape, shape)
    assert {task.number for task in kept(store, found) if task.operator == "totals"} == {0, 1, 2, 3}
    assert all(not state.rows for task, state in kept(store, found).items() if task.operator == "totals")


@pytest.mark.parametrize("allowed", [(), ("totals",)])
def test_another_parallelism_in_the_code_takes_the_place_of_a_shape(
    store: Store, writer: Writer, allowed: tuple[str, ...]
) -> None:
    rows, shape = batches(LAST + 1), scaled(clicks(), "totals", 4)
    committed(store, writer, clicks(), ran(reshaped_pipeline(clicks(), shape), rows), shape=shape)
    writer.commit_shape(shape.to_json())
    now = clicks(MAXIMA if allowed else None, tasks=3)
    found, _ = resume(store, writer, now, LAST, allowed)
    assert found is not None and found.routing == {}
    in_force, saved = shapes(store, writer, now, LAST)
    assert in_force.routings == saved.routings == {}
    begun = {t: s for t, s in empty(now, LAST).items() if t.operator == "totals"} if allowed else {}
    unscaled = ran(clicks(tasks=3), rows)
    assert plain(kept(store, found)) == plain({**unscaled, **begun})


def test_a_stop_in_the_middle_changes_nothing_that_counts(
    store: Store, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, now = batches(LAST + 1), clicks(tasks=3)
    found = committed(store, writer, clicks(), ran(clicks(), rows))

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(writer, "commit_checkpoint", killed)
        with pytest.raises(KeyboardInterrupt):
            resume(store, writer, now, LAST)
    assert store.latest() == found
    done, _ = resume(store, writer, now, LAST)
    assert done is not None and plain(kept(store, done)) == plain(ran(now, rows))


def test_keys_that_lie_at_several_tasks_cannot_be_put_together(store: Store, writer: Writer) -> None:
    def own_parts(tasks: int) -> op.Pipeline:
        counts = op.aggregate("page", n=op.count())
        return op.Pipeline(
            op.source("clicks", parallelism=tasks),
            op.step("counts", counts, op.stream("clicks", partitioning="one-to-one"), parallelism=tasks),
        )

    both, states = own_parts(2), {}
    for number, batch in enumerate([batches(1)[0]] * 2):
        source, task = Task("clicks", number), Task("counts", number)
        sent = outgoing(both, source, process_source(both, source, batch, LAST), LAST, {})
        states[task] = process(both, task, both.empty_state("counts", LAST - 1), sent, LAST).state
    committed(store, writer, both, states)
    with pytest.raises(Invalid, match=r"counts: its state cannot be put together .*; its parallelism must stay"):
        resume(store, writer, own_parts(1), LAST)
    # Begun anew, there is nothing to cut.
    found, fit = resume(store, writer, own_parts(3), LAST, ["counts"])
    assert found is not None and fit.anew == ("counts",)
    assert plain(kept(store, found)) == plain(empty(own_parts(3), LAST))


def test_a_checkpoint_of_nobody_is_refused(store: Store, writer: Writer) -> None:
    found = writer.commit_checkpoint(LAST, {})
    with pytest.raises(Invalid, match="its checkpoint does not say which pipeline wrote it"):
        resume(store, writer, clicks(), LAST)
    with pytest.raises(Invalid, match="its checkpoint does not say which pipeline wrote it"):
        migrate(store, writer, clicks(), Fit(), found, LAST)


def test_a_writer_that_was_superseded_puts_nothing_down(store: Store, writer: Writer) -> None:
    with store.writer("newer", force=True) as newer:
        resume(store, newer, clicks(), -1)
        with pytest.raises(Fenced):
            resume(store, writer, clicks(tasks=4), -1)
        assert signature.read(store.files) == Started(clicks().signature)


def test_weights_of_nothing_leave_a_task_empty(store: Store, writer: Writer) -> None:
    def pipeline(tasks: int, *weights: float) -> op.Pipeline:
        read = op.stream("clicks", key="page", weights=weights)
        return op.Pipeline(
            op.source("clicks"), op.step("totals", op.aggregate("page", n=op.count()), read, parallelism=tasks)
        )

    rows, now = batches(LAST + 1), pipeline(3, 1, 0, 2)
    committed(store, writer, pipeline(2), ran(pipeline(2), rows))
    found, _ = resume(store, writer, now, LAST)
    assert found is not None and plain(kept(store, found)) == plain(ran(now, rows))
    assert not kept(store, found)[Task("totals", 1)].rows
    assert Routing.weighted((1.0, 0.0, 2.0)).owners == (0, 2)
