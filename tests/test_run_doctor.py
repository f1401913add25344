"""doctor: go on a sound set-up, and every kind of trouble planted once and found."""

from __future__ import annotations

import base64
import errno
import json
import os
import stat
import tempfile
from collections import namedtuple
from dataclasses import replace
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from grace_store.base.events import Event, Progressed
from grace_store.base.settings import DataSpec, ExtractSpec, RunOptions
from grace_store.cli import main
from grace_store.model.closed_form import ClosedFormHead
from grace_store.run.doctor import doctor, machine_checks
from grace_store.run.doctor.data_checks import CheckResult, conclusion, is_go
from grace_store.run.doctor.machine_checks import try_place
from grace_store.run.engines.engine import ExtractJob
from grace_store.store.opened import SignalView
from tests import fake_model
from tests.fake_model import FakeExtractor, FakePending, make_fake_model
from tests.jobs import record
from tests.stores import STORAGES
from tests.tiny_models import tiny_text_model
from tests.tiny_vision_models import picture, png, tiny_vision_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_text_model("llama", tmp_path_factory.mktemp("model")))


@pytest.fixture
def job(tmp_path: Path, model: str) -> ExtractJob:
    """A sound set-up on a tiny model."""
    (tmp_path / "traces.jsonl").write_text("".join(json.dumps(record(i)) + "\n" for i in range(12)))
    return ExtractJob(
        model=model,
        data=(str(tmp_path / "traces.jsonl"),),
        store=str(tmp_path / "store.zarr"),
        data_request=DataSpec(min_steps=2),
        options=RunOptions(device="cpu", threads=1),
    )


@pytest.fixture
def fake(job: ExtractJob, tmp_path: Path) -> ExtractJob:
    """The same on the fake model, for checks that need none."""
    return replace(job, model=make_fake_model(tmp_path / "fake"), door=__name__)


# This module is the fake model's door and its reference.
REFERENCE = __name__
resolve_spec = fake_model.resolve_spec


class Prepared(list[Any]):
    set_aside: dict[int, Any] = {}  # noqa: RUF012


class PreparingExtractor(FakeExtractor):
    def prepare(self, samples: Any) -> Prepared:
        return Prepared(samples)


def open_extractor(_model: str, spec: Any, _options: Any, **_: Any) -> PreparingExtractor:
    return PreparingExtractor(spec)


TOLERANCE = {"float32": 1e-3, "bfloat16": 5e-2}


def autograd_difference(_extractor: Any, _samples: Any) -> float:
    return 0.0


def device_memory(_extractor: Any) -> dict[str, tuple[int, int]]:
    return {}


def finding(findings: list[CheckResult], check: str) -> CheckResult:
    (found,) = (each for each in findings if each.check == check)
    return found


