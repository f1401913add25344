"""The warm-up as a job: its subset, its recipe, its files, and that a kill changes nothing."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
import transformers
from peft import PeftModel
from safetensors import safe_open
from safetensors.torch import load_file

import grace_store.train.checkpoints as checkpoints
import grace_store.train.training as warmup_loop
from grace_store.base.errors import (
    Corrupt,
    DataError,
    Interrupted,
    ModelError,
    NothingUsable,
    ResumeMismatch,
    SettingError,
    StoreBusy,
)
from grace_store.base.events import Note, StepTaken, Warned
from grace_store.base.settings import DataSpec, ExtractSpec, RunOptions
from grace_store.base.training_settings import WarmupSpec
from grace_store.model.load.adapter_folder import CheckpointState
from grace_store.model.load.adapters import check_base, read_adapter
from grace_store.model.load.weights import describe_model, load
from grace_store.model.open_model import open_extractor, resolve_spec
from grace_store.pool.records import UnitLoader, open_dataset
from grace_store.run.plan import plan
from grace_store.store.opened import Store
from grace_store.train.adapter_trainer import AdapterTrainer, StepResult
from grace_store.train.loss_log import LossLog, read_entries
from grace_store.train.recipe import (
    Recipe,
    WarmupDone,
    WarmupSubset,
    choose_samples,
    order_steps,
    order_updates,
)
from grace_store.train.warmup import _held, warmup
from grace_store.values.random_values import random_values
from jobs.schemas import note_schema
from tests.tiny_models import tiny_text_model
from tests.tiny_vision_models import picture, tiny_vision_model
from tests.warmups import NUM_SAMPLES, NUM_STEPS, OPTIONS, REQUEST, content, make_inputs, make_job, write_traces

STEPS = (2, 3, 5, 6)


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("warmup")
    make_inputs(folder)
    return folder


@pytest.fixture(scope="module")
def finished(home) -> Path:
    """A warm-up that nothing interrupted."""
    warmup(make_job(home, "finished"))
    return home / "finished"


def test_it_lowers_the_loss_on_samples_it_has_not_seen(finished):
    heldout = [entry["heldout_loss"] for entry in read_entries(finished / "loss.jsonl") if "heldout_loss" in entry]
    assert len(heldout) == 1 + len(STEPS)
    assert heldout[-1] < 0.8 * heldout[0]
    assert heldout == sorted(heldout, reverse=True)


def test_the_subset_is_written_down_and_comes_back(home, finished):
    subset = json.loads((finished / "subset.json").read_text())
    assert len(subset["samples"]) == math.ceil(0.4 * NUM_SAMPLES) == 24
    assert subset["left_out"] == []
    rows = [sample["row"] for sample in subset["samples"]]
    assert rows == sorted(set(rows))
    assert all(sample["sample_id"] == f"case-{sample['row']}" for sample in subset["samples"])
    assert not {each["row"] for each in subset["heldout"]} & set(rows)
    store = Store.open(str(finished / "plan.zarr"))
    again = choose_samples(store, WarmupSpec(ratio="0.4", num_heldout=8))[0]
    assert [ref.model_dump() for ref in again.samples] == subset["samples"]
    assert choose_samples(store, WarmupSpec(ratio="0.4", num_heldout=8, seed=1))[0].samples != again.samples


def test_a_larger_subset_holds_the_smaller_and_order_does_not_matter(home, tmp_path):
    data = make_inputs(home)[1]
    lines = data.read_text().splitlines()
    (tmp_path / "fewer.jsonl").write_text("\n".join(lines[:40]) + "\n")
    whole = plan([data], tmp_path / "a.zarr", DataSpec(min_steps=2))
    fewer = plan([tmp_path / "fewer.jsonl"], tmp_path / "b.zarr", DataSpec(min_steps=2))

    def chosen(store: Store, ratio: str) -> list[int]:
        return choose_samples(store, WarmupSpec(ratio=ratio))[1][0].tolist()

    assert set(chosen(whole, "0.1")) < set(chosen(whole, "0.3"))
    # Who is before whom depends on the row alone, not on what else there is.
    assert set(chosen(whole, "1")) == set(range(NUM_SAMPLES))
    ranking = [row for row in np.argsort(-random_values(0x7761726D7570, np.arange(NUM_SAMPLES))) if row < 40]
    assert sorted(ranking[:8]) == chosen(fewer, "0.2")


def test_every_epoch_takes_every_sample_once_in_an_order_of_its_own():
    steps = order_steps(list(range(10)), seed=3, batch_size=4, num_epochs=2)
    assert [len(step) for step in steps] == [4, 4, 2, 4, 4, 2]
    first, second = ([i for step in part for i in step] for part in (steps[:3], steps[3:]))
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second


def test_no_epoch_of_one_seed_has_the_order_of_an_epoch_of_another():
    """As trials train with seeds that follow each other."""
    rows, num_epochs = list(range(12)), 4
    epochs = [
        tuple(epoch) for seed in range(4) for epoch in order_updates(rows, seed, batch_size=12, num_updates=num_epochs)
    ]
    assert len(set(epochs)) == 4 * num_epochs
    assert all(sorted(epoch) == rows for epoch in epochs)


def test_checkpoints_are_standard_peft_folders(home, finished):
    model = make_inputs(home)[0]
    ids = torch.arange(3, 30)[None]
    for step in STEPS:
        folder = finished / f"checkpoint-{step}"
        base = transformers.AutoModelForCausalLM.from_pretrained(model)
        theirs = PeftModel.from_pretrained(base, folder).eval()
        merged = theirs.merge_and_unload()
        ours = load(model, "float32", "sdpa", "cpu", 1)
        check_base(read_adapter(folder), ours.identity)
        with torch.no_grad():
            assert not torch.allclose(merged(input_ids=ids).logits, ours.model(input_ids=ids).logits, atol=1e-3)
    assert sorted(path.name for path in (finished / "checkpoint-6").iterdir()) == [
        "adapter_config.json", "adapter_model.safetensors", "optimizer.safetensors", "training_state.json",
    ]  # fmt: skip


def test_moments_are_named_for_the_adapters_tensors(finished):
    folder = finished / "checkpoint-5"
    adapter = load_file(folder / "adapter_model.safetensors")
    with safe_open(folder / "optimizer.safetensors", framework="pt") as stored:
        names = set(stored.keys())
        adamw = json.loads(stored.metadata()["adamw"])
        moment = {name: stored.get_tensor(f"exp_avg_sq.{name}") for name in adapter}
    assert names == {f"{moment}.{name}" for moment in ("exp_avg", "exp_avg_sq") for name in adapter}
    assert all(moment[name].shape == adapter[name].shape and bool((moment[name] >= 0).all()) for name in adapter)
    assert (adamw["step"], adamw["betas"], adamw["eps"]) == (5, [0.9, 0.95], 1e-8)
    state = json.loads((folder / "training_state.json").read_text())
    entries = {entry["step"]: entry for entry in read_entries(finished / "loss.jsonl") if "loss" in entry}
    assert state["learning_rate"] == adamw["learning_rate"] == entries[5]["learning_rate"]
    # Since the checkpoint before, after step 3.
    assert state["mean_learning_rate"] == pytest.approx(np.mean([entries[s]["learning_rate"] for s in (4, 5)]))
    weights = [entries[s]["num_tokens"] for s in (4, 5)]
    assert state["loss"] == pytest.approx(np.average([entries[s]["loss"] for s in (4, 5)], weights=weights))


DOCUMENTS = {
    "recipe.json": Recipe,
    "subset.json": WarmupSubset,
    "training_state.json": CheckpointState,
    "done.json": WarmupDone,
}


def said_in(path: Path) -> dict[str, Any]:
    """Return the content of a document, whether it is sealed or not."""
    found: dict[str, Any] = json.loads(path.read_text())
    return found.get("grace_store", found)


def test_its_documents_are_as_their_schemas_have_them(finished):
    for path in (*finished.glob("*.json"), finished / "checkpoint-5" / "training_state.json"):
        model = DOCUMENTS[path.name]
        assert said_in(path)["kind"] == model.model_fields["kind"].default
        jsonschema.validate(said_in(path), json.loads(note_schema(model)), jsonschema.Draft202012Validator)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"version": "1.3"}, "has version 1.3 of the format"),
        ({"kind": "subset"}, "of the kind 'subset'"),
        ({"colour": "red"}, "colour 'red': there is no such field"),
        ({"recipe_sha256": 7}, "recipe_sha256 7: a text is wanted"),
    ],
)
def test_a_document_that_is_not_ours_is_refused(home, finished, tmp_path, change, told):
    out = tmp_path / "out"
    shutil.copytree(finished, out)
    for path, remedy in (
        (out / "done.json", "Delete this file and run"),
        (out / "checkpoint-2" / "training_state.json", ""),
    ):
        whole = path.read_text()
        path.write_text(json.dumps(said_in(path) | change))
        with pytest.raises(DataError, match=f"{path.name}.*{told}.*{remedy}"):
            warmup(make_job(home, str(out)))
        path.write_text(whole)


def test_the_state_beside_another_tools_adapter_is_its_own_business(finished, tmp_path):
    shutil.copytree(finished / "checkpoint-6", tmp_path / "theirs")
    (tmp_path / "theirs" / "training_state.json").write_text('{"kind": "trainer", "base": "somewhere"}')
    assert read_adapter(tmp_path / "theirs").folder.state is None


def test_the_same_call_again_does_nothing(home, finished, monkeypatch):
    monkeypatch.setattr(AdapterTrainer, "take_step", None)
    before = content(finished)
    notes = []
    warmup(make_job(home, "finished"), notes.append)
    done = warmup(replace(make_job(home, "finished"), model=None, data=(), request=WarmupSpec()))
    assert content(finished) == before
    assert any(isinstance(note, Note) and "is already complete" in note.text for note in notes)
    assert done.checkpoints == tuple(f"checkpoint-{step}" for step in STEPS)


class Crash(BaseException):
    """Stands for a kill at some point of the program."""


def crash_after(monkeypatch, owner, name: str, count: int, *, before: bool = False) -> None:
    actual = getattr(owner, name)
    calls = []

    def crashing(*args, **kwargs):
        calls.append(1)
        if len(calls) == count and before:
            raise Crash
        result = actual(*args, **kwargs)
        if len(calls) == count:
            raise Crash
        return result

    monkeypatch.setattr(owner, name, crashing)


@pytest.mark.parametrize(
    ("owner", "name", "count", "before", "save_seconds"),
    [
        (LossLog, "add", 1, False, 1000.0),
        (LossLog, "add", 4, False, 0.0),
        (AdapterTrainer, "take_step", 6, False, 1000.0),
        (checkpoints, "save", 5, True, 0.0),
        (checkpoints, "sync_file", 3, True, 1000.0),
        (checkpoints, "sync_folder", 1, True, 1000.0),
        (warmup_loop, "write_checkpoint", 2, False, 1000.0),
        (warmup_loop, "write_last", 3, True, 0.0),
    ],
)
def test_killed_anywhere_and_resumed_leaves_the_same_files(
    home, finished, tmp_path, monkeypatch, owner, name, count, before, save_seconds
):
    job = make_job(home, out=str(tmp_path / "out"))
    job = replace(job, options=OPTIONS.model_copy(update={"save_seconds": save_seconds}))
    with monkeypatch.context() as patch:
        crash_after(patch, owner, name, count, before=before)
        with pytest.raises(Crash):
            warmup(job)
    assert not (job.out / "done.json").exists()
    warmup(job)
    ours, theirs = content(job.out), content(finished)
    assert ours.pop("recipe.json") != theirs.pop("recipe.json")  # it says where the plan lies
    assert ours == theirs
    assert not list(job.out.glob(".*.part"))


KILLED = """
import os, signal, sys
from grace_store.train.loss_log import LossLog
actual = LossLog.add
def add(self, **line):
    actual(self, **line)
    if line["step"] == 4:
        os.kill(os.getpid(), signal.SIGKILL)
