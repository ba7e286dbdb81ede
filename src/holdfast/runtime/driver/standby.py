"""A driver that stands by: it waits as long as another job holds the store, and takes over when that one is gone.

Its Spark is up by then, so that the way to the next answer is short. It reads the fence and touches nothing else.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import replace

from holdfast.errors import Invalid
from holdfast.runtime.environment import LEASE, STANDBY
from holdfast.runtime.options import Storage
from holdfast.state import Held, Store, Unusable
from holdfast.state.fence import held

LOOK_EVERY = 0.5
EXCLUSIVE = ("s3", "s3a", "memory")
"""Schemes of URLs where of two that claim a store at once one is told no."""
_log = logging.getLogger("holdfast")


def storage_here(storage: Storage) -> Storage:
    """What a job asks for, and where it does not say, what the environment says."""
    lease, standby = storage.lease, storage.standby
    if lease is None and (written := os.environ.get(LEASE)):
        try:
            lease = float(written)
        except ValueError:
            raise Invalid(f"{LEASE} must be a number of seconds, got {written!r}") from None
    if standby is None and (written := os.environ.get(STANDBY)):
        if written not in ("0", "1"):
            raise Invalid(f"{STANDBY} must be 0 or 1, got {written!r}")
        standby = written == "1"
        if standby and storage.force:
            raise Invalid(
                f"force: under {STANDBY}=1 (holdfast supervise) a job waits for its store, since two that take it by "
                "force would do so from one another; leave force out"
            )
    return replace(storage, lease=lease, standby=standby)


def when_free(store: Store, begin: Callable[[], None], warm: Callable[[], None] = lambda: None) -> None:
    """Begin once nobody else holds the store. Of several that wait one is first, and the others wait on.

    ``warm`` is called when there is time for it: what it does need not be done when the store is free.
    """
    scheme, by_url, _ = store.url.partition("://")
    if by_url and scheme not in EXCLUSIVE:
        raise Invalid(
            f"store {store.url}: nobody can stand by there, since with {scheme}:// two drivers may claim a store at "
            "once; use a folder or s3://, or give standby=False where one driver at a time is certain"
        )
    waited = stood = silent = False

    def taken() -> bool:
        """Who has stood by for the store goes on while it cannot be asked."""
        nonlocal silent
        try:
            answer = held(store.files, store.clock())
            silent = False
        except Unusable as error:
            if not stood:
                raise
            if not silent:
                _log.warning("%s: standing by until it answers", error)
            silent = answer = True
        return answer

    while True:
        while taken():
            if not waited:
                _log.warning("store %s is held by another job: standing by", store.url)
                warm()
            waited = stood = True
            time.sleep(LOOK_EVERY)
        if waited:
            _log.warning("store %s is free: taking over", store.url)
        try:
            return begin()
        except Held:
            waited = False
