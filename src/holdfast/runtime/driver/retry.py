"""A store that refuses, since it is full or gone, is asked again for a while; the stream waits meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.state import Unusable

AGAIN = 1.0
GIVE_UP = 300.0
"""A store that takes nothing more is asked again every AGAIN seconds, for so long."""


class Insistence:
    """``give_up``: called with the store's last word when it has refused for too long."""

    def __init__(
        self,
        stopping: threading.Event,
        note: Callable[[str, Mapping[str, Any]], None],
        give_up: Callable[[str], None],
    ) -> None:
        self._stopping = stopping
        self._note = note
        self._give_up = give_up
        self._since: float | None = None
        self._over = False

    def until_taken(self, write: Callable[[], None]) -> None:
        """Do this as soon as the store lets it be done."""
        while not self._over and not self._stopping.is_set():
            try:
                write()
            except Unusable as error:
                self.refused(str(error))
            else:
                if self._since is not None:
                    waited = round(time.monotonic() - self._since, 3)
                    self._since = None
                    self._note("store usable", {"after_seconds": waited})
                return

    def refused(self, message: str) -> None:
        """Wait a moment before it is asked again, and give up when it lasts too long."""
        if self._since is None:
            self._since = time.monotonic()
            self._note("store unusable", {"message": message, "retry_seconds": AGAIN})
        if time.monotonic() - self._since > GIVE_UP:
            self._over = True
            self._give_up(f"{message}; it was asked again for {GIVE_UP:.0f} s")
        self._stopping.wait(AGAIN)
