"""What is told: every event goes into the history and to whoever listens, in order, on no thread but their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.runtime.driver.ports import Background, Clock, Failed, Listener, Recorder

LISTENED = 3
"""A listener that raises so often is dropped."""


class Telling:
    """``fail`` ends the job: a history that cannot be written is no history."""

    def __init__(
        self,
        clock: Clock,
        background: Background,
        recorder: Recorder,
        listeners: Iterable[Listener],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._clock = clock
        self._background = background
        self._recorder = recorder
        self._raised: dict[Listener, int] = dict.fromkeys(listeners, 0)
        self._fail = fail
        self.hearers: list[Callable[[Mapping[str, Any]], None]] = []
        """Parts of the driver that hear of an event at once, on its thread."""

    def note(self, kind: str, fields: Mapping[str, Any]) -> None:
        event = {"time": round(self._clock.wall(), 6), "kind": kind, **fields}
        for hear in self.hearers:
            hear(event)
        self._background.submit("history", partial(self._record, event), self._recorded)

    def listen(self, listener: Listener) -> None:
        self._raised[listener] = 0

    def unlisten(self, listener: Listener) -> None:
        self._raised.pop(listener, None)

    def close(self, done: Callable[[], None]) -> None:
        """When everything was told."""
        self._background.submit("history", self._recorder.close, lambda _: done())

    def _record(self, event: dict[str, Any]) -> list[tuple[Listener, Exception]]:
        self._recorder.add(event)
        raised: list[tuple[Listener, Exception]] = []
        for listener in list(self._raised):
            try:
                listener(event)
            except Exception as error:
                raised.append((listener, error))
        return raised

    def _recorded(self, result: list[tuple[Listener, Exception]] | Failed) -> None:
        if isinstance(result, Failed):
            self._fail(result.error)
            return
        for listener, error in result:
            if listener not in self._raised:
                continue
            self._raised[listener] += 1
            fields = {"listener": _named(listener), "error": told(error), "times": self._raised[listener]}
            if self._raised[listener] >= LISTENED:
                self.unlisten(listener)
                self.note("listener dropped", fields)
            elif self._raised[listener] == 1:
                self.note("listener failed", fields)


def told(error: BaseException) -> str:
    """What went wrong in one line."""
    words = " ".join(str(error).split())[:300]
    if isinstance(error, HoldfastError):
        return words
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def _named(listener: Listener) -> str:
    return str(getattr(listener, "__qualname__", type(listener).__name__))
