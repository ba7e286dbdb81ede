"""The process that brings states to the store where driver and nodes are one machine. It knows nothing of Spark.

It answers requests of the driver, one JSON object a line, until the driver is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from holdfast.runtime.worker.versions import Saved, Upload, upload
from holdfast.state import Store, Sync, Unusable
from holdfast.state.compaction import folded_chain
from holdfast.state.entries import FileEntry
from holdfast.state.files import open_files

NICER = 10
"""How much lower the priority of the process is than that of the job."""


def serve() -> None:
    """Answer requests until the driver is gone. Each says of which job it is, and all it takes to open its store."""
    with contextlib.suppress(OSError):
        os.nice(NICER)
    for line in sys.stdin:
        try:
            request = json.loads(line)
            job = request["job"]
            store = Store(job["store"], Sync(**job["sync"]), options=job["options"])
            answer = json.dumps({"done": _carried_out(store, job["token"], request)})
        except Unusable as error:
            answer = json.dumps({"refused": str(error)})
        except Exception as error:
            answer = json.dumps({"error": f"{type(error).__name__}: {error}"})
        print(answer, flush=True)


def _carried_out(store: Store, token: int, request: Mapping[str, Any]) -> Any:
    if "fold" in request:
        chain = [FileEntry.from_json(entry) for entry in request["chain"]]
        return [entry.to_json() for entry in folded_chain(store, request["fold"], chain, token)]
    wanted = [Upload(**each) for each in request["save"]]
    return Saved.of([upload(store, token, open_files(each.folder), each) for each in wanted]).to_json()


if __name__ == "__main__":
    serve()