LossLog.add = add
from pathlib import Path
from tests.warmups import make_job
from grace_store.train.warmup import warmup
warmup(make_job(Path(sys.argv[1]), sys.argv[2]))
"""


def test_a_process_killed_outright_resumes_to_the_bit(home, finished, tmp_path, repository):
    out = tmp_path / "killed"
    command = [sys.executable, "-c", KILLED, str(home), str(out)]
    environment = {**os.environ, "PYTHONPATH": str(repository)}
    died = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert [path.name for path in sorted(out.glob("checkpoint-*"))] == ["checkpoint-2", "checkpoint-3"]
    warmup(make_job(home, str(out)))
    for step in STEPS:
        for name in ("adapter_model.safetensors", "optimizer.safetensors", "training_state.json"):
            found = (out / f"checkpoint-{step}" / name).read_bytes()
            assert found == (finished / f"checkpoint-{step}" / name).read_bytes()
    assert (out / "loss.jsonl").read_bytes() == (finished / "loss.jsonl").read_bytes()


def test_asked_to_stop_it_saves_and_goes_on(home, finished, tmp_path):
    stop = threading.Event()
    events = []

    def listen(event):
        events.append(event)
        if isinstance(event, StepTaken) and event.step == 3:
            stop.set()

    job = make_job(home, str(tmp_path / "out"))
    with pytest.raises(Interrupted, match="Stopped after step 4 of 6"):
        warmup(job, listen, stop)
    notes = [event.text for event in events if isinstance(event, Note)]
    assert [each for each in notes if each.startswith("Wrote")] == [f"Wrote {job.out}/checkpoint-{i}." for i in (2, 3)]
    assert [each.split(":")[0][-1] for each in notes if each.startswith("Held-out")] == ["0", "2", "3"]
    warmup(job, events.append)
    assert [event.step for event in events if isinstance(event, StepTaken)] == [1, 2, 3, 4, 5, 6]
    assert content(job.out, among="adapter_model*") == content(finished, among="adapter_model*")


RANKED = """
import sys
from dataclasses import replace
from pathlib import Path
from tests.warmups import make_job
from grace_store.train.warmup import warmup
from grace_store.base.training_settings import Ranks
home, rank, out = sys.argv[1:]
warmup(replace(make_job(Path(home), out), ranks=Ranks(rank=int(rank), world_size=2, local_rank=int(rank))))
"""


@pytest.mark.parametrize("shared", [True, False])
def test_ranks_go_on_together_or_not_at_all(home, finished, tmp_path, repository, shared):
    stop = threading.Event()
    stop.set()
    out = tmp_path / "out"
    with pytest.raises(Interrupted, match="Stopped after step 1 of 6"):
        warmup(make_job(home, str(out)), stop=stop)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "PYTHONPATH": str(repository), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANKED, str(home), str(rank), str(seen)],
            env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        for rank, seen in enumerate((out, out if shared else tmp_path / "elsewhere"))
    ]  # fmt: skip
    try:
        told = [rank.communicate(timeout=240)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    if not shared:
        assert all("ranks do not see the same --out" in text for text in told), told
        assert all("one rank finds step 1 saved and another nothing" in text for text in told)
        return
    assert [rank.returncode for rank in ranks] == [0, 0], told
    expected, found = (load_file(each / "checkpoint-6" / "adapter_model.safetensors") for each in (finished, out))
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-2, atol=1e-3)


def test_other_settings_are_refused_with_a_difference(home, finished, tmp_path):
    job = make_job(home, "finished")
    other = job.request.model_copy(update={"rank": 4, "seed": 9})
    before = content(finished)
    with pytest.raises(ResumeMismatch, match=r"(?s)seed: begun with 0, now 9.*rank: begun with 8, now 4.*new --out"):
        warmup(replace(job, request=other))
    model = tiny_text_model("qwen3", tmp_path / "other", seed=5)
    with pytest.raises(ResumeMismatch, match="model weights: begun with"):
        warmup(replace(job, model=str(model)))
    write_traces(tmp_path / "other.jsonl", 50)
    store = plan([tmp_path / "other.jsonl"], tmp_path / "other.zarr", DataSpec(min_steps=2))
    with pytest.raises(ResumeMismatch, match="planned samples"):
        warmup(replace(job, store=store.location, data=()))
    with pytest.raises(ResumeMismatch, match="min-steps: planned 2, now 3"):
        warmup(replace(job, data_request=DataSpec(min_steps=3)))
    assert content(finished) == before


def test_what_only_changes_the_speed_may_differ(home, finished, tmp_path):
    options = OPTIONS.model_copy(update={"batch_tokens": 90, "gradient_checkpointing": False})
    job = replace(make_job(home, str(tmp_path / "out")), options=options)
    warmup(job)
    expected = load_file(finished / "checkpoint-6" / "adapter_model.safetensors")
    found = load_file(job.out / "checkpoint-6" / "adapter_model.safetensors")
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-2, atol=1e-3)


def test_a_planned_store_gives_the_same_subset(home, finished, tmp_path):
    _, data = make_inputs(home)
    store = plan([data], tmp_path / "s.zarr", DataSpec(min_steps=2))
    job = make_job(home, str(tmp_path / "out"), store=store.location, data=(), data_request=DataSpec())
    warmup(job)
    assert (job.out / "subset.json").read_bytes() == (finished / "subset.json").read_bytes()
    assert content(job.out, among="*.safetensors") == content(finished, among="*.safetensors")
    assert not (job.out / "plan.zarr").exists()


def test_samples_that_cannot_be_used_are_left_out_by_name(home, tmp_path):
    events = []
    request = REQUEST.model_copy(update={"max_length": 62, "checkpoints": ("1",)})
    done = warmup(make_job(home, str(tmp_path / "out"), request=request), events.append)
    left_out = json.loads((tmp_path / "out" / "subset.json").read_text())["left_out"]
    assert 0 < len(left_out) == done.num_left_out
    assert {each["reason"] for each in left_out} == {"too_long"}
    assert all("at most 62" in each["detail"] for each in left_out)
    assert any(isinstance(event, Warned) and "left out (too_long" in event.text for event in events)
    with pytest.raises(NothingUsable, match="None of the 24 samples"):
        warmup(make_job(home, str(tmp_path / "none"), request=request.model_copy(update={"max_length": 3})))


def test_the_end_of_the_turn_is_learnt_unless_told_otherwise(home, tmp_path):
    tokens = {}
    for wish in (None, False):
        out = tmp_path / str(wish)
        warmup(make_job(home, str(out), request=REQUEST.model_copy(update={"train_eos": wish})))
        entries = [entry for entry in read_entries(out / "loss.jsonl") if "loss" in entry]
        tokens[wish] = sum(entry["num_tokens"] for entry in entries)
    assert tokens[None] - tokens[False] == 24


def test_missing_wishes_are_asked_for(home, tmp_path):
    with pytest.raises(SettingError, match="Give the model to train with --model"):
        warmup(make_job(home, str(tmp_path / "a"), model=None))
    with pytest.raises(SettingError, match="planned STORE, or the dataset"):
        warmup(make_job(home, str(tmp_path / "a"), data=()))
    with pytest.raises(SettingError, match="has no plan yet"):
        warmup(make_job(home, str(tmp_path / "a"), data=(), store=str(tmp_path / "none.zarr")))
    with pytest.raises(SettingError, match="ratio 2 is not"):
        warmup(make_job(home, str(tmp_path / "a"), request=WarmupSpec(ratio="2")))
    plain = tiny_text_model("llama", tmp_path / "plain", chat_template="{{ messages[-1].content }}")
    wish = REQUEST.model_copy(update={"train_eos": True})
    with pytest.raises(SettingError, match="--train-eos has no effect"):
        warmup(make_job(home, str(tmp_path / "a"), model=str(plain), request=wish))


def test_one_run_at_a_time(home, tmp_path):
    with _held(tmp_path / "out"), pytest.raises(StoreBusy, match="Another warm-up is writing"):
        warmup(make_job(home, str(tmp_path / "out")))


def test_a_loss_that_is_not_finite_ends_the_run(home, tmp_path, monkeypatch):
    def broken(self, batch, rate, *, stop=False) -> StepResult:
        raise ModelError("The loss is not finite.")

    monkeypatch.setattr(AdapterTrainer, "take_step", broken)
    with pytest.raises(ModelError, match="not finite") as raised:
        warmup(make_job(home, str(tmp_path / "out")))
    assert raised.value.__notes__ == [f"at step 1 of {NUM_STEPS}"]


def test_damaged_state_is_named(home, tmp_path, monkeypatch):
    job = make_job(home, str(tmp_path / "out"))
    crash_after(monkeypatch, AdapterTrainer, "take_step", 4)
    with pytest.raises(Crash):
        warmup(job)
    (job.out / "last.safetensors").write_bytes(b"nothing")
    with pytest.raises(Corrupt, match=r"last\.safetensors is damaged"):
        warmup(job)


def test_a_log_with_half_a_line_is_cut(tmp_path):
    path = tmp_path / "loss.jsonl"
    path.write_text('{"step": 1, "loss": 2.0, "num_tokens": 3}\n{"step": 2, "loss": 4.0, "num_tokens": 1}\n{"st')
    log = LossLog(path, kept_steps=1)
    log.add(step=2, loss=8.0, num_tokens=1)
    assert [entry["step"] for entry in read_entries(path)] == [1, 2]
    assert log.mean_loss(1, 2) == pytest.approx(3.5)
    assert read_entries(tmp_path / "absent") == []


def test_an_adapter_knows_its_base(home, finished, tmp_path):
    other = tiny_text_model("qwen3", tmp_path / "other", seed=1)
    with pytest.raises(ModelError, match=r"trained on another model than --model \(weights differ\).*Give that"):
        check_base(read_adapter(finished / "checkpoint-6"), describe_model(other).identity)


def test_a_vision_language_model_is_trained_on_its_images(tmp_path):
    model = tiny_vision_model("qwen3_vl", tmp_path / "model")
    write_traces(tmp_path / "text.jsonl", 12)
    records = [json.loads(line) for line in (tmp_path / "text.jsonl").read_text().splitlines()]
    for i, record in enumerate(records):
        picture(24 + 4 * (i % 3), 24, seed=i).save(tmp_path / f"{i}.png")
        record["images"] = [f"{i}.png"]
    (tmp_path / "traces.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    request = REQUEST.model_copy(update={"ratio": "0.5", "batch_size": 2, "num_heldout": 3, "checkpoints": ("1",)})
    losses = {}
    for name, changes in {"seen": {}, "small": {"batch_tokens": 1}}.items():
        options = OPTIONS.model_copy(update=changes)
        job = make_job(tmp_path, name, model=str(model), request=request, options=options)
        done = warmup(job)
        assert (done.num_samples, done.num_left_out) == (6, 0)
        losses[name] = [entry.get("heldout_loss", entry.get("loss")) for entry in read_entries(job.out / "loss.jsonl")]
    np.testing.assert_allclose(losses["seen"], losses["small"], rtol=1e-3)
    assert losses["seen"][-1] < losses["seen"][0]
    assert all(".language_model." in name for name in read_adapter(tmp_path / "seen" / "checkpoint-3").lora)
    adapter = str(tmp_path / "seen" / "checkpoint-3")
    run = RunOptions(device="cpu", threads=1)
    spec = resolve_spec(str(model), ExtractSpec(), run, adapter=adapter)
    extractor = open_extractor(str(model), spec, run, adapter=adapter, images=str(tmp_path))
    with open_dataset(Store.open(str(tmp_path / "seen" / "plan.zarr"))) as dataset:
        some = UnitLoader(Store.open(str(tmp_path / "seen" / "plan.zarr")), dataset).read_some([1, 4, 11])
    assert [sample.sample_id for sample in some] == ["case-1", "case-4", "case-11"]
    signals = extractor.compute(extractor.prepare(some)).result()
    assert not signals.set_aside
    assert np.isfinite(signals.segment_vector).all()
    text = request.model_copy(update={"text_only": True})
    warmup(make_job(tmp_path, "blind", model=str(model), request=text))
    assert read_entries(tmp_path / "blind" / "loss.jsonl")[0]["heldout_loss"] != pytest.approx(
        losses["seen"][0], abs=1e-4
    )
