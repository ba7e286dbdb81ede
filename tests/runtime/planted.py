"""Mistakes that once were made, or might be, planted in the product: in what decides, works, carries out and stores.

Each is a function that plants it, the kind of cases that meet it, and a seed whose schedule is known to show it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from holdfast.runtime.coordinator import answering, recovering, rescaling, standing_in
from holdfast.runtime.coordinator import replay as replaying
from holdfast.runtime.coordinator.answering import Answering
from holdfast.runtime.coordinator.assignment import Assignment
from holdfast.runtime.coordinator.facts import Released, StoodIn
from holdfast.runtime.coordinator.ledger import Ledger
from holdfast.runtime.coordinator.membership import Membership
from holdfast.runtime.coordinator.recovering import Recovering
from holdfast.runtime.coordinator.rescaling import Committing, Rescaling
from holdfast.runtime.coordinator.shadow import Shadow
from holdfast.runtime.coordinator.standing_in import StandingIn
from holdfast.runtime.driver import checkpoints, migration, publishing
from holdfast.runtime.driver.fitting import Fit
from holdfast.runtime.driver.publishing import Publisher
from holdfast.runtime.driver.running import Running
from holdfast.runtime.driver.telling import Telling
from holdfast.runtime.driver.watching import Watching
from holdfast.runtime.messages import CheckpointBroken, Publish, ReleaseNodes, TakeCheckpoint
from holdfast.runtime.worker import repartition, worker
from holdfast.runtime.worker.versions import Versions
from holdfast.state import TaskState, Unusable, Writer, cursor, journal, local, output
from holdfast.state.entries import checksum
from holdfast.state.journal import Journal, JournalEpoch, JournalSpan
from holdfast.state.origin import Origin

Patch = pytest.MonkeyPatch


# What decides


def forgets_sides(patch: Patch) -> None:
    def no_sides(*given: Any, **named: Any) -> Any:
        works, read = replaying.replay(*given, **named)
        return tuple(work for work in works if work.lane != "side"), read

    patch.setattr(recovering, "replay", no_sides)


def sides_begin_too_late(patch: Patch) -> None:
    patch.setattr(replaying, "_side_start", lambda stateful, task, low, *rest: ("local", low))


def calls_the_fork_final(patch: Patch) -> None:
    publish = Answering._publish

    def mixed(self: Answering, *given: Any) -> Any:
        for each in publish(self, *given):
            yield Publish(each.run, each.outputs, "final") if isinstance(each, Publish) else each

    patch.setattr(Answering, "_publish", mixed)


def calls_the_stopgap_final(patch: Patch) -> None:
    answer = StandingIn._answer

    def mixed(self: StandingIn, *given: Any) -> Any:
        for each in answer(self, *given):
            yield Publish(each.run, each.outputs, "final") if isinstance(each, Publish) else each

    patch.setattr(StandingIn, "_answer", mixed)


def answers_after_the_exact_answer(patch: Patch) -> None:
    hear = StandingIn.hear

    def late(self: StandingIn, told: Any, parts: Any) -> Any:
        return self._answer(told, parts) if isinstance(told, StoodIn) else hear(self, told, parts)

    patch.setattr(StandingIn, "hear", late)


def waits_for_the_silent_one_too(patch: Patch) -> None:
    copies = StandingIn._copies
    patch.setattr(StandingIn, "_copies", lambda self, _, parts: copies(self, set(parts.members.nodes), parts))


def places_from_where_it_was(patch: Patch) -> None:
    place = Assignment.place

    def late(self: Assignment, task: Any, *rest: Any) -> None:
        place(self, task, *rest)
        copy = self.primaries[task]
        self.primaries[task] = replace(copy, position=max(copy.position, self.lost_at.get(task, -1)))

    patch.setattr(Assignment, "place", late)


def never_plans_again(patch: Patch) -> None:
    due = Recovering.due
    patch.setattr(Recovering, "due", lambda self, parts: self.planned_for is None and due(self, parts))


def forgets_what_was_published(patch: Patch) -> None:
    commit = Rescaling._commit

    def forgetful(self: Rescaling, committing: Committing) -> Any:
        return commit(self, replace(committing, shape=replace(committing.shape, done={})))

    patch.setattr(Rescaling, "_commit", forgetful)


def switches_too_early(patch: Patch) -> None:
    patch.setattr(Shadow, "at", lambda self, head: not any(copy.fresh for copy in self.copies.values()))


def checkpoints_changes_alone(patch: Patch) -> None:
    """And nobody sees that a node has no changes since then, but a whole version."""
    patch.setattr(local.LocalState, "kept_whole", lambda *_: False)
    patch.setattr(TakeCheckpoint, "since_of", lambda self, task: self.since)


def one_name_for_all_tries(patch: Patch) -> None:
    """Tasks of another shape in the folders of those they replace."""
    made = rescaling.grown

    def unborn(*given: Any, **named: Any) -> Any:
        return replace(made(*given, **named), born={})

    patch.setattr(rescaling, "grown", unborn)


def gives_back_at_once(patch: Patch) -> None:
    def release(self: Membership, parts: Any) -> Any:
        if (gone := frozenset(self.leaving)) and not parts.runs.under_way:
            yield Released(gone)
            yield ReleaseNodes(tuple(sorted(gone)))

    patch.setattr(Membership, "release", release)


# What works on a node


def sweeps_what_is_young(patch: Patch) -> None:
    def sweep(self: Versions, plan: Any) -> None:
        for branch in [each for each in self._files.list("") if each.partition("-")[0] in ("fork", "side")]:
            self._drop_branch(branch)

    patch.setattr(Versions, "sweep", sweep)


def leaves_a_shape_that_is_being_prepared(patch: Patch) -> None:
    sweep = Versions.sweep
    patch.setattr(Versions, "sweep", lambda self, plan: sweep(self, replace(plan, settled=True)))


def does_not_recut(patch: Patch) -> None:
    patch.setattr(worker, "recut", lambda pipeline, blocks, then, now: blocks)


def takes_the_state_of_its_number(patch: Patch) -> None:
    def alone(store: Any, declared: Any, shape: Any, task: Any, epoch: int, *_: Any) -> TaskState:
        if str(task) in store.checkpoint(epoch).tasks:
            return store.restore(str(task), epoch)[0]
        return TaskState.empty(declared.state_schemas(task.operator), epoch)

    patch.setattr(worker, "restored", alone)


# What carries out


def _leave_out(patch: Patch) -> None:
    def span(self: Journal, first: int, last: int) -> JournalSpan:
        return JournalSpan(tuple(each for epoch, each in sorted(self._epochs.items()) if first <= epoch <= last))

    patch.setattr(Journal, "span", span)
    patch.setattr(worker, "absent_barrier", lambda *_: "")


def takes_any_epoch_for_the_next(patch: Patch) -> None:
    """A store that is older than the source's own log: epochs in between are not missed."""
    arrived = Answering._arrived

    def trusting(self: Answering, epoch: int) -> Any:
        if epoch > self.head + 1:
            self.head = self.journalled = epoch - 1
        return arrived(self, epoch)

    patch.setattr(Answering, "_arrived", trusting)
    patch.setattr(Journal, "_check_next", lambda self, epoch: None)
    _leave_out(patch)


