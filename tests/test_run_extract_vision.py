"""The whole of an extraction with images: demo traces with figures through a tiny Qwen3-VL and the real door."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from grace_store.base.errors import ResumeMismatch, SettingError
from grace_store.base.events import Warned
from grace_store.base.settings import ExtractSpec, RunOptions
from grace_store.cli import main
from grace_store.example import FOLDER
from grace_store.run.engines.engine import ExtractJob
from grace_store.run.extract import extract
from grace_store.run.plan import plan
from grace_store.run.status import status
from grace_store.run.verify import verify, verify_against_model
from tests.jobs import content, processes
from tests.tiny_vision_models import tiny_vision_model

OPTIONS = RunOptions(device="cpu", threads=1)
REQUEST = ExtractSpec(max_pixels=2048, batch_tokens=4096, storage="float32")
NUM_FIGURES = 16


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(tiny_vision_model("qwen3_vl", tmp_path_factory.mktemp("model") / "qwen3_vl"))


def make_job(store: Path, model: str, data: Path = FOLDER / "traces.jsonl", **changes) -> ExtractJob:
    settings = {"data": (str(data),), "request": REQUEST, "options": OPTIONS, "samples_per_unit": 16}
    return ExtractJob(str(store), model, **(settings | changes))


@pytest.fixture(scope="module")
def finished(model, tmp_path_factory) -> Path:
    store = tmp_path_factory.mktemp("finished") / "store.zarr"
    extract(make_job(store, model))
    return store


def test_every_trace_with_its_figure_is_done(finished, model):
    view = extract(make_job(finished, model))
    counts = status(view.store, "base")
    assert counts.num_planned == 0
    assert counts.num_done == view.store.plan.num_samples
    digests = [view.commit(unit).images_sha256 for unit in view.committed_units()]
    assert any(digests)
    assert len({digest for digest in digests if digest}) == sum(digest is not None for digest in digests)
    assert list(verify(view.store, deep=True)) == []
    assert list(verify_against_model(view, ExtractJob(view.store.location, model, options=OPTIONS), 2)) == []


def test_a_worker_process_writes_the_same_bytes(finished, model, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent.parent))
    extract(make_job(tmp_path / "store.zarr", model, engine=processes("cpu")))
    assert content(tmp_path / "store.zarr") == content(finished)


def test_figures_that_are_elsewhere_are_found_with_images_only(finished, model, tmp_path):
    data = Path(shutil.copy(FOLDER / "traces.jsonl", tmp_path))
    view = extract(make_job(tmp_path / "without.zarr", model, data))
    counts = status(view.store, "base")
    assert {reason: counts.set_aside[reason] for reason in counts.set_aside if "image" in reason} == {
        "image_missing": NUM_FIGURES
    }
    view = extract(make_job(tmp_path / "with.zarr", model, data, images=str(FOLDER)))
    assert view.signal.origin["images"] == str(FOLDER)
    expected = extract(make_job(finished, model))
    for unit in view.committed_units():
        assert view.commit(unit).chunks == expected.commit(unit).chunks
        assert view.commit(unit).images_sha256 == expected.commit(unit).images_sha256
    assert list(verify_against_model(view, ExtractJob(view.store.location, model, options=OPTIONS), 1)) == [], (
        "as the signal was begun"
    )


def test_pixel_limits_are_frozen_with_the_signal(finished, model):
    with pytest.raises(ResumeMismatch, match="max-pixels: begun with 2048, now 1024"):
        extract(make_job(finished, model, request=ExtractSpec(max_pixels=1024)))
    extract(make_job(finished, model, request=ExtractSpec()))


def test_whose_images_they_are_is_frozen(finished, model, tmp_path):
    before = content(finished)
    extract(make_job(finished, model, request=ExtractSpec(images_as="processor")))
    assert content(finished) == before
    with pytest.raises(ResumeMismatch, match="images-as: begun with processor, now ms-swift"):
        extract(make_job(finished, model, request=ExtractSpec(images_as="ms-swift")))
    view = extract(make_job(tmp_path / "store.zarr", model, request=ExtractSpec(images_as="ms-swift")))
    assert view.signal.spec.images_as == "ms-swift"
    assert list(verify_against_model(view, ExtractJob(view.store.location, model, options=OPTIONS), 1)) == []
    with pytest.raises(ResumeMismatch, match="images-as: begun with ms-swift, now processor"):
        extract(make_job(tmp_path / "store.zarr", model, request=ExtractSpec(images_as="processor")))


def test_planning_says_how_many_figures_are_not_there(tmp_path):
    data, events = str(FOLDER / "traces.jsonl"), []
    plan([data], tmp_path / "here.zarr", images=str(FOLDER), listener=events.append)
    assert not [event for event in events if isinstance(event, Warned)]
    plan([data], tmp_path / "gone.zarr", images=str(tmp_path), listener=events.append)
    assert [event.text for event in events if isinstance(event, Warned)] == [
        f"{NUM_FIGURES} images named by records could not be found in {tmp_path}."
    ]
    assert content(tmp_path / "here.zarr") == content(tmp_path / "gone.zarr"), "where images lie is no part of a plan"
    with pytest.raises(SettingError, match="is not a folder"):
        plan([data], tmp_path / "no.zarr", images=str(tmp_path / "nowhere"))


def test_images_that_were_exchanged_are_found_out(model, tmp_path):
    shutil.copytree(FOLDER / "images", tmp_path / "images")
    data = Path(shutil.copy(FOLDER / "traces.jsonl", tmp_path))
    view = extract(make_job(tmp_path / "store.zarr", model, data))
    for image in (tmp_path / "images").iterdir():
        shutil.copy(FOLDER / "images" / "chart-01.png", image)
    problems = list(verify_against_model(view, ExtractJob(view.store.location, model, options=OPTIONS), 4))
    assert problems
    assert {problem.text for problem in problems} == {
        "the images of the unit have changed since the unit was extracted"
    }


def test_from_the_command_line(model, tmp_path):
    (tmp_path / "data").mkdir()
    lines = (FOLDER / "traces.jsonl").read_text(encoding="utf-8").splitlines()
    with_figure = [line for line in lines if '"image_url": "' in line][:3]
    (tmp_path / "data" / "few.jsonl").write_text("\n".join(with_figure))
    store = str(tmp_path / "few.zarr")
    options = ["--images", str(FOLDER), "--max-pixels", "1024", "--device", "cpu", "--threads", "1"]
    base = [store, "--model", model, "--data", str(tmp_path / "data" / "few.jsonl"), "--json"]
    done = CliRunner().invoke(main, ["extract", *base, *options])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["num_done"] == 3
    checked = CliRunner().invoke(
        main, ["verify", store, "--model", model, "--images", str(FOLDER), "--device", "cpu", "--json"]
    )
    assert checked.exit_code == 0, checked.output
