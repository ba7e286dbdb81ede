"""Who answers, who is slow to, and who says nothing: by when they were asked and answered, and by how others do.

Silence is relative: where all are short of cores, those who are well take long to answer too. Times come in as they
are read by whoever asks, so that real executors and simulated ones are judged alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median_low

from holdfast.runtime.driver.ports import Silence

ANSWER, MOST = 0.5, 3.0
"""Who is well says something within so many seconds; where others take longer, within so many at most."""
TIMES = 3
"""Everybody has so many times as long as those take who are well."""
RECENT = 10.0
"""An answer says so many seconds long how things are."""
CONTROL = "driver"
"""The driver asks itself too: what takes long there is held against nobody else."""


class Hearing:
    """Everybody has one question at a time: ``asked``, perhaps ``answered``, and ``over``."""

    def __init__(self) -> None:
        self._owed: dict[str, float] = {}
        """Who owes an answer, and when it was asked last."""
        self._under_way: set[str] = set()
        self._last: dict[str, tuple[float, float]] = {}
        """When each answered last, and after how long."""
        self._silent: set[str] = set()
        """Who was judged to be, and owes that answer still."""
        self._late: dict[str, int] = {}
        """Who has answered after all, and how often everybody was judged since."""

    def owes(self, name: str) -> bool:
        return name in self._owed

    def free(self, name: str) -> bool:
        """Whether it may be asked."""
        return name not in self._under_way

    def asked(self, name: str, now: float) -> None:
        self._under_way.add(name)
        self._owed[name] = now

    def answered(self, name: str, now: float) -> None:
        self._last[name] = (now, now - self._owed.pop(name))
        if name in self._silent:
            self._silent.remove(name)
            self._late[name] = 0

    def over(self, name: str) -> None:
        self._under_way.discard(name)

    def pace(self, names: Iterable[str], now: float) -> float:
        """How long those of these who are well take to answer now: at least half of them, and the driver itself.

        No longer than anybody is waited for: a driver that cannot even ask itself says nothing of the others.
        """
        told = {name: took for name, (at, took) in self._last.items() if now - at < RECENT}
        others = [told[name] for name in names if name in told]
        own = now - self._owed[CONTROL] if CONTROL in self._owed else told.get(CONTROL, 0.0)
        return min(MOST, max(own, median_low(others) if others else 0.0))

    def wait(self, names: Iterable[str], now: float) -> float:
        """Seconds that everybody has for an answer."""
        return min(MOST, max(ANSWER, TIMES * self.pace(names, now)))

    def judge(self, names: Iterable[str]) -> dict[str, Silence]:
        """Those that have not answered, now that their time is up. Who answered the question before too late speaks: it
        is late, not mute."""
        owing = [name for name in names if name in self._owed]
        found: dict[str, Silence] = {name: "late" if name in self._late else "mute" for name in owing}
        self._silent.update(owing)
        self._late = {name: judged + 1 for name, judged in self._late.items() if judged < 1}
        return found
