"""The sink of jobs on a cluster of hosts: a server that writes down what it is given, and when.

    python collector.py ADDRESS PORT FOLDER

A client sends an output as a line of JSON and is answered a line when it is written down, in FOLDER/JOB.jsonl. An
output that it has, by job, epoch, task and kind, is written down as given again. It runs on a host of its own, so a
driver that is cut off cannot reach it; the S3 server that holds the stores is there too.
"""

from __future__ import annotations

import json
import re
import socketserver
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from object_store import serving

LISTENING = "listening, and S3 at "
JOB = re.compile(r"[a-z0-9-]+")


def serve(address: str, port: int, folder: Path) -> None:
    had: set[tuple[object, ...]] = set()
    lock = threading.Lock()

    class Client(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            for line in self.rfile:
                given = json.loads(line)
                if JOB.fullmatch(given["job"]) is None:
                    return
                key = tuple(given[name] for name in ("job", "epoch", "task", "kind"))
                with lock, (folder / f"{given['job']}.jsonl").open("a", encoding="utf-8") as file:
                    told = {"time": round(time.time(), 3), "again": key in had, **given}
                    file.write(json.dumps(told) + "\n")
                    had.add(key)
                self.wfile.write(b"ok\n")

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = True
        daemon_threads = True

    with serving(address) as store, Server((address, port), Client) as server:
        print(f"{LISTENING}{store.endpoint}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
