"""Projected gradients as signals: killed, resumed, checked, mended, shown, and scored where they have steps."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from grace_store.base.errors import ResumeMismatch, SettingError
from grace_store.base.events import Note, UnitCommitted, Warned
from grace_store.base.settings import ExtractSpec, GradientSpec, RunOptions
from grace_store.cli import main
from grace_store.run.engines.engine import ExtractJob
from grace_store.run.extract import expected_bytes, extract
from grace_store.run.extractor_protocol import PROXY
from grace_store.run.open_signal import choose_signals, name_signals
from grace_store.run.status import status
from grace_store.run.verify import repair, verify, verify_against_model
from grace_store.scoring.score import score
from grace_store.store.backend import commit_key
from grace_store.store.digested_json import seal, to_bytes
from grace_store.store.opened import Store
from grace_store.store.unit_writer import UnitWriter, complete_signal, digest_of
from grace_store.train.warmup import warmup
from tests import fake_model, warmups
from tests.gradients import TrueGradients, open_gradient
from tests.jobs import NUM_RECORDS, NUM_USABLE, content, make_job, processes
from tests.mortal_backend import Crash, MortalBackend
from tests.stores import add_signal, make_spec, random_vectors, spans_for, write_plan

GRADIENT = ExtractSpec(kind="gradient", max_length=150)
ONE_THREAD = RunOptions(device="cpu", threads=1)


def gradient_job(folder: Path, store: str = "store.zarr", **changes) -> ExtractJob:
    """A job of vectors per sample on the fake model."""
    (folder / "checkpoint").mkdir(exist_ok=True)
    return make_job(folder, store, **({"request": GRADIENT, "adapter": str(folder / "checkpoint")} | changes))


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    return Path(extract(gradient_job(folder)).store.location)


# ---------------------------------------------------------------- on the fake model


def test_a_sample_has_one_vector_and_every_count_adds_up(finished):
    store = Store.open(finished)
    view = store.signal("base")
    assert view.per_sample
    assert view.vector_size == view.signal.spec.gradient.dimension
    counts = status(store)
    assert counts.num_records == NUM_RECORDS == counts.num_planned + counts.num_done + counts.num_set_aside
    assert counts.set_aside["too_long"] > 0
    assert list(verify(store, deep=True)) == []
    vectors = np.concatenate([view.unit_vectors(unit) for unit in view.committed_units()])
    assert vectors.shape == (NUM_USABLE, view.vector_size)
    assert vectors.dtype == np.float32
    done = np.array([view.state(sample) == "done" for sample in range(NUM_USABLE)])
    np.testing.assert_allclose(np.linalg.norm(vectors[done], axis=1), 1, rtol=1e-2)
    assert done.sum() == counts.num_done
    assert not vectors[~done].any()


@pytest.mark.parametrize("storage", ["float32", "float16", "int8", "int4"])
@pytest.mark.parametrize("normalise", [True, False])
def test_vectors_are_read_as_they_were_written(tmp_path, storage, normalise):
    write_plan(tmp_path / "s.zarr", [3, 1, 4, 1, 5, 9], 4)
    view = add_signal(Store.open(tmp_path / "s.zarr"), storage, 90, per="sample", normalise=normalise)
    written = [random_vectors(view, unit, [0] if unit else []) for unit in range(2)]
    for unit, signals in enumerate(written):
        UnitWriter(view).write(unit, signals, spans_for(view, unit))
    complete_signal(view)
    assert list(verify(view.store, deep=True)) == []
    for unit, signals in enumerate(written):
        start, stop = view.store.plan.unit_range(unit)
        found, scale = view.unit_vectors(unit), np.abs(signals.sample_vector).max()
        assert found.shape == (stop - start, 90)
        tolerance = {"float32": 0, "float16": 1e-3, "int8": 8e-3, "int4": 0.3}[storage]
        np.testing.assert_allclose(found, signals.sample_vector, rtol=0, atol=tolerance * scale)
        for name in ("sample_norm", "sample_num_tokens", "sample_loss"):
            np.testing.assert_array_equal(view.unit_array(name, unit), getattr(signals, name))
            assert view.sample_value(name, start) == getattr(signals, name)[0]


def test_rows_that_do_not_fit_are_not_written(tmp_path):
    write_plan(tmp_path / "s.zarr", [3, 1], 2)
    view = add_signal(Store.open(tmp_path / "s.zarr"), "int8", 8, per="sample")
    signals = random_vectors(view, 0)
    signals.sample_vector = signals.sample_vector[:1]
    with pytest.raises(ValueError, match="unit 0 has 2 samples, sample_vector has 1 rows"):
        UnitWriter(view).write(0, signals, spans_for(view, 0))
    signals.sample_vector = np.full((2, 8), np.nan, np.float32)
    with pytest.raises(ValueError, match="unit 0 has vectors that are not finite"):
        UnitWriter(view).write(0, signals, spans_for(view, 0))


def test_killed_then_resumed_is_byte_identical(tmp_path, mortal: type[MortalBackend], monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    extract(gradient_job(tmp_path, "whole.zarr", samples_per_unit=8))
    whole, num_operations = content(tmp_path / "whole.zarr"), mortal.num_operations
    for crash_at in range(3, num_operations + 1, 23):
        store = f"killed-{crash_at}.zarr"
        mortal.revive(crash_at)
        with pytest.raises(Crash):
            extract(gradient_job(tmp_path, store, samples_per_unit=8))
        mortal.revive()
        extract(gradient_job(tmp_path, store, samples_per_unit=8))
        assert content(tmp_path / store) == whole
        shutil.rmtree(tmp_path / store)


def test_shards_and_one_run_write_the_same_bytes(tmp_path, finished):
    job = gradient_job(tmp_path)
    shutil.copytree(finished.parent, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.zarr"))
    for shard in ((1, 2), (0, 2)):
        extract(replace(job, data=(str(finished.parent / "traces.jsonl"),), model=str(finished.parent / "model"),
                        adapter=str(finished.parent / "checkpoint"), shard=shard))  # fmt: skip
    assert content(tmp_path / "store.zarr") == content(finished)


ARRAYS = ["sample_vector", "sample_scale", "sample_norm", "sample_num_tokens", "sample_loss", "sample_state"]


@pytest.mark.parametrize("array", ARRAYS)
def test_a_flipped_bit_is_found_and_mended(finished, tmp_path, array):
    store = Store.open(shutil.copytree(finished, tmp_path / "store.zarr"))
    before = content(store.location)
    chunk = next((Path(store.location) / "signals/base" / array / "c").glob("2/0" if "vector" in array else "2"))
    raw = bytearray(chunk.read_bytes())
    raw[len(raw) // 2] ^= 4
    chunk.write_bytes(raw)
    assert [problem.where for problem in verify(store)] == []
    found = list(verify(store, deep=True))
    assert [(problem.unit, problem.text) for problem in found] == [(2, "the chunk has changed since it was written")]
    repair(replace(gradient_job(finished.parent), store=store.location))
    assert content(store.location) == before


def test_vectors_that_are_not_as_long_as_is_said_are_found(tmp_path):
    """As a writer with an error in it would leave them: all digests match."""
    write_plan(tmp_path / "s.zarr", [3, 1, 4], 4)
    view = add_signal(Store.open(tmp_path / "s.zarr"), "int8", 30, per="sample")
    signals = random_vectors(view, 0)
    signals.sample_vector *= np.float32(1.5)
    UnitWriter(view).write(0, signals, spans_for(view, 0))
    complete_signal(view)
    assert list(verify(view.store)) == []
    assert [problem.text for problem in verify(view.store, deep=True)] == [
        "the lengths of the vectors differ from the stored norms"
    ]


@pytest.mark.parametrize(
    ("wishes", "difference"),
    [
        ({"seed": 1}, "gradient seed: begun with 0, now 1"),
        ({"dimension": 12}, "gradient dimension: begun with 24, now 12"),
        ({"per": "segment"}, "gradient per: begun with sample, now segment"),
        ({"projection": "sparse"}, "gradient projection: begun with rademacher, now sparse"),
    ],
)
def test_other_wishes_are_refused_with_the_difference(finished, wishes, difference):
    request = ExtractSpec(gradient=GradientSpec(**wishes))
    with pytest.raises(ResumeMismatch, match=difference):
        extract(gradient_job(finished.parent, request=request))


def test_other_kinds_and_weights_are_refused(tmp_path):
    folder = Path(extract(gradient_job(tmp_path)).store.location).parent
    with pytest.raises(ResumeMismatch, match="kind: begun with gradient, now proxy"):
        extract(gradient_job(folder, request=ExtractSpec(kind="proxy")))
    proxy = make_job(folder, signal="proxy")
    extract(proxy)
    with pytest.raises(ResumeMismatch, match="kind: begun with proxy, now gradient"):
        extract(replace(proxy, request=GRADIENT))
    (folder / "other").mkdir()
    with pytest.raises(ResumeMismatch, match="model adapter: begun with"):
        extract(gradient_job(folder, adapter=str(folder / "other")))
    assert list(verify(Store.open(folder / "store.zarr"), deep=True)) == []


def test_a_signal_goes_on_without_being_asked_for_again(finished):
    before = content(finished)
    extract(ExtractJob(str(finished), door="tests.fake_model"))
    assert content(finished) == before


def test_with_nothing_said_it_goes_on_with_what_is_not_finished(tmp_path):
    nothing = ExtractSpec()
    store = str(tmp_path / "store.zarr")
    assert choose_signals(store, (), (), None, nothing) == [("base", None)]
    extract(gradient_job(tmp_path, signal="a", shard=(0, 2)))
    extract(gradient_job(tmp_path, signal="b"))
    assert choose_signals(store, (), (), None, nothing) == [("a", None)]
    assert choose_signals(store, (), (), str(tmp_path / "model"), nothing) == [("base", None)]
    extract(gradient_job(tmp_path, signal="c", shard=(0, 2)))
    assert choose_signals(store, (), (), None, nothing) == [("a", None), ("c", None)]
    for name, _ in choose_signals(store, (), (), None, nothing):
        extract(ExtractJob(store, signal=name, door="tests.fake_model"))
    assert choose_signals(store, (), (), None, nothing) == [("a", None), ("b", None), ("c", None)]
    (tmp_path / "traces.jsonl").unlink()
    heard = []
    extract(ExtractJob(store, signal="c", door="tests.fake_model"), heard.append)
    assert heard[-1] == Note("Signal c is already complete. There is nothing to do.")


def test_what_is_said_is_held_against_the_signal_before_anything_is_read(finished, tmp_path):
    store = shutil.copytree(finished, tmp_path / "store.zarr")
    wishes = ExtractSpec(gradient=GradientSpec(projection="sparse"))
    nowhere = ExtractJob(str(store), model="nowhere", data=("nowhere",), request=wishes, door="nowhere")
    with pytest.raises(ResumeMismatch, match="gradient projection: begun with rademacher, now sparse"):
        extract(nowhere)


def test_gradient_options_without_their_kind_plan_nothing(tmp_path):
    wishes = ExtractSpec(gradient=GradientSpec(dimension=8, projection="sparse"))
    with pytest.raises(SettingError, match="--projection, --dimension cannot be used with --kind proxy") as refused:
        extract(make_job(tmp_path, request=wishes, door=PROXY))
    assert refused.value.__notes__ == ["Nothing was planned."]
    assert not (tmp_path / "store.zarr").exists()


def test_a_checkpoint_that_has_learnt_nothing_is_warned_of(tmp_path, monkeypatch):
    monkeypatch.setattr(fake_model, "GradientSpec", partial(GradientSpec, learning_rate=0.0))
    heard = []
    extract(gradient_job(tmp_path), heard.append)
    warned = next(i for i, event in enumerate(heard) if isinstance(event, Warned))
    assert "so it equals the base model" in heard[warned].text
    assert warned < next(i for i, event in enumerate(heard) if isinstance(event, UnitCommitted))


def test_nothing_is_planned_for_gradients_of_nothing(tmp_path):
    with pytest.raises(SettingError, match="Give --adapter with a checkpoint that `grace-store warmup` wrote"):
        extract(make_job(tmp_path, request=GRADIENT, door=PROXY))
    assert not (tmp_path / "store.zarr").exists()


def test_steps_that_are_not_there_are_not_scored(finished):
    with pytest.raises(SettingError, match=r"has one vector per sample, so there are no steps to.* less, icons"):
        score(finished)


def test_what_will_be_written_is_told_before(finished):
    view = Store.open(finished).signal("base")
    per_sample = 24 + 4 * 4 + 1
    assert abs(expected_bytes(view, NUM_USABLE) - NUM_USABLE * per_sample) < 0.05 * NUM_USABLE * per_sample


def test_signals_are_named_after_their_checkpoints_and_what_they_are(tmp_path):
    for step in (5, 10):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "adapter_config.json").write_text("{}")
    adapters = [str(tmp_path)]
    assert [name for name, _ in name_signals([], adapters)] == ["checkpoint-5", "checkpoint-10"]
    wished = {
        "-gradient": GradientSpec(),
        "-adam-gradient": GradientSpec(preconditioner="adam", dimension=8),
        "-gradient-segment": GradientSpec(per="segment"),
    }
    for suffix, gradient in wished.items():
        request = ExtractSpec(kind="gradient", gradient=gradient)
        assert [name for name, _ in name_signals([], adapters, request)] == [f"checkpoint-{n}{suffix}" for n in (5, 10)]
    assert name_signals(["mine", "yours"], adapters, request)[0][0] == "mine"


# ---------------------------------------------------------------- specs


def test_a_spec_has_a_gradient_exactly_if_it_is_called_so():
    proxy, gradient = make_spec("int8", 5), make_spec("int8", 5, "sample")
    assert proxy.gradient is None
    assert ExtractSpec.model_validate_json(gradient.canonical()) == gradient
    with pytest.raises(ValueError, match="a spec of the kind gradient needs the field gradient"):
        ExtractSpec(**{**proxy.model_dump(), "kind": "gradient"}).whole()
    with pytest.raises(ValueError, match="a spec of the kind gradient needs the field gradient"):
        ExtractSpec(**{**gradient.model_dump(), "kind": "proxy"}).whole()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"preconditioner": "adam"}, "the preconditioner adam needs moments"),
        ({"moments": "0" * 64}, "the preconditioner adam needs moments"),
        ({"bias_correction": True}, "bias_correction works only with"),
        ({"projection": "sparse", "dimension": 6}, "a multiple of 4"),
    ],
)
def test_settings_that_do_not_fit_together_are_no_spec(settings, message):
    with pytest.raises(ValueError, match=message):
        GradientSpec(normalise=True, parameters="0", **settings).whole()


def test_a_learning_rate_is_text_on_disk_and_the_same_number_again():
    gradient = GradientSpec(normalise=True, parameters="0", learning_rate=0.1 + 0.2)
    assert json.loads(gradient.canonical())["learning_rate"] == "0.30000000000000004"
    assert GradientSpec.model_validate_json(gradient.canonical()).learning_rate == 0.1 + 0.2


# ---------------------------------------------------------------- with a real checkpoint


@pytest.fixture(scope="module")
def warmed(tmp_path_factory) -> Path:
    """A folder with a model, 24 traces and a warm-up on them."""
    folder = tmp_path_factory.mktemp("warmed")
    warmups.write_traces(folder / "traces.jsonl", 24)
    request = warmups.REQUEST.model_copy(update={"num_heldout": 0, "checkpoints": ("0.5", "1"), "ratio": "0.7"})
    warmup(warmups.make_job(folder, request=request))
    return folder


def real_job(folder: Path, store: Path, **changes) -> ExtractJob:
    wishes = {"dimension": 64, "preconditioner": "adam", **changes.pop("wishes", {})}
    settings = {
        "model": str(folder / "model"),
        "data": (str(folder / "traces.jsonl"),),
        "signal": "g",
        "adapter": str(sorted((folder / "warmup").glob("checkpoint-*"))[0]),
        "data_request": warmups.make_job(folder).data_request,
        "request": ExtractSpec(kind="gradient", gradient=GradientSpec(**wishes)),
        "options": ONE_THREAD,
        "samples_per_unit": 8,
    }
    return ExtractJob(str(store), **(settings | changes))


def test_a_worker_process_and_a_resumed_run_write_the_same_bytes(warmed, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent.parent))
    view = extract(real_job(warmed, tmp_path / "whole.zarr"))
    assert list(verify(view.store, deep=True)) == []
    expected = content(tmp_path / "whole.zarr")
    extract(real_job(warmed, tmp_path / "store.zarr", shard=(1, 3)))
    extract(real_job(warmed, tmp_path / "store.zarr", engine=processes("cpu")))
    assert content(tmp_path / "store.zarr") == expected
    again = ExtractJob(view.store.location, str(warmed / "model"), options=ONE_THREAD)
    assert list(verify_against_model(view, again, num_units=1)) == []
    chunk = tmp_path / "store.zarr/signals/g/sample_norm/c/1"
    other = extract(real_job(warmed, tmp_path / "other.zarr", wishes={"preconditioner": "none"}))
    chunk.write_bytes((tmp_path / "other.zarr/signals/g/sample_norm/c/1").read_bytes())
    damaged = Store.open(tmp_path / "store.zarr").signal("g")
    for text in ("is not the chunk that was committed", "after a second extraction, the vectors differ by"):
        found = list(verify_against_model(damaged, again, num_units=3))
        assert [problem.unit for problem in found] == [1]
        assert text in found[0].text
        commit = damaged.commit(1)  # which then vouches for what is wrong
        chunks = {**commit.chunks, "sample_norm/c/1": digest_of(chunk.read_bytes())}
        sealed = to_bytes(seal(commit.model_copy(update={"chunks": chunks})))
        damaged.store.backend.write(commit_key("g", 1), sealed)
    assert other.signal.spec.gradient.moments is None


def test_other_moments_and_other_weights_are_refused_on_the_way(warmed, tmp_path):
    job = real_job(warmed, tmp_path / "store.zarr", shard=(0, 3))
    extract(job)
    checkpoint = Path(shutil.copytree(job.adapter, tmp_path / "checkpoint"))
    moments = sorted((warmed / "warmup").glob("checkpoint-*/optimizer.safetensors"))[1]
    shutil.copy(moments, checkpoint)
    with pytest.raises(ResumeMismatch, match=r"gradient moments: begun with .*, now ") as raised:
        extract(replace(job, adapter=str(checkpoint), shard=(0, 1)))
    assert "model adapter" not in str(raised.value)
    with pytest.raises(ResumeMismatch, match="model adapter: begun with"):
        extract(replace(job, adapter=str(moments.parent), shard=(0, 1)))


def test_gradients_of_steps_are_scored_like_proxies(warmed, tmp_path):
    """The paper's ablation: one extraction, then the usual command; values against whole gradients."""
    store = tmp_path / "store.zarr"
    checkpoint = sorted((warmed / "warmup").glob("checkpoint-*"))[-1]
    command = [
        "extract", store, "--model", warmed / "model", "--data", warmed / "traces.jsonl", "--min-steps", 2,
        "--adapter", checkpoint, "--kind", "gradient", "--per", "segment", "--dimension", 4096,
        "--projection", "sparse", "--device", "cpu", "--threads", 1, "--json",
    ]  # fmt: skip
    done = CliRunner().invoke(main, [str(part) for part in command])
    assert done.exit_code == 0, done.output
    assert list(json.loads(done.stdout)["signals"]) == [f"{checkpoint.name}-gradient-segment"]
    scored = CliRunner().invoke(main, ["score", str(store), "--out", str(tmp_path / "scores.parquet")])
    assert scored.exit_code == 0, scored.output
    table = score(store)
    extractor = open_gradient(warmed / "model", checkpoint, dimension=4)
    truth = TrueGradients(warmed / "model", checkpoint, extractor)
    from grace_store.pool.records import UnitLoader, open_dataset

    opened = Store.open(store)
    with open_dataset(opened) as dataset:
        samples = UnitLoader(opened, dataset).read(0, 4)
    for i, sample in enumerate(samples):
        g = truth.of(sample)[1]
        g /= np.linalg.norm(g, axis=1, keepdims=True)
        expected = g[:-1] @ g[-1]
        np.testing.assert_allclose(table.table["answer_alignment"][i].as_py(), expected, atol=5 / np.sqrt(4096))