def drops_what_the_sink_refused(patch: Patch) -> None:
    def pass_over(self: Publisher, delivery: Any, error: BaseException) -> None:
        self._waiting.popleft()
        if self._waiting:
            self._deliver()
        self.on_delivered()

    patch.setattr(Publisher, "_again", pass_over)


def moves_the_cursor_before_the_sink_has_it(patch: Patch) -> None:
    give = Publisher._give

    def early(self: Publisher, delivery: Any) -> Any:
        reached = self._cursor
        for kind, epoch, task in delivery.outputs:
            reached = reached.with_(kind, task, epoch)
        cursor.write(self.files, reached, self.token, self.sync)
        return give(self, delivery)

    patch.setattr(Publisher, "_give", early)


def gives_without_a_look_at_the_fence(patch: Patch) -> None:
    """A driver that was stopped in its sink goes on with the delivery, though another has taken over meanwhile."""
    patch.setattr(Writer, "guard", lambda self: None)


def deletes_what_it_could_not_place(patch: Patch) -> None:
    place = output.place

    def tidy(files: Any, staged: Any, sync: bool) -> Any:
        try:
            return place(files, staged, sync)
        except Unusable:
            for one in staged:
                with contextlib.suppress(Unusable):
                    files.delete(one.path)
            raise

    patch.setattr(publishing.output, "place", tidy)


def takes_a_new_node_for_the_old_one(patch: Patch) -> None:
    patch.setattr(Watching, "_gone", lambda self, nodes: [name for name in self.nodes if name not in nodes])


def asks_for_the_same_checkpoint_again(patch: Patch) -> None:
    """A copy that is not whole on its node is asked for its state for ever, and never made anew.

    Where epochs change a part of a state: the next version that is kept whole would do without what is damaged.
    """
    patch.setattr(local, "MORE", 0.0)
    patch.setattr(checkpoints, "CheckpointBroken", lambda epoch, reason, tasks=(): CheckpointBroken(epoch, reason))


def dies_of_a_listener(patch: Patch) -> None:
    def trusting(self: Telling, event: Any) -> list[Any]:
        self._recorder.add(event)
        for listener in self._raised:
            listener(event)
        return []

    patch.setattr(Telling, "_record", trusting)


# What stores


