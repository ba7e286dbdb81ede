"""How many rows came with each epoch, and up to when: what an answer rests on, and how much of it a state has seen."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Self

REMEMBERED = 4096
"""So many epochs are told apart; what came before them is one sum."""
KEPT = 256
"""And so many are still after a restart."""


class Ledger:
    """Rows of all epochs up to each one, and the newest event time up to it in microseconds, of what is journalled.

    An epoch of which no rows are known weighs like one row. Times do not go back: late rows make no epoch older.
    """

    def __init__(self, known: Mapping[int, tuple[int, int | None]]) -> None:
        """``known``: for successive epochs, rows of all up to it, and its time."""
        self._first = min(known, default=0)
        self._totals = [known[epoch][0] for epoch in sorted(known)]
        self._times: list[int | None] = []
        for epoch in sorted(known):
            self._pass(known[epoch][1])

    @classmethod
    def recalled(cls, told: Iterable[tuple[int, int, int | None]], known: Mapping[int, tuple[int, int | None]]) -> Self:
        """With what ``recent`` told before a restart, as far as it leads up to what is known now."""
        known = dict(known)
        for epoch, total, time in sorted(told, key=lambda each: -each[0]):
            if epoch in known and known[epoch][1] is None:
                known[epoch] = known[epoch][0], time
            elif epoch + 1 in known:
                known.setdefault(epoch, (total, time))
        return cls(known)

    def recent(self) -> list[tuple[int, int, int | None]]:
        """The last epochs: each with the rows of all up to it, and its time."""
        last = range(max(self._first, self.newest - KEPT + 1), self.newest + 1)
        return [(epoch, self.total(epoch), self.time(epoch)) for epoch in last] if self._totals else []

    @property
    def newest(self) -> int:
        return self._first + len(self._totals) - 1

    def learn(self, epoch: int, rows: int | None, time: int | None) -> None:
        """The next epoch is journalled."""
        if not self._totals:
            self._first = epoch
        self._totals.append(self.total(epoch - 1) + (1 if rows is None else rows))
        self._pass(time)
        if len(self._totals) > 2 * REMEMBERED:
            self._first += len(self._totals) - REMEMBERED
            self._totals, self._times = self._totals[-REMEMBERED:], self._times[-REMEMBERED:]

    def _pass(self, time: int | None) -> None:
        before = self._times[-1] if self._times else None
        self._times.append(before if time is None else time if before is None else max(before, time))

    def total(self, epoch: int) -> int:
        """Rows up to an epoch; of one to come as if it had as many as the last, of one long gone in proportion."""
        if epoch < 0:
            return 0
        if not self._totals:
            return epoch + 1
        if epoch < self._first:
            return self._totals[0] * (epoch + 1) // (self._first + 1)
        if epoch <= self.newest:
            return self._totals[epoch - self._first]
        return self._totals[-1] + (epoch - self.newest) * self._pace()

    def time(self, epoch: int) -> int | None:
        """The newest event time up to an epoch, if it is known."""
        return self._times[min(epoch, self.newest) - self._first] if self._times and epoch >= self._first else None

    def foreseeing(self, epoch: int, rows: int, time: int | None) -> Ledger:
        """The same with the next epoch as if it were journalled; the same where that is known already."""
        if epoch != self.newest + 1:
            return self
        known = {each: (self.total(each), self.time(each)) for each in range(self._first, self.newest + 1)}
        foreseen = Ledger(known)
        foreseen.learn(epoch, rows, time)
        return foreseen

    def rows(self, first: int, last: int) -> int:
        """Rows of the epochs from ``first`` to ``last``."""
        return max(0, self.total(last) - self.total(first - 1))

    def _pace(self) -> int:
        before = self._totals[-2] if len(self._totals) > 1 else self.total(self.newest - 1)
        return max(1, self._totals[-1] - before)

    def since(self, epoch: int, horizon: int | None) -> range:
        """The first epochs that parts of an answer may rest on, from the earliest to the latest; epoch 0 where that
        is all.

        What an epoch says is of times after that of the epoch before, which closed what came until then, and up to its
        own. So an answer looks back ``horizon`` microseconds from anywhere between the two. Of an epoch to come nobody
        knows its time: it is taken to move on as it did when it last moved.

        Where that was before the first epoch that is known: the one after it, the first of which rows are known, so
        that no answer is called better than it is.
        """
        then, now = self.time(epoch - 1), self.time(epoch)
        if horizon is None or now is None:
            return range(1)
        now += max(0, epoch - self.newest) * self._advance()
        first = 0 if then is None else self._first_after(then - horizon)
        return range(first, self._first_after(now - horizon) + 1)

    def _advance(self) -> int:
        """By how much time moved when it last did."""
        newest = self._times[-1]
        before = next((time for time in reversed(self._times) if time != newest), None)
        return 0 if newest is None or before is None else newest - before

    def _first_after(self, time: int) -> int:
        """The first epoch with rows after this time."""
        # Those without a time come before the first that has one.
        untimed = self._times.count(None)
        timed = [each for each in self._times[untimed:] if each is not None]
        found = bisect_right(timed, time)
        return self._first + untimed + found if found else self._first and self._first + 1