def test_commands_show_a_signal_with_a_vector_a_sample(warmed, tmp_path):
    store = str(tmp_path / "store.zarr")
    extract(real_job(warmed, Path(store)))
    run = CliRunner().invoke
    shown = run(main, ["status", store]).stdout
    assert "gradient, Qwen3ForCausalLM, a vector of 64 per sample" in shown, shown
    for part in ("per sample", "preconditioner adam", "projection rademacher", "dimension 64", "seed 0"):
        assert part in shown
    spec = Store.open(store).signal("g").signal.spec
    adapter = real_job(warmed, Path(store)).adapter
    assert f"adapter {adapter}, {spec.model.adapter[:12]}…" in shown
    assert json.loads(run(main, ["status", store, "--json"]).stdout)["documents"]["g"]["origin"]["adapter"] == adapter
    assert "learning_rate 0.00" in shown
    assert json.loads(run(main, ["status", store, "--json"]).stdout)["documents"]["g"]["spec"]["gradient"]["seed"] == 0
    shown = run(main, ["inspect", store, "case-3"])
    assert shown.exit_code == 0
    assert "gradient of length" in shown.stdout
    assert "The answer is 4." in shown.stdout
    as_json = json.loads(run(main, ["inspect", store, "case-3", "--json"]).stdout)
    assert as_json["value"] is None
    assert as_json["num_tokens"] > 0
    assert as_json["norm"] > 0
    assert run(main, ["status", store]).exit_code == run(main, ["verify", store, "--deep"]).exit_code == 0
    refused = run(main, ["score", store, "--out", str(tmp_path / "scores.parquet")])
    assert refused.exit_code == 1
    assert "has one vector per sample" in refused.stderr
    refused = run(main, ["extract", store, "--signal", "p", "--model", str(warmed / "model"), "--dimension", "8"])
    assert refused.exit_code == 1
    assert "--dimension cannot be used with --kind proxy. Add --kind gradient." in refused.stderr