def test_a_sound_set_up_may_go_and_nothing_is_left_behind(job: ExtractJob, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    found = doctor(job)
    assert is_go(found)
    checks = "data place vectors model samples disk gradient batches storage speed memory"
    assert {each.check: each.verdict for each in found} == dict.fromkeys(checks.split(), "ok")
    assert finding(found, "gradient").figures["difference"] < 1e-5
    assert finding(found, "batches").figures["difference"] < 1e-5
    assert finding(found, "storage").figures["largest"] < 2e-2
    assert finding(found, "speed").figures["seconds"] > 0
    assert finding(found, "data").figures == {"num_records": 12, "num_looked_at": 12, "num_usable": 12}
    assert sorted(tmp_path.rglob("*")) == before


def test_other_heads_agree_with_autograd_too(job: ExtractJob, tmp_path: Path) -> None:
    for family in ("gemma2", "gptj", "opt"):
        found = doctor(replace(job, model=str(tiny_text_model(family, tmp_path / family))))
        assert finding(found, "gradient").verdict == "ok"


def test_vectors_that_are_not_the_gradients_fail(job: ExtractJob, monkeypatch: pytest.MonkeyPatch) -> None:
    true = ClosedFormHead._pull_back
    monkeypatch.setattr(ClosedFormHead, "_pull_back", lambda self, mean: true(self, mean) * 1.01)
    monkeypatch.setattr("grace_store.model.choose_head._agree", lambda *_: True)
    found = finding(doctor(job), "gradient")
    assert found.verdict == "fail"
    assert found.figures["difference"] == pytest.approx(0.01, rel=1e-3)
    # Only options that are not in use yet can help: the model runs in float32.
    assert found.remedy == "Try --attention eager. If the check still fails, this model cannot be used."


def test_vectors_that_depend_on_their_batch_fail(fake: ExtractJob, monkeypatch: pytest.MonkeyPatch) -> None:
    def compute(self: FakeExtractor, prepared: Any) -> FakePending:
        signals = fake_model.fake_signals(prepared, self.spec.max_length)
        signals.segment_vector += np.float32(0.01 * len(prepared))
        return FakePending(signals)

    monkeypatch.setattr(PreparingExtractor, "compute", compute)
    examination = doctor(fake)
    found = finding(examination, "batches")
    assert (found.verdict, is_go(examination)) == ("fail", False)
    assert "in batches of 1, 2, 8 samples" in found.text
    assert found.remedy == "Use --attention eager or --batch-tokens 1 (one sample at a time)."
    other = replace(fake, request=ExtractSpec(dtype="bfloat16", attention="eager", packing=True))
    options = "--dtype float32 or --no-packing or --batch-tokens 1 (one sample at a time)"
    assert finding(doctor(other), "batches").remedy == f"Use {options}."


def test_long_checks_report_their_progress(job: ExtractJob) -> None:
    events: list[Event] = []
    doctor(job, events.append)
    told = [event.text for event in events if isinstance(event, Progressed)]
    assert [text for text in told if "autograd" in text][-1] == "Comparing sample 3 of 3 with autograd."
    assert "Running samples in batches of 2: 6 of 8 done." in told


def test_a_coarse_storage_is_warned_of(fake: ExtractJob) -> None:
    examination = doctor(replace(fake, request=ExtractSpec(storage="int4")))
    assert finding(examination, "storage").verdict == "warn"
    assert is_go(examination)


def test_data_that_cannot_be_used_fails_with_the_reasons(fake: ExtractJob) -> None:
    found = doctor(replace(fake, data_request=DataSpec(min_steps=9)))
    assert finding(found, "data").verdict == "fail"
    assert "0 of the first 12 records can be used as explicit, 12 too_few_steps" in finding(found, "data").text
    assert not is_go(found)
    assert [each.check for each in found] == ["data", "place", "vectors"]  # no model is loaded for nothing
    assert "`--min-steps 2` would keep 100 %. No model was loaded." in finding(found, "data").remedy
    half = finding(doctor(replace(fake, data_request=DataSpec(min_steps=5))), "data")
    assert (half.verdict, half.figures["num_usable"]) == ("warn", 3)
    assert half.brief == "9 of 12 records cannot be used: too_few_steps (--min-steps 5)"


def test_warnings_are_repeated_beside_the_verdict() -> None:
    good, tight = CheckResult("model", "ok", "fine"), CheckResult("disk", "warn", "tight")
    told = CheckResult("data", "warn", "a long story", brief="3 of 4 are lost")
    assert conclusion([good]) == "Ready."
    assert conclusion([good, told, tight]) == "Ready, with warnings: 3 of 4 are lost; tight."
    assert conclusion([told, CheckResult("disk", "fail", "full")]) == "Not ready: fix disk first."


def test_data_that_is_not_there_fails_and_the_rest_is_still_checked(fake: ExtractJob) -> None:
    found = doctor(replace(fake, data=("nowhere.jsonl",)))
    assert finding(found, "data").text == "No such file or folder: nowhere.jsonl."
    assert finding(found, "place").verdict == "ok"


def test_the_number_of_records_is_estimated(fake: ExtractJob) -> None:
    Path(fake.data[0]).write_text("".join(json.dumps(record(i)) + "\n" for i in range(5000)))
    figures = finding(doctor(fake), "data").figures
    assert figures["num_looked_at"] == 1024
    assert figures["num_records"] == pytest.approx(5000, rel=0.6)  # a block is read at a time


def test_a_model_that_cannot_be_loaded_fails(job: ExtractJob) -> None:
    found = doctor(replace(job, model="nowhere"))
    assert "There is no model at nowhere" in finding(found, "model").text
    assert [each.check for each in found] == ["data", "place", "vectors", "model"]


def test_samples_that_are_too_long_are_counted(job: ExtractJob) -> None:
    some = finding(doctor(replace(job, request=ExtractSpec(max_length=50))), "samples")
    assert some.verdict in ("warn", "fail")
    assert "too_long" in some.text


@pytest.mark.parametrize(("kept", "verdict"), [(12, "ok"), (9, "warn"), (2, "fail")])
def test_missing_images_are_found(fake: ExtractJob, tmp_path: Path, kept: int, verdict: str) -> None:
    (tmp_path / "images").mkdir()
    for i in range(kept):
        Image.new("RGB", (4, 4)).save(tmp_path / "images" / f"{i}.png")
    lines = [json.dumps({**record(i), "image": f"{i}.png"}) + "\n" for i in range(12)]
    Path(fake.data[0]).write_text("".join(lines))
    found = finding(doctor(replace(fake, images=str(tmp_path / "images"))), "images")
    assert (found.verdict, found.figures) == (verdict, {"num_images": 12, "num_unusable": 12 - kept})
    if kept < 12:
        assert f"no {kept}.png in the image folder" in found.remedy


def test_images_that_a_trainer_shows_otherwise_are_told(job: ExtractJob, tmp_path: Path) -> None:
    model = str(tiny_vision_model("qwen3_vl", tmp_path / "qwen"))
    large, holed = picture(900, 800), picture(60, 40)
    holed.putalpha(9)
    urls = ["data:image/png;base64," + base64.b64encode(png(image)).decode() for image in (large, holed)]
    lines = [{**record(i), "image": urls[i]} if i < 2 else record(i) for i in range(4)]
    Path(job.data[0]).write_text("".join(json.dumps(line) + "\n" for line in lines))
    job = replace(job, model=model, request=ExtractSpec(max_length=20_000))
    found = finding(doctor(job), "trainer")
    assert (found.verdict, found.text) == (
        "warn",
        "images of 2 samples prepared as processor does; ms-swift prepares 2 samples differently, 1 with another "
        "number of tokens; llama-factory prepares 2 samples differently, 0 with another number of tokens",
    )
    assert "--images-as" in found.remedy
    for way in ("processor", "ms-swift"):
        assert finding(doctor(replace(job, request=ExtractSpec(images_as=way))), "trainer").verdict == "ok"
    job = replace(job, model=str(tiny_vision_model("gemma3", tmp_path / "gemma")))
    assert finding(doctor(job), "trainer").text.endswith("how trainers prepare images for this model is not known")


def test_images_in_records_need_no_folder(fake: ExtractJob) -> None:
    Image.new("RGB", (4, 4)).save(stream := BytesIO(), "PNG")
    url = "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()
    Path(fake.data[0]).write_text("".join(json.dumps({**record(i), "image": url}) + "\n" for i in range(3)))
    assert finding(doctor(fake), "images").verdict == "ok"


@pytest.mark.parametrize(("free", "verdict"), [(10**12, "ok"), (11_000, "warn"), (100, "fail")])
def test_a_full_disk_is_seen_before_it_is_full(
    fake: ExtractJob, monkeypatch: pytest.MonkeyPatch, free: int, verdict: str
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(machine_checks.shutil, "disk_usage", lambda _: usage(10**12, 0, free))
    found = finding(doctor(fake), "disk")
    assert (found.verdict, found.figures["free_bytes"]) == (verdict, free)


def test_the_estimate_is_about_what_is_written(fake: ExtractJob, tmp_path: Path) -> None:
    from grace_store.run.extract import extract
    from grace_store.run.status import status

    # The token table of the fake model has few different numbers, and takes almost no space compressed.
    request = ExtractSpec(token_table=False)
    expected = finding(doctor(replace(fake, request=request)), "disk").figures["expected_bytes"]
    view = extract(
        ExtractJob(
            store=str(tmp_path / "store.zarr"), model=fake.model, data=fake.data, data_request=fake.data_request,
            door="tests.fake_model", samples_per_unit=4, request=request,
        )
    )  # fmt: skip
    written = status(view.store).num_bytes
    assert written / 4 < expected < written * 2  # tiny chunks have checksums and headers of their own


def test_the_estimate_has_twelve_bytes_for_each_token_of_the_table(fake: ExtractJob) -> None:
    responses = [f"We look at {'é' * i}.\n\nWe see it.\n\nAnswer: {i}" for i in range(12)]
    rows = [json.dumps({"prompt": f"What is {i}?", "response": text}) for i, text in enumerate(responses)]
    Path(fake.data[0]).write_text("\n".join(rows), encoding="utf-8")
    with_table, without = (
        finding(doctor(replace(fake, request=ExtractSpec(token_table=on))), "disk").figures["expected_bytes"]
        for on in (True, False)
    )
    num_tokens = sum(len(text.encode()) for text in responses) / 4
    assert with_table - without == pytest.approx(12 * num_tokens, abs=2)


def test_a_place_that_cannot_be_written_to_fails(fake: ExtractJob, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "replace", refuse)
    found = finding(doctor(fake), "place")
    assert (found.verdict, found.remedy) == ("fail", "Choose another place for the store.")
    assert "Read-only file system" in found.text


def test_a_place_without_links_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    trouble = try_place(tmp_path / "a" / "b.zarr")
    assert (trouble.verdict, trouble.text.partition(" has no hard links")[0]) == ("warn", str(tmp_path))
    monkeypatch.setattr(Path, "hardlink_to", lambda *_: None)
    trouble = try_place(tmp_path / "b.zarr")
    assert (trouble.verdict, "lets two runs create the same file" in trouble.text) == ("fail", True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_a_place_that_syncs_no_folders_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    sync = os.fsync

    def refuse(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(number, os.strerror(number))
        sync(handle)

    monkeypatch.setattr(os, "fsync", refuse)
    trouble = try_place(tmp_path / "b.zarr")
    assert (trouble.verdict, "cannot sync folders" in trouble.text) == ("warn", True)


def test_vectors_of_every_storage_are_written_and_read_again(
    fake: ExtractJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    found = finding(doctor(fake), "vectors")
    assert (found.verdict, found.text.partition(":")[0]) == ("ok", "float32, float16, int8, int4")
    assert f"zarr {version('zarr')}" in found.text
    assert list((tmp_path / "temporary").iterdir()) == []


def test_libraries_that_cannot_read_what_they_wrote_fail(fake: ExtractJob, monkeypatch: pytest.MonkeyPatch) -> None:
    def stumble(*_: Any) -> bool:
        raise AttributeError("'str' object has no attribute 'value'")

    monkeypatch.setattr("grace_store.store.array_group._has_codecs", stumble)
    examination = doctor(fake)
    found = finding(examination, "vectors")
    assert (found.verdict, is_go(examination)) == ("fail", False)
    for storage in STORAGES:
        assert f"{storage} cannot be read after it is written (AttributeError: 'str' object" in found.text
    assert f"Install other versions than zarr {version('zarr')}" in found.remedy


def test_a_storage_that_reads_other_numbers_is_named(fake: ExtractJob, monkeypatch: pytest.MonkeyPatch) -> None:
    true = SignalView.vectors
    monkeypatch.setattr(SignalView, "vectors", lambda self, sample: true(self, sample) + (self.name == "int8"))
    found = finding(doctor(fake), "vectors")
    assert (found.verdict, found.text) == (
        "fail",
        "int8 cannot be read after it is written (the numbers read differ from the numbers written)",
    )


def test_without_a_temporary_folder_vectors_are_not_tried(
    fake: ExtractJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    found = finding(doctor(fake), "vectors")
    assert (found.verdict, found.remedy) == ("warn", "Set TMPDIR to a folder with free space.")
    assert "No such file or directory" in found.text


def test_little_memory_is_warned_of(fake: ExtractJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grace_store.run.doctor.machine_checks.main_memory", lambda: (10**8, 10**10))
    found = finding(doctor(fake), "memory")
    assert (found.verdict, found.text) == ("warn", "100.0 MB of 10.0 GB of main memory left")


def test_memory_is_that_of_the_control_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 2000 kB\nMemAvailable: 1000 kB\n")
    monkeypatch.setattr(machine_checks, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(machine_checks, "_CGROUP", tmp_path)
    assert machine_checks.main_memory() == (1000 * 1024, 2000 * 1024)
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("400000\n")
    assert machine_checks.main_memory() == (600_000, 1_000_000)
    (tmp_path / "memory.max").write_text("max\n")
    assert machine_checks.main_memory() == (1000 * 1024, 2000 * 1024)
    (tmp_path / "meminfo").unlink()
    assert machine_checks.main_memory() is None


def test_the_command_says_go_or_what_to_change(job: ExtractJob) -> None:
    words = ["doctor", str(job.store), "--model", job.model, "--data", job.data[0], "--threads", "1"]
    good = CliRunner().invoke(main, [*words, "--min-steps", "2"])
    assert good.exit_code == 0, good.output
    assert good.stdout.splitlines()[-1] == "Ready."
    assert not Path(str(job.store)).exists()
    bad = CliRunner().invoke(main, words)
    assert bad.exit_code == 1
    assert bad.stdout.splitlines()[-1] == "Not ready: fix data first."
    assert "give it with --min-steps: 1 keeps 12 (100 %), 2 keeps 12 (100 %), 3 keeps 9 (75 %)," in bad.stdout
    told = json.loads(CliRunner().invoke(main, [*words, "--min-steps", "2", "--json"]).stdout)
    assert told["go"] is True
    assert {each["verdict"] for each in told["findings"]} == {"ok"}
