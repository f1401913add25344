"""What is sent when a run fails tells of the failure, and nothing of traces, folders, hosts and secrets."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from grace_store.base.errors import DeviceLost
from grace_store.base.events import Listener, Note, ignore
from grace_store.base.settings import ExtractSpec
from grace_store.run.engines.engine import ExtractJob
from grace_store.run.extract import extract, logged
from grace_store.run.support import DEVICE_SECONDS, support
from grace_store.store.opened import Store
from tests.commands import run
from tests.jobs import make_job
from tests.pretend.processes import environment

SECRETS = {
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI",
    "HF_TOKEN": "hf_abcdefghij",
    "OPENAI_API_KEY": "sk-1234567890",
    "EDITOR": "a-private-editor",
}
SYSTEM = "You are the private assistant of a company."
TRACE = "We look at part 0 of case 3."


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder with a dataset, a model, a store, and runs that failed."""
    home = tmp_path_factory.mktemp("homes") / "somebody"
    work = home / "Secret Project"
    work.mkdir(parents=True)
    job: ExtractJob = make_job(work, request=ExtractSpec(system=SYSTEM))
    assert TRACE in (work / "traces.jsonl").read_text()
    extract(job)
    store = Store.open(job.store)
    with pytest.raises(DeviceLost), logged(store, ignore) as listener:
        _lose(listener, f"The device is lost. {work}/own holds '{TRACE} {TRACE}'.")
    with pytest.raises(KeyError), logged(store, ignore):
        raise KeyError(TRACE)
    return home


def _lose(listener: Listener, words: str) -> None:
    listener(Note(f"Reading {words.partition('. ')[2]} and s3://key:word@bucket/x on {socket.gethostname()}."))
    try:
        raise RuntimeError(TRACE)
    except RuntimeError as error:
        raise DeviceLost(words) from error


@pytest.fixture(scope="module")
def report(home: Path) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**SECRETS, "HOME": str(home), "OMP_NUM_THREADS": "1"}.items():
            patch.setenv(name, value)
        patch.chdir(home)
        out = home / "support.json"
        run("support", home / "Secret Project" / "store.zarr", "--out", out)
        found: dict[str, Any] = json.loads(out.read_text())
        return found


def test_nothing_private_is_in_it(report: dict[str, Any], home: Path) -> None:
    text = json.dumps(report, ensure_ascii=False)
    for private in (*SECRETS.values(), SYSTEM, str(home), "Secret Project", "somebody", "key:word", "bucket"):
        assert private not in text, private
    for line in (home / "Secret Project" / "traces.jsonl").read_text().splitlines():
        if line.startswith('{"'):
            record = json.loads(line)
            for part in (record["prompt"], *record["steps"], record["answer"], record["id"]):
                assert part not in text, part


def test_what_happened_is_in_it(report: dict[str, Any]) -> None:
    assert report["versions"].keys() >= {"Python", "torch", "transformers", "zarr", "numpy"}
    assert report["devices"]["num_devices"] == 0
    assert report["environment"]["OMP_NUM_THREADS"] == "1"
    (signal,) = report["store"]["signals"].values()
    assert signal["spec"]["system"] == f"{len(SYSTEM)} characters"
    assert signal["counts"]["num_units_done"] == 6
    lost, unforeseen = (event for events in report["runs"] for event in events if event["event"] == "Failed")
    assert lost["text"] == "DeviceLost: The device is lost. …/own holds '…'."
    assert lost["where"][-1].endswith("in _lose")
    assert unforeseen["text"] == "KeyError"
    notes = [event["text"] for events in report["runs"] for event in events if event["event"] == "Note"]
    assert notes[-1].endswith(" and s3:… on HOST.")


def test_a_damaged_log_is_told_line_by_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store.open(extract(make_job(tmp_path)).store.location)
    (log,) = (Path(store.location) / "ledger/runs").iterdir()
    whole = log.read_bytes().splitlines()
    log.write_bytes(b"\n".join([whole[0], b"{\xff\x00}", b"3", b"[" * 5000 + b"}", whole[-1][:20]]))
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess((), 0, b"", b""))
    first, *others = support(store.location).runs[-1]
    assert first["event"] == json.loads(whole[0])["event"]
    sizes = ["4 characters", "1 characters", "5001 characters", "20 characters"]
    assert others == [{"damaged_line": size} for size in sizes]


def test_a_store_that_is_not_there_and_a_device_that_never_answers_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hang(*_: Sequence[str], **__: object) -> None:
        said = b'{"num_devices": 2}\n{"begins": 0}\n{"device": 0, "probe": "ok"}\n{"begins": 1}\n{"dev'
        raise subprocess.TimeoutExpired("it", 1, output=said)

    monkeypatch.setattr(subprocess, "run", hang)
    found = support(tmp_path / "no.zarr")
    assert found.store is not None
    assert found.store["failure"].startswith("NotAStore: ")
    assert str(tmp_path) not in found.model_dump_json()
    late = f"no answer within {DEVICE_SECONDS:g} seconds"
    assert found.devices["listed"] == [{"device": 0, "probe": "ok"}, {"device": 1, "probe": late}]


@pytest.mark.slow
def test_a_lost_device_is_found_by_its_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment(devices=2, faults="1=fail@2").items():
        monkeypatch.setenv(name, value)
    listed = support().devices["listed"]
    assert listed[0]["probe"] == "ok"
    assert listed[0]["name"].startswith("Pretend accelerator")
    assert listed[1]["probe"].startswith("DeviceLost: The device pretend is lost")
