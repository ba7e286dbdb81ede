"""Launch: a job begins, or goes on where it stopped. What the store holds is checked before a row runs.

The same walk for a first start, a restart after a crash, and a simulated one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from holdfast.errors import HoldfastError
from holdfast.runtime.coordinator.answering import Before
from holdfast.runtime.coordinator.coordinator import Coordinator
from holdfast.runtime.coordinator.lanes import Memory
from holdfast.runtime.coordinator.ledger import Ledger
from holdfast.runtime.driver.autoscaling import Autoscaler, elastic_by, standby
from holdfast.runtime.driver.checkpoints import MEASURED
from holdfast.runtime.driver.config import JobConfig
from holdfast.runtime.driver.driver import Driver
from holdfast.runtime.driver.migration import newest, resume, shapes
from holdfast.runtime.driver.ports import Ports
from holdfast.runtime.driver.verifying import Verified, retained, verified
from holdfast.runtime.shape import scalable
from holdfast.runtime.worker.worker import JobContext
from holdfast.state import Damaged, Store, Writer
from holdfast.state.fence import LEASE
from holdfast.state.journal import Journal
from holdfast.state.store import KEPT


def launch(config: JobConfig, ports: Ports) -> Driver:
    """Claim the store, find out where the job stands, and put the driver together; ``begin`` lets it go. Blocks.

    Whatever does not fit is refused here, by name, with the store as it was.
    """
    force, lease = config.storage.force, config.storage.lease or LEASE
    keep = retained(config.settings.checkpoint_every) if ports.sink is not None else KEPT
    writer = ports.store.writer(config.owner, force=force, lease=lease, keep=keep)
    try:
        return _launched(config, ports, ports.store, writer)
    except Exception:
        with contextlib.suppress(HoldfastError):
            writer.close()
        raise


def _launched(config: JobConfig, ports: Ports, store: Store, writer: Writer) -> Driver:
    found = newest(store)
    journal = Journal.load(store, -1 if found is None else found.epoch)
    with _understood(store, "the pipeline that wrote it"):
        found, fitted = resume(store, writer, config.pipeline, journal.newest, tuple(config.storage.allow_changed))
        outputs = Verified(found)
        if config.storage.outputs:
            outputs = verified(store, journal, config.pipeline, found, ports.sink is not None)
    found = outputs.found
    checkpoint = -1 if found is None else found.epoch
    with _understood(store, "the shape of its job"):
        shape, saved = shapes(store, writer, config.pipeline, checkpoint)
    measured = (found.extra.get(MEASURED) if found is not None else None) or {}
    coordinator = Coordinator(
        config.pipeline.coordinated,
        config.settings,
        checkpoint,
        journal.newest,
        shape=shape,
        saved=saved,
        before=Before(outputs.newest, outputs.whole, outputs.missing),
        scalable=scalable(config.pipeline),
        measured=measured,
        memory=Memory(
            Ledger.recalled(measured.get("epochs", ()), journal.counts()),
            config.pipeline.horizons,
            lag=int(config.watermarked),
        ),
    )
    context = JobContext(
        config.job,
        config.pipeline,
        store.url,
        store.marker(),
        writer.token,
        config.local,
        coordinator.outputs if config.storage.outputs else frozenset(),
        store.sync,
        config.verify,
        config.storage.memory_limit,
        config.storage.storage_options or {},
        config.whole_from,
    )
    runner = ports.runner(context, writer)
    extra = {"signature": config.pipeline.signature}
    driver = Driver(config, ports, coordinator, journal, writer, runner, extra)
    driver.notes += [*fitted.notes, *outputs.notes]
    driver.autoscaler = Autoscaler(driver, elastic_by(config.scaling.elastic, driver), standby(config))
    driver.telling.hearers += [driver.autoscaler.heard, driver.deadline.heard]
    driver.publisher.resume(outputs.remade)
    return driver


@contextlib.contextmanager
def _understood(store: Store, what: str) -> Iterator[None]:
    """Damaged for documents that are whole, but whose content is not what Holdfast puts there."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        told = f"{type(error).__name__}: {error}"
        raise Damaged(f"store {store.url}: what it says of {what} is not what Holdfast writes ({told})") from error
