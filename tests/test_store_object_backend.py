"""Stores in buckets: storage that fails, stalls or forgets to answer, and what is said when it stays so."""

from __future__ import annotations

import itertools
import pickle
import re
import socket
import sys
from collections.abc import Callable, Iterator

import pytest

from grace_store.base.errors import MissingExtra, SettingError, StorageError, how_to_install
from grace_store.run.doctor.machine_checks import try_storage
from grace_store.store import object_backend
from grace_store.store.backend import Backend, open_backend
from tests.s3_server import Fault, Proxy, environment, new_bucket, s3_server


@pytest.fixture(scope="module")
def s3_port() -> Iterator[int]:
    with s3_server() as port:
        yield port


@pytest.fixture
def proxy(s3_port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    with Proxy(s3_port) as proxy:
        for name, value in environment(proxy.port).items():
            monkeypatch.setenv(name, value)
        yield proxy


@pytest.fixture
def bucket(proxy: Proxy, s3_port: int) -> Backend:
    return open_backend(f"s3://{new_bucket(s3_port)}/a/store")


def first(times: int, fault: Fault) -> Callable[[str, str], Fault]:
    """A fault that befalls so many requests and no more."""
    left = [times]

    def befall(method: str, path: str) -> Fault:
        left[0] -= 1
        return fault if left[0] >= 0 else None

    return befall


# ---------------------------------------------------------------- what passes


@pytest.mark.parametrize("fault", [503, 429, "cut", "lost"])
def test_what_passes_is_not_noticed(bucket: Backend, proxy: Proxy, fault: Fault) -> None:
    bucket.write("key", b"old" * 100)
    for ask, answer in (
        (lambda: bucket.write("key", b"new" * 100), None),
        (lambda: bucket.read("key"), b"new" * 100),
        (lambda: bucket.write_new("lock", b"mine"), True),
        (lambda: bucket.renew("lock", b"mine"), True),
        (lambda: list(bucket.sizes()), [("key", 300), ("lock", 4)]),
        (lambda: bucket.delete("key"), None),
        (lambda: bucket.names(""), ["lock"]),
    ):
        proxy.fault = first(3, fault)
        assert ask() == answer


def test_a_request_without_an_answer_is_made_again(
    bucket: Backend, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(object_backend.REQUEST_SECONDS, "0.3")
    hasty = open_backend(bucket.location)
    proxy.fault = first(1, "stall")
    hasty.write("key", b"value")
    proxy.fault = first(1, "stall")
    assert hasty.read("key") == b"value"


def test_two_that_write_at_once_are_told_to_try_again_and_do(bucket: Backend, proxy: Proxy) -> None:
    conflict = b"<Error><Code>ConditionalRequestConflict</Code></Error>"
    proxy.fault, proxy.error_body = first(2, 409), conflict
    assert bucket.write_new("lock", b"mine")


def test_a_listing_goes_on_where_it_broke(bucket: Backend, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "10")
    monkeypatch.setattr(object_backend, "_KEYS_PER_PAGE", 10)
    keys = [f"many/{number:02d}" for number in range(25)]
    bucket.write_all(dict.fromkeys(keys, b"x"))
    proxy.counts()
    listing = bucket.walk("many")
    found = [next(listing)]
    proxy.fault = first(4, 500)
    found += listing
    assert found == keys
    assert proxy.counts() == {"LIST": 3 + 4}


# ---------------------------------------------------------------- what does not


def test_an_outage_ends_in_a_sentence_and_leaves_the_old_values(
    bucket: Backend, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(object_backend.OUTAGE_SECONDS, "1")
    hasty = open_backend(bucket.location)
    hasty.write("key", b"old")
    proxy.fault = lambda *_: 500
    with pytest.raises(StorageError, match=r"has not answered for \d s \(500 .*Everything committed is kept: run the"):
        hasty.write("key", b"new")
    with pytest.raises(StorageError, match="cannot be reached"):
        hasty.write_all({"key": b"new", "fresh": b"new"})
    proxy.fault = lambda *_: None
    assert list(hasty.read_all(["key", "fresh"])) == [b"old", None]


@pytest.mark.parametrize("status", [401, 403])
def test_being_refused_is_told_at_once(bucket: Backend, proxy: Proxy, status: int) -> None:
    bucket.read("key")
    proxy.fault = lambda *_: status
    proxy.counts()
    for ask in (lambda: bucket.read("key"), lambda: bucket.write("key", b""), lambda: bucket.names("")):
        with pytest.raises(StorageError, match=r"access was denied \(40. .*AWS_ACCESS_KEY_ID"):
            ask()
    assert sum(proxy.counts().values()) == 3


@pytest.mark.parametrize("status", [400, 501])
def test_a_request_that_means_nothing_is_not_made_again(bucket: Backend, proxy: Proxy, status: int) -> None:
    proxy.fault = lambda *_: status
    with pytest.raises(StorageError, match=rf"refused a request \({status} "):
        bucket.read("key")


def test_a_bucket_that_is_not_there_is_told_so(proxy: Proxy) -> None:
    for ask in (lambda place: place.read("key"), lambda place: place.write("key", b""), lambda place: place.names("")):
        with pytest.raises(StorageError, match=r"There is no bucket s3://no-such-bucket. Create it, or check"):
            ask(open_backend("s3://no-such-bucket/store"))


def test_storage_that_cannot_be_reached_is_told_without_waiting_for_an_outage_to_end(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{nobody.getsockname()[1]}")
    monkeypatch.setattr(object_backend, "_FIRST_ANSWER_SECONDS", 0.5)
    with pytest.raises(StorageError, match=r"cannot be reached \(connection refused\). Check the network, the URL"):
        open_backend("s3://bucket/store").read("key")


def test_without_credentials_that_is_what_is_said(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://127.0.0.1:{proxy.port}/169.254.169.254")
    proxy.fault = lambda *_: 404
    with pytest.raises(StorageError, match=r"there are no credentials in the environment \(AWS_ACCESS_KEY_ID"):
        open_backend("s3://bucket/store").read("key")


def test_no_secret_gets_into_a_message_or_a_pickle(bucket: Backend, proxy: Proxy) -> None:
    proxy.fault = lambda *_: 403
    with pytest.raises(StorageError) as caught:
        bucket.write("key", b"value")
    told = f"{caught.value} {caught.value.__cause__} {bucket.location} {pickle.dumps(bucket)!r} {bucket!r}"
    assert "not-to-be-told" not in told
    assert "Signature" not in told
    proxy.fault = lambda *_: None
    again = pickle.loads(pickle.dumps(bucket))
    again.write("key", b"value")
    assert bucket.read("key") == b"value"


def test_a_forked_process_is_told_so_instead_of_hanging(bucket: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_backend, "_opened_in", [1])
    with pytest.raises(StorageError, match=r"was forked from a process that uses an object store.*spawn"):
        bucket.read("key")


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(MissingExtra, match=re.escape(how_to_install("cloud"))):
        open_backend("s3://bucket/store")


@pytest.mark.parametrize("text", ["soon", "0", "-1", "inf", "nan"])
def test_seconds_are_a_number(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(object_backend.OUTAGE_SECONDS, text)
    with pytest.raises(SettingError, match=r"GRACE_STORE_OUTAGE_SECONDS is .* Give a number of seconds above 0"):
        open_backend("s3://bucket/store")


# ---------------------------------------------------------------- URLs


@pytest.mark.parametrize(
    ("url", "match"),
    [
        ("ftp://host/store", r"unknown storage ftp://. Give a local path or a URL with one of s3://, gs://, az://"),
        ("s3://bucket", "cannot be the place of a store. Give s3://BUCKET/FOLDER"),
        ("s3://bucket/", "cannot be the place of a store"),
        ("s3:///store", "cannot be the place of a store"),
        ("gs://bucket/a//b", "cannot be the place of a store"),
        ("az://bucket/a/../b", "cannot be the place of a store"),
        ("s3://bucket/store?versionId=1", "cannot be the place of a store"),
        ("s3://user:word@bucket/store", "has a user or a password. Remove them"),
    ],
)
def test_a_url_that_can_be_no_store_is_refused(url: str, match: str) -> None:
    with pytest.raises(SettingError, match=match) as caught:
        open_backend(url)
    assert "word@" not in str(caught.value)


@pytest.mark.parametrize("url", ["s3://bucket/a/b", "gs://bucket/store", "az://container/store"])
def test_each_kind_of_storage_is_opened_without_being_asked(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "somebody")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "bm90LXRvLWJlLXRvbGQ=")
    assert open_backend(f"{url}/").location == url


def test_a_setting_that_is_missing_is_told_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    text = r"cannot be opened \(a setting is missing or cannot be read\). Check .*AZURE_STORAGE_ACCOUNT_NAME"
    with pytest.raises(SettingError, match=text):
        open_backend("az://container/store")


def test_an_address_without_its_scheme_is_told_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "127.0.0.1:9000")
    with pytest.raises(SettingError, match=r"AWS_ENDPOINT_URL must begin with http:// or https://"):
        open_backend("s3://bucket/store")


# ---------------------------------------------------------------- the doctor


def test_the_doctor_tries_what_a_store_does_and_leaves_nothing(bucket: Backend) -> None:
    assert try_storage(bucket.location).verdict == "ok"
    assert list(bucket.walk()) == []


def test_the_doctor_finds_what_is_wrong(bucket: Backend, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(object_backend.ObjectBackend, "write_new", lambda self, *item: not self.write(*item))
        assert "overwrites objects although a store forbids this" in try_storage(bucket.location).text
    puts = itertools.count(1)
    proxy.fault = lambda method, _: 501 if method == "PUT" and next(puts) > 2 else None
    assert "does not allow a lock to be renewed" in try_storage(bucket.location).text
    proxy.fault = lambda method, _: 403 if method == "LIST" else None
    assert "access was denied" in try_storage(bucket.location).text
    proxy.fault = lambda *_: None
    assert list(bucket.walk()) == []
    proxy.fault = lambda *_: 403
    assert "access was denied" in try_storage(bucket.location).text