def keeps_whatever_has_the_name(patch: Patch) -> None:
    """A cut or altered output is taken for the one that was published, and the whole one that was staged goes."""

    def there(files: Any, one: Any, known: Any) -> str | None:
        try:
            return checksum(files.map(one.target))
        except FileNotFoundError:
            return None

    patch.setattr(output, "_there", there)
    patch.setattr(output, "checked", lambda *_: ({}, []))


def gives_what_came_after_a_damaged_output_first(patch: Patch) -> None:
    """The sink goes on from the cursor at once, past an output that is still to be made again."""
    resume = Publisher.resume
    patch.setattr(Publisher, "resume", lambda self, remade: resume(self, {}))


def journals_unsynced(patch: Patch) -> None:
    write = journal.write
    patch.setattr(journal, "write", lambda *given, **named: write(*given, **{**named, "sync": False}))


def passes_over_gaps(patch: Patch) -> None:
    """The journal that a job knows begins after its newest checkpoint, and what it does not know it leaves out."""
    load = Journal.load

    def short(store: Any, checkpoint: int) -> Journal:
        known = load(store, checkpoint)
        known.forget(checkpoint)
        return known

    patch.setattr(Journal, "load", short)
    patch.setattr(Journal, "reaches", lambda self, checkpoint: True)
    _leave_out(patch)


def outputs_are_not_synced(patch: Patch) -> None:
    place, stage = output.place, output.stage
    patch.setattr(output, "place", lambda files, staged, sync: place(files, staged, False))
    patch.setattr(output, "stage", lambda *given: stage(*given[:-1], False))


def takes_another_pipeline_without_a_word(patch: Patch) -> None:
    patch.setattr(migration, "fit", lambda *_: Fit((), (), (), (), ()))


def trims_under_a_run_that_reads(patch: Patch) -> None:
    patch.setattr(Running, "reads_from", property(lambda self: None))


def trims_up_to_the_newest_checkpoint(patch: Patch) -> None:
    trim = Writer.trim

    def deep(self: Writer, upto: int | None = None) -> list[int]:
        held, self._whole = self._whole, dict(sorted(self._whole.items())[-1:])
        try:
            return trim(self, upto)
        finally:
            self._whole = held

    patch.setattr(Writer, "trim", deep)


def keeps_who_went_in_mind(patch: Patch) -> None:
    see = Watching._see
    patch.setattr(Watching, "_see", lambda self, nodes: see(self, {**self.nodes, **nodes}))


def cuts_what_was_never_scaled(patch: Patch) -> None:
    """Tasks behind a keyed split have other keys than their share of the ring."""
    real = worker.restored

    def cut(store: Any, declared: Any, shape: Any, task: Any, epoch: int) -> Any:
        state = real(store, declared, shape, task, epoch)
        routing = repartition.routing_of(declared.topology, shape, task.operator)
        if not shape.version or task.operator in shape.routings or task.number not in routing.owners:
            return state
        part = routing.ranges[routing.owners.index(task.number)]
        tables = {n: t.slice(part) if n == "state" else t for n, t in state.tables.items()}
        return type(state)(state.epoch, tables)

    patch.setattr(worker, "restored", cut)


def adopts_what_is_not_whole(patch: Patch) -> None:
    """Some pieces of a broken run are taken for all of them."""

    def greedy(self: Journal, store: Any, token: int, epoch: int, run: int, routings: Any) -> JournalEpoch | None:
        folder = f"journal/{epoch:012d}"
        names = [name for name in store.files.list(folder) if name.startswith(f"run-{run}-of-")]
        if epoch != self.newest + 1 or not names:
            return None
        sizes = {name: store.files.size(f"{folder}/{name}") for name in names}
        pieces = [journal.FileEntry(f"{folder}/{n}", size, n[-38:-6], 0, "", epoch) for n, size in sizes.items()]
        return JournalEpoch(epoch, tuple(pieces), routings)

    patch.setattr(Journal, "adopt", greedy)


def stamps_what_it_expected(patch: Patch) -> None:
    patch.setattr(answering, "restamped", lambda topology, works, *_: tuple(works))


def stands_in_for_what_it_expected(patch: Patch) -> None:
    patch.setattr(standing_in, "restamped", lambda topology, works, *_: tuple(works))


def places_what_was_stamped_before(patch: Patch) -> None:
    patch.setattr(output, "stamped", lambda files, staged, *_: staged)


def windows_begin_with_the_epoch_itself(patch: Patch) -> None:
    since = Ledger.since
    patch.setattr(Ledger, "since", lambda self, epoch, horizon: since(self, epoch, horizon)[-1:])


def windows_begin_with_the_epoch_before(patch: Patch) -> None:
    since = Ledger.since
    patch.setattr(Ledger, "since", lambda self, epoch, horizon: since(self, epoch, horizon)[:1])


# Where the stream stood


