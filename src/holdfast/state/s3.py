"""Files on S3 and what speaks like it: conditional puts, copies on the server, batched deletes, retries with a limit.

A client belongs to the process that made it: Spark's Python workers are forked, and connections do not survive that.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

import pyarrow as pa

from holdfast.errors import HoldfastError, Invalid, instead
from holdfast.state.files import Durable, Unusable, read_near

T = TypeVar("T")
AT_ONCE = 1000
"""So many names may be deleted by one request."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds before a request is made again: twice as long each time, half of it left to chance."""
_AGAIN = frozenset({408, 429, 500, 502, 503, 504})
_AGAIN_CODES = frozenset(
    {"SlowDown", "RequestTimeout", "InternalError", "ServiceUnavailable", "Throttling", "ThrottlingException",
     "TooManyRequests", "TooManyRequestsException", "RequestLimitExceeded", "OperationAborted",
     "ConditionalRequestConflict"}
)  # fmt: skip
_ABSENT = frozenset({"404", "NoSuchKey", "NotFound"})
_UNKNOWN = frozenset({"NoCredentialsError", "PartialCredentialsError", "InvalidAccessKeyId", "SignatureDoesNotMatch"})
_TAKEN = frozenset({"412", "PreconditionFailed"})


@dataclass(frozen=True, slots=True)
class S3Options:
    """What ``storage_options`` may have for S3; all else comes from the environment, as with any client of AWS.

    ``attempts``: so often a request is made at most, with pauses that grow; ``timeout``: seconds until one is given up.
    """

    key: str | None = field(default=None, repr=False)
    secret: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    endpoint_url: str | None = None
    region: str | None = None
    profile: str | None = None
    attempts: int = 6
    timeout: float = 20.0

    @classmethod
    def of(cls, url: str, options: Mapping[str, Any]) -> S3Options:
        names = [each.name for each in fields(cls)]
        if unknown := [name for name in options if name not in names]:
            raise Invalid(f"store {url}: storage_options {unknown[0]!r}: {instead(unknown[0], names, 'there are')}")
        for name, value in options.items():
            needed = _NEEDED.get(name, "a text")
            fits = isinstance(value, str) if needed == "a text" else _counts(value, whole=name == "attempts")
            if not fits and not (value is None and needed == "a text"):
                raise Invalid(f"store {url}: storage_options {name!r} must be {needed}, got {_shown(value)}")
        return cls(**options)

    def hidden(self, text: str) -> str:
        """A text in which no credentials are."""
        around = (os.environ.get(name) for name in ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"))
        for secret in (self.key, self.secret, self.token, *around):
            text = text.replace(secret, "***") if secret else text
        return text


_NEEDED = {"attempts": "a whole number of at least 1", "timeout": "a number of seconds above 0"}
"""The options that are no texts."""


def _counts(value: object, whole: bool) -> bool:
    return isinstance(value, int if whole else int | float) and not isinstance(value, bool) and value > 0


def _shown(value: object) -> str:
    """What was given, without what may be secret in it."""
    return f"{value!r}" if isinstance(value, int | float) else f"a value of type {type(value).__name__}"


def open_s3(url: str, options: Mapping[str, Any]) -> S3Files:
    """Files under ``s3://bucket/prefix``."""
    bucket, _, prefix = url.partition("://")[2].partition("/")
    if not bucket:
        raise Invalid(f"store {url}: a bucket is needed, such as s3://bucket/job")
    try:
        import botocore.session  # noqa: F401
    except ImportError:
        raise Invalid(f"store {url}: S3 needs a package that is not here: pip install 'holdfast[s3]'") from None
    return S3Files(url, bucket, prefix.strip("/"), S3Options.of(url, options))


class _Clients:
    """Those of this process, one for each kind of options: safe for threads, not for forks."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.made: dict[S3Options, Any] = {}
        self.known: set[S3Options] = set()
        """With these S3 has known who asks: when it does no more, that is trouble, not a mistake in what was given."""


_clients = _Clients()
os.register_at_fork(after_in_child=_clients.__init__)  # type: ignore[misc]


def _client(options: S3Options) -> Any:
    with _clients.lock:
        if options not in _clients.made:
            import botocore.session
            from botocore.config import Config

            config = Config(
                connect_timeout=min(5.0, options.timeout),
                read_timeout=options.timeout,
                max_pool_connections=32,
                retries={"total_max_attempts": 1},
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
                s3={"addressing_style": "path"} if _own_endpoint(options) else {},
            )
            session = botocore.session.Session(profile=options.profile)
            region = options.region or session.get_config_variable("region") or "us-east-1"
            _clients.made[options] = session.create_client(
                "s3",
                region_name=region,
                endpoint_url=options.endpoint_url,
                aws_access_key_id=options.key,
                aws_secret_access_key=options.secret,
                aws_session_token=options.token,
                config=config,
            )
        return _clients.made[options]


def _own_endpoint(options: S3Options) -> bool:
    """Services other than AWS are found by path, not by a host name for each bucket."""
    return bool(options.endpoint_url or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL"))


def _refused(error: Exception) -> tuple[int, str]:
    """The status and the code of an answer that is no yes; 0 where there was no answer."""
    told = getattr(error, "response", None)
    if not isinstance(told, Mapping):
        return 0, type(error).__name__
    status = int(told.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    return status, str(told.get("Error", {}).get("Code", status))


class S3Files:
    """Files below a prefix of a bucket. A finished write is durable, ``sync`` or not."""

    at_once = 16
    far = 1 << 17

    def __init__(self, url: str, bucket: str, prefix: str, options: S3Options) -> None:
        self.url = url.rstrip("/")
        self.store_id: str | None = None
        self._bucket = bucket
        self._prefix = prefix
        self._options = options

    def read(self, name: str) -> pa.Buffer:
        return self._asked("read", name, lambda: _body(self._get(name)))

    def read_parts(self, name: str, spans: Sequence[tuple[int, int]]) -> Sequence[pa.Buffer]:
        def part(span: tuple[int, int]) -> pa.Buffer:
            return self._asked("read", name, lambda: self._part(name, *span))

        def read(some: Sequence[tuple[int, int]]) -> Sequence[pa.Buffer]:
            if len(some) == 1:
                return [part(some[0])]
            with ThreadPoolExecutor(min(self.at_once, len(some))) as pool:
                return list(pool.map(part, some))

        return read_near(spans, self.far, read)

    def map(self, name: str) -> pa.Buffer:
        return self.read(name)

    def size(self, name: str) -> int:
        found = self._asked("read", name, lambda: self._api.head_object(Bucket=self._bucket, Key=self._key(name)))
        return int(found["ContentLength"])

    def list(self, folder: str) -> list[str]:
        prefix = self._under(folder)
        found = self._listed(folder, prefix, "/")
        return sorted(name for path in found if (name := path[len(prefix) :].rstrip("/")))

    def tree(self, folder: str) -> Sequence[str]:
        prefix = self._under(folder)
        return sorted(path[len(prefix) :] for path in self._listed(folder, prefix, ""))

    def put(self, name: str, data: bytes | pa.Buffer, sync: Durable) -> None:
        self._asked("write", name, lambda: self._put(name, data))

    def create(self, name: str, data: bytes | pa.Buffer, sync: Durable) -> None:
        try:
            self._asked("write", name, lambda: self._put(name, data, IfNoneMatch="*"))
        except FileExistsError:
            # A first try may have been ours: it took effect, and its answer was lost.
            if self.read(name).to_pybytes() != bytes(data):
                raise

    def move(self, name: str, target: str, sync: bool) -> None:
        try:
            self._asked("move", name, lambda: self._copy(name, target))
        except FileNotFoundError:
            self.size(target)
            return
        self.delete(name)

    def link(self, name: str, target: str, sync: bool = False, size: int | None = None) -> bool:
        if size is not None and self.size(name) != size:
            raise FileNotFoundError(name)
        try:
            self._asked("link", name, lambda: self._copy(name, target, IfNoneMatch="*"))
        except FileExistsError:
            return False
        return True

    def delete(self, name: str) -> None:
        key = self._key(name)
        with contextlib.suppress(FileNotFoundError):
            self._asked("delete", name, lambda: self._api.delete_object(Bucket=self._bucket, Key=key))

    def delete_many(self, names: Sequence[str]) -> None:
        if len(names) == 1:
            self.delete(names[0])
            return
        for start in range(0, len(names), AT_ONCE):
            self._delete([self._key(name) for name in names[start : start + AT_ONCE]])

    def delete_folder(self, folder: str) -> None:
        self.delete_many([f"{folder}/{name}" for name in self.list(folder)])

    def delete_tree(self, folder: str) -> None:
        keys = self._listed(folder, self._under(folder), "")
        for start in range(0, len(keys), AT_ONCE):
            self._delete(keys[start : start + AT_ONCE])

    def sweep(self, age: float) -> int:
        """Nothing: a put is atomic, so there are no temporary files."""
        return 0

    def within(self, folder: str) -> S3Files:
        return S3Files(f"{self.url}/{folder}", self._bucket, self._key(folder), self._options)

    @property
    def _api(self) -> Any:
        return _client(self._options)

    def _key(self, name: str) -> str:
        return "/".join(part for part in (self._prefix, name) if part)

    def _under(self, folder: str) -> str:
        key = self._key(folder)
        return f"{key}/" if key else ""

    def _get(self, name: str, **wanted: str) -> Any:
        return self._api.get_object(Bucket=self._bucket, Key=self._key(name), **wanted)

    def _part(self, name: str, start: int, size: int) -> pa.Buffer:
        try:
            answer = self._get(name, Range=f"bytes={start}-{start + size - 1}")
        except Exception as error:
            if _refused(error)[0] == 416:  # the file ends before
                return pa.allocate_buffer(0)
            raise
        data = _body(answer)
        # A service that knows no ranges answers with all of it.
        return data if answer.get("ContentRange") else data.slice(min(start, data.size))[:size]

    def _put(self, name: str, data: bytes | pa.Buffer, **condition: str) -> None:
        self._api.put_object(Bucket=self._bucket, Key=self._key(name), Body=bytes(data), **condition)

    def _copy(self, name: str, target: str, **condition: str) -> None:
        source = {"Bucket": self._bucket, "Key": self._key(name)}
        self._api.copy_object(Bucket=self._bucket, Key=self._key(target), CopySource=source, **condition)

    def _listed(self, folder: str, prefix: str, delimiter: str) -> Sequence[str]:
        """All keys below a prefix and, with a delimiter, the folders there."""
        found: list[str] = []
        wanted = {"Bucket": self._bucket, "Prefix": prefix, "Delimiter": delimiter}
        while True:
            page = self._asked("list", folder, lambda: self._api.list_objects_v2(**wanted))
            found += [each["Key"] for each in page.get("Contents", ())]
            found += [each["Prefix"] for each in page.get("CommonPrefixes", ())]
            if not page.get("IsTruncated"):
                return found
            wanted["ContinuationToken"] = page["NextContinuationToken"]

    def _delete(self, keys: Sequence[str]) -> None:
        def ask() -> None:
            wanted = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
            answer = self._api.delete_objects(Bucket=self._bucket, Delete=wanted)
            wrong = [each for each in answer.get("Errors", ()) if each.get("Code") not in _ABSENT]
            if wrong:
                raise _Cut(f"{wrong[0].get('Code')} for {len(wrong)} of {len(keys)}")

        self._asked("delete", f"{len(keys)} files", ask)

    def _asked(self, verb: str, name: str, request: Callable[[], T]) -> T:
        """The answer to a request, made again while the service is busy or silent, up to a limit."""
        attempt = 0
        while True:
            attempt += 1
            try:
                answer = request()
                _clients.known.add(self._options)
                return answer
            except HoldfastError:
                raise
            except Exception as error:
                status, code = _refused(error)
                if code in _ABSENT and verb != "write":
                    _clients.known.add(self._options)
                    raise FileNotFoundError(name) from None
                if code == "NoSuchBucket":
                    told = f"store {self.url}: there is no bucket {self._bucket}; make it, or name another"
                    raise Invalid(told) from None
                if code in _TAKEN or status == 412:
                    raise FileExistsError(name) from None
                if code in _UNKNOWN and self._options not in _clients.known:
                    raise Invalid(
                        f"store {self.url}: S3 does not know who asks ({code}); each machine needs credentials in its "
                        "environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, or a role), or give storage_options"
                    ) from None
                if attempt >= self._options.attempts or not self._passing(error, status, code):
                    why = f"{status} {code}" if status else f"{code}: {error}"
                    after = f" ({attempt} times)" if attempt > 1 else ""
                    told = self._options.hidden(f"store {self.url}: cannot {verb} {name or 'it'}: {why}{after}")
                    raise Unusable(" ".join(told.split())) from None
            pause = min(FIRST_PAUSE * 2 ** (attempt - 1), LONGEST_PAUSE)
            time.sleep(pause * random.uniform(0.5, 1.0))

    @staticmethod
    def _passing(error: Exception, status: int, code: str) -> bool:
        """Whether the same request may be answered otherwise in a moment."""
        from botocore.exceptions import HTTPClientError

        return (
            status in _AGAIN or code in _AGAIN_CODES | _UNKNOWN or isinstance(error, HTTPClientError | _Cut | OSError)
        )


def _body(answer: Mapping[str, Any]) -> pa.Buffer:
    """What an answer brings, all of it."""
    size, body = int(answer["ContentLength"]), answer["Body"]
    data = pa.allocate_buffer(size)
    view, at = memoryview(data).cast("B"), 0
    with contextlib.closing(body):
        for part in body.iter_chunks(1 << 20):
            view[at : at + len(part)] = part
            at += len(part)
    if at != size:
        raise _Cut(f"{at} bytes of {size} came")
    return data


class _Cut(Exception):
    """An answer that was not all of it."""
