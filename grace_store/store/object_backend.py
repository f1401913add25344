"""Read and write bytes by key in a bucket: the only importer of obstore. A PUT is atomic, and durable once it returns.

Every request goes through `_ask`, which retries it while the storage does not answer and turns other failures into
clear messages. Nothing from the environment, which has the secrets, gets into a location, a message or a pickle.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from grace_store.base.errors import MissingExtra, SettingError, StorageError, how_to_install
from grace_store.store.backend import Backend

if TYPE_CHECKING:
    from obstore import ObjectMeta, PutMode
    from obstore.store import AzureStore, GCSStore, S3Store

T = TypeVar("T")
U = TypeVar("U")

CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, and AWS_ENDPOINT_URL if the storage is not Amazon's",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY",
}
"""The URL schemes of stores, and the environment variables that each storage needs."""

REQUEST_SECONDS = "GRACE_STORE_REQUEST_SECONDS"
"""Environment variable: how long a request may go without an answer before it is retried."""
OUTAGE_SECONDS = "GRACE_STORE_OUTAGE_SECONDS"
"""Environment variable: how long requests are retried before a run gives up."""
_DEFAULTS = {REQUEST_SECONDS: 60.0, OUTAGE_SECONDS: 300.0}
_FIRST_ANSWER_SECONDS = 15.0
"""Time to wait for storage that has never answered (its address may be wrong) or that a run has given up."""
_LONGEST_PAUSE_SECONDS = 15.0
_REQUESTS_AT_ONCE = 16
_PART_BYTES = 32 << 20
"""Values above this size are uploaded in parts, and each part can be retried."""
_KEYS_PER_PAGE = 1000
_PASSING_STATUSES = (408, 409, 425, 429)
"""Statuses below 500 that a retry may overcome."""
_PASSING_CODES = ("RequestTimeout", "ConditionalRequestConflict", "OperationAborted")
"""Error codes that a retry may overcome with any status."""

_opened_in: list[int] = []
"""The process that first used obstore; a forked process does not have its threads."""


class ObjectBackend(Backend):
    """A prefix of a bucket. Thread-safe; its pickle is its URL."""

    def __init__(self, url: str) -> None:
        self._scheme, self._bucket, prefix = split_url(url)
        self.location = f"{self._scheme}://{self._bucket}/{prefix}"
        self._request_seconds = _seconds(REQUEST_SECONDS)
        self._outage_seconds = _seconds(OUTAGE_SECONDS)
        self._has_answered = False
        self._store = self._open(prefix)

    def __reduce__(self) -> tuple[type[ObjectBackend], tuple[str]]:
        return type(self), (self.location,)

    def read(self, key: str) -> bytes | None:
        return self._unless_missing(lambda: bytes(self._store.get(key).bytes()))

    def read_slice(self, key: str, part: slice) -> bytes | None:
        from obstore.exceptions import GenericError, NotSupportedError

        def get() -> bytes:
            try:
                if part.start >= 0 and part.stop is not None:
                    return bytes(self._store.get_range(key, start=part.start, end=part.stop))
                begin: Any = {"suffix": -part.start} if part.start < 0 else {"offset": part.start}
                return bytes(self._store.get(key, options={"range": begin}).bytes())
            except GenericError as error:
                if _status(str(error)) == 416:  # beyond the end
                    return b""
                raise

        try:
            return self._unless_missing(get, NotSupportedError)
        except NotSupportedError:  # Azure has no ranges from the end
            size = self.size(key)
            return None if size is None else self.read_slice(key, slice(max(0, size + part.start), size))

    def read_all(self, keys: Iterable[str]) -> Iterator[bytes | None]:
        return _several(self.read, keys)

    def write(self, key: str, value: bytes) -> None:
        self._put(key, value, "overwrite")

    def write_all(self, values: Mapping[str, bytes]) -> None:
        deque(_several(lambda item: self.write(*item), values.items()), maxlen=0)

    def write_new(self, key: str, value: bytes) -> bool:
        from obstore.exceptions import AlreadyExistsError

        try:
            self._put(key, value, "create", AlreadyExistsError)
        except AlreadyExistsError:
            # The same bytes mean that an earlier attempt succeeded, but its answer was lost.
            return self.read(key) == value
        return True

    def renew(self, key: str, value: bytes) -> bool:
        from obstore.exceptions import PreconditionError

        def get() -> tuple[bytes, ObjectMeta]:
            found = self._store.get(key)
            return bytes(found.bytes()), found.meta

        if (found := self._unless_missing(get)) is None or found[0] != value:
            return False
        version = {name: text for name in ("e_tag", "version") if (text := found[1].get(name)) is not None}
        try:
            self._put(key, value, version, PreconditionError)  # type: ignore[arg-type]
        except (PreconditionError, FileNotFoundError):
            return self.read(key) == value
        return True

    def flush(self) -> None:
        """Do nothing, because a PUT is durable once it returns."""

    def size(self, key: str) -> int | None:
        found = self._unless_missing(lambda: self._store.head(key))
        return None if found is None else found["size"]

    def written_at(self, key: str) -> float | None:
        found = self._unless_missing(lambda: self._store.head(key))
        return None if found is None else found["last_modified"].timestamp()

    def sizes(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        pages = _Pages(self._store, prefix)
        while page := self._ask(pages.next):
            for found in page:
                yield found["path"], found["size"]

    def names(self, prefix: str) -> list[str]:
        found = self._ask(lambda: self._store.list_with_delimiter(prefix or None))
        paths = [*found["common_prefixes"], *(each["path"] for each in found["objects"])]
        return sorted({path.rpartition("/")[2] for path in paths})

    def walk(self, prefix: str = "") -> Iterator[str]:
        return (key for key, _ in self.sizes(prefix))

    def delete(self, *keys: str) -> None:
        if not keys:
            return
        try:
            self._ask(lambda: self._store.delete(keys))
        except FileNotFoundError:
            # Some storages stop at the first missing key; Amazon's does not.
            if len(keys) > 1:
                deque(_several(self.delete, keys), maxlen=0)

    def delete_tree(self, prefix: str) -> None:
        self.delete(*self.walk(prefix))

    def prune(self) -> None:
        """Do nothing, because a bucket has no empty folders."""

    def _put(self, key: str, value: bytes, mode: PutMode, *expected: type[Exception]) -> None:
        try:
            self._ask(lambda: self._store.put(key, value, mode=mode, chunk_size=_PART_BYTES), *expected)
        except FileNotFoundError as error:
            if isinstance(mode, str):
                raise self._explained(error) from None
            raise

    def _unless_missing(self, request: Callable[[], T], *expected: type[Exception]) -> T | None:
        try:
            return self._ask(request, *expected)
        except FileNotFoundError as error:
            if _is_without_bucket(str(error)):
                raise self._explained(error) from None
            return None

    def _ask(self, request: Callable[[], T], *expected: type[Exception]) -> T:
        """Retry a request until it is answered or time runs out. FileNotFoundError and expected errors are answers."""
        from obstore.exceptions import BaseError

        if _opened_in[0] != os.getpid():  # a request would hang without the threads of the first process
            raise StorageError(
                "This process was forked from a process that uses an object store. A forked process cannot use the "
                "object store. Start the process with 'spawn'."
            )
        began = time.monotonic()
        pause = 0.1
        while True:
            try:
                answer = request()
            except (FileNotFoundError, BaseError) as error:
                waited = time.monotonic() - began
                if not _may_pass(error):
                    self._has_answered = True
                    if isinstance(error, (FileNotFoundError, *expected)):
                        raise
                    # The cause may contain signed headers or a token, so it is not chained.
                    raise self._explained(error) from None
                patience = self._outage_seconds if self._has_answered else _FIRST_ANSWER_SECONDS
                if waited + pause > min(patience, self._outage_seconds):
                    given_up = self._explained(error, waited)
                    self._has_answered = False
                    raise given_up from None
            else:
                self._has_answered = True
                return answer
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _explained(self, error: Exception, waited: float = 0.0) -> StorageError:
        """Return the error with its remedy, in words that contain no secret."""
        text, known = str(error), f"the environment ({CREDENTIALS[self._scheme]})"
        url, reason = self.location, _reason(text)
        if _is_without_bucket(text):
            bucket = f"{self._scheme}://{self._bucket}"
            return StorageError(f"There is no bucket {bucket}. Create it, or check its name and {known}.")
        if any(host in text for host in ("169.254.169.254", "metadata.google.internal")):
            return StorageError(f"{url}: there are no credentials in {known}, and this machine has no role of its own.")
        if _status(text) in (401, 403):
            return StorageError(
                f"{url}: access was denied ({reason}). Check the credentials in {known}, and check that they allow to "
                "list, read, write and delete."
            )
        if not _may_pass(error):
            return StorageError(f"{url}: the storage refused a request ({reason}). Check the URL and {known}.")
        if not self._has_answered:
            return StorageError(f"{url} cannot be reached ({reason}). Check the network, the URL and {known}.")
        return StorageError(
            f"{url} has not answered for {waited:.0f} s ({reason}). Everything committed is kept: run the "
            f"same command again once the storage is back. {OUTAGE_SECONDS} sets how long a run waits."
        )

    def _open(self, prefix: str) -> S3Store | GCSStore | AzureStore:
        try:
            from obstore import store
            from obstore.exceptions import BaseError
        except ModuleNotFoundError:
            raise MissingExtra(
                f"{self.location} is in an object store. Object stores need obstore, and obstore is not installed. "
                f"{how_to_install('cloud')}"
            ) from None
        for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"):
            # The library under obstore panics on an address without http://.
            if not os.environ.get(name, "http://").startswith(("http://", "https://")):
                raise SettingError(f"The environment variable {name} must begin with http:// or https://.")
        if not _opened_in:
            _opened_in.append(os.getpid())
        kinds: Any = {"s3": store.S3Store, "gs": store.GCSStore, "az": store.AzureStore}
        # As configuration, because client options would replace the settings of the environment.
        config: Any = {
            "allow_http": "true",  # for endpoints that the user gives as http://
            "connect_timeout": f"{min(10.0, self._request_seconds)}s",
            "read_timeout": f"{self._request_seconds}s",
            "timeout": "1h",
        }
        try:
            # obstore itself retries little: `_ask` retries with a new signature.
            retry = {"max_retries": 2, "retry_timeout": timedelta(seconds=self._request_seconds)}
            opened: S3Store | GCSStore | AzureStore = kinds[self._scheme](
                self._bucket, prefix=prefix, config=config, retry_config=retry
            )
            return opened
        except (BaseError, ValueError) as error:
            reason = _reason(str(error), otherwise="a setting is missing or cannot be read")
            known = f"the environment ({CREDENTIALS[self._scheme]})"
            raise SettingError(f"{self.location} cannot be opened ({reason}). Check the URL and {known}.") from None


def split_url(url: str) -> tuple[str, str, str]:
    """Return the scheme, bucket and prefix of a store's URL, or raise SettingError."""
    if "@" in (parts := urlsplit(url)).netloc:
        raise SettingError(
            "The URL of the store has a user or a password. Remove them and put the credentials into the environment."
        )
    if parts.scheme not in CREDENTIALS:
        known = ", ".join(f"{scheme}://" for scheme in CREDENTIALS)
        raise SettingError(f"{url}: unknown storage {parts.scheme}://. Give a local path or a URL with one of {known}.")
    prefix = parts.path.strip("/")
    is_plain = not (parts.query or parts.fragment) and not {"", ".", ".."} & set(prefix.split("/"))
    if not (parts.netloc and prefix and is_plain):
        raise SettingError(f"{url} cannot be the place of a store. Give {parts.scheme}://BUCKET/FOLDER.")
    return parts.scheme, parts.netloc, prefix