def takes_any_batch_that_comes_again(patch: Patch) -> None:
    patch.setattr(Journal, "check_again", lambda *_: None)


def compares_the_number_of_a_batch_alone(patch: Patch) -> None:
    patch.setattr(Origin, "differs", lambda *_: None)


def begins_with_no_watermark(patch: Patch) -> None:
    read = Origin.from_json

    def without(content: Mapping[str, Any] | None) -> Origin | None:
        return None if (origin := read(content)) is None else replace(origin, operators=())

    patch.setattr(Origin, "from_json", without)


def journals_epochs_without_their_batch(patch: Patch) -> None:
    to_json = JournalEpoch.__init__

    def without(self: JournalEpoch, *given: Any, origin: Origin | None = None, **named: Any) -> None:
        to_json(self, *given, **named)

    patch.setattr(JournalEpoch, "__init__", without)


def checkpoints_without_the_batch(patch: Patch) -> None:
    patch.setattr(Journal, "origin_of", lambda *_: None)


def remembers_the_first_batch(patch: Patch) -> None:
    learn = Journal.learn

    def forgetful(self: Journal, epoch: JournalEpoch) -> None:
        before = self.origin
        learn(self, epoch)
        self.origin = before or self.origin

    patch.setattr(Journal, "learn", forgetful)


def adopts_without_the_times(patch: Patch) -> None:
    commit = Running._commit
    patch.setattr(Running, "_commit", lambda self, entry, read: commit(self, entry, True))


@dataclass(frozen=True, slots=True)
class Mistake:
    """``kind``: of the cases that meet it (see ``fuzzing.CASES``). ``seed``: one that is known to."""

    plant: Callable[[Patch], None]
    kind: str = "digests"
    seed: int = 0


MISTAKES: Mapping[str, Mistake] = {
    each.plant.__name__.replace("_", " "): each
    for each in (
        Mistake(forgets_sides, seed=16),
        Mistake(sides_begin_too_late, seed=12),
        Mistake(calls_the_fork_final, seed=27),
        Mistake(calls_the_stopgap_final, seed=7),
        Mistake(answers_after_the_exact_answer, seed=7),
        Mistake(waits_for_the_silent_one_too, seed=7),
        Mistake(places_from_where_it_was, seed=3),
        Mistake(never_plans_again, seed=3),
        Mistake(forgets_what_was_published, "scaling", 49),
        Mistake(switches_too_early, "scaling", 2),
        Mistake(checkpoints_changes_alone, "scaling", 25),
        Mistake(one_name_for_all_tries, "scaling", 25),
        Mistake(gives_back_at_once, "scaling", 4),
        Mistake(sweeps_what_is_young, seed=35),
        Mistake(leaves_a_shape_that_is_being_prepared, "scaling"),
        Mistake(does_not_recut, "scaling", 0),
        Mistake(takes_the_state_of_its_number, "scaling", 44),
        Mistake(takes_any_epoch_for_the_next, seed=224),
        Mistake(takes_any_batch_that_comes_again, "watermarked", 8),
        Mistake(compares_the_number_of_a_batch_alone, "watermarked", 8),
        Mistake(begins_with_no_watermark, "watermarked", 0),
        Mistake(journals_epochs_without_their_batch, "watermarked", 0),
        Mistake(checkpoints_without_the_batch, "watermarked", 0),
        Mistake(remembers_the_first_batch, "watermarked", 2),
        Mistake(adopts_without_the_times, "watermarked", 4),
        Mistake(drops_what_the_sink_refused, seed=1),
        Mistake(moves_the_cursor_before_the_sink_has_it, seed=1),
        Mistake(gives_without_a_look_at_the_fence, seed=58),
        Mistake(deletes_what_it_could_not_place, "scaling", seed=263),
        Mistake(takes_a_new_node_for_the_old_one, seed=28),
        Mistake(asks_for_the_same_checkpoint_again, seed=449),
        Mistake(dies_of_a_listener, seed=8),
        Mistake(keeps_whatever_has_the_name, seed=37),
        Mistake(gives_what_came_after_a_damaged_output_first, seed=30),
        Mistake(journals_unsynced, seed=31),
        Mistake(passes_over_gaps, seed=321),
        Mistake(outputs_are_not_synced, seed=152),
        Mistake(takes_another_pipeline_without_a_word, seed=131),
        Mistake(trims_under_a_run_that_reads, seed=121),
        Mistake(trims_up_to_the_newest_checkpoint, seed=1),
        Mistake(keeps_who_went_in_mind, seed=26),
        Mistake(cuts_what_was_never_scaled, "scaling", 12),
        Mistake(adopts_what_is_not_whole, seed=8),
        Mistake(stamps_what_it_expected, seed=10),
        Mistake(stands_in_for_what_it_expected, seed=145),
        Mistake(places_what_was_stamped_before, seed=10),
    )
}