class _Pages:
    """A listing that continues where it was after a failed request."""

    def __init__(self, store: S3Store | GCSStore | AzureStore, prefix: str) -> None:
        self._store = store
        self._prefix = prefix or None
        self._last: str | None = None
        self._pages: Iterator[Any] | None = None

    def next(self) -> list[ObjectMeta]:
        """Return the next page, empty at the end."""
        if self._pages is None:
            self._pages = iter(self._store.list(self._prefix, offset=self._last, chunk_size=_KEYS_PER_PAGE))
        pages, self._pages = self._pages, None
        page = list(next(pages, ()))
        self._pages = pages
        if page:
            self._last = page[-1]["path"]
        return page


def _several(do: Callable[[T], U], items: Iterable[T]) -> Iterator[U]:
    """Yield the results of a function for items, in their order, with several calls at a time."""
    pool = ThreadPoolExecutor(_REQUESTS_AT_ONCE)
    under_way: deque[Future[U]] = deque()
    try:
        for item in items:
            under_way.append(pool.submit(do, item))
            if len(under_way) == _REQUESTS_AT_ONCE:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _may_pass(error: Exception) -> bool:
    """Return whether a retry may succeed: after no answer, a server error, or too many requests."""
    from obstore.exceptions import GenericError

    text = str(error)
    if any(f"<Code>{code}</Code>" in text for code in _PASSING_CODES):
        return True
    if not isinstance(error, GenericError) or "builder error" in text:
        return False
    status = _status(text)
    return status is None or (status >= 500 and status != 501) or status in _PASSING_STATUSES


def _is_without_bucket(text: str) -> bool:
    return any(code in text for code in ("NoSuchBucket", "ContainerNotFound", "bucket does not exist"))


def _status(text: str) -> int | None:
    found = re.search(r"status code: (\d{3})", text)
    return int(found[1]) if found else None


def _reason(text: str, otherwise: str = "the connection broke") -> str:
    """Return the reason in a message of obstore, in words that contain no secret."""
    found = re.search(r"status code: (\d{3}[A-Za-z -]*)", text)
    code = re.search(r"<Code>(\w+)</Code>", text)
    if found:
        return f"{found[1].strip()}: {code[1]}" if code else found[1].strip()
    signs = {
        "ConnectionRefused": "connection refused",
        "dns error": "no such host",
        "TimedOut": "no answer in time",
        "Timeout": "no answer in time",
        "builder error": "the endpoint is not a URL",
    }
    return next((words for sign, words in signs.items() if sign in text), otherwise)


def _seconds(name: str) -> float:
    text = os.environ.get(name, "")
    try:
        seconds = float(text) if text else _DEFAULTS[name]
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise SettingError(f"{name} is {text!r}. Give a number of seconds above 0.")
    return seconds
