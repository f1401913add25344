"""Stores of drafts of the format: every command refuses them with the same words, and changes nothing in them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from grace_store.base.errors import StoreError
from grace_store.cli.main import COMMANDS
from grace_store.store.backend import PLAN_COPY
from grace_store.store.opened import Store
from tests.commands import run, tree
from tests.scored_stores import known_store
from tests.tiny_models import tiny_text_model

DRAFTS = Path(__file__).parent / "golden" / "drafts"
VERSIONS = sorted(path.stem for path in DRAFTS.iterdir())
TOLD = (
    "of the format, but this grace-store reads only version 2.1. "
    "Extract the data again into another store, or use the version of grace-store that wrote this store."
)
WORDS = {
    "plan": ["plan {store} {data}"],
    "warmup": ["warmup {store} --model {model} --out {out}"],
    "extract": [
        "extract {store}",
        "extract {store} --signal new --model {model} --data {data}",
        "extract {store} --signal int8 --break-lock",
    ],
    "status": ["status {store}"],
    "verify": ["verify {store}", "verify {store} --deep", "verify {store} --repair"],
    "inspect": ["inspect {store} sample-0", "inspect {store} sample-0 --neighbours 3"],
    "score": ["score {store} --out {out}", "score {ours} --method less --targets {store} --out {out}"],
    "sweep": ["sweep {store} --out {out}"],
    "audit": ["audit {scores} --by source --store {store}"],
    "select": ["select {scores} --ratio 0.5 --store {store} --out {out}"],
    "weights": ["weights {store} --out {out}"],
    "duplicates": ["duplicates {store} --out {out}"],
    "contamination": [
        "contamination {store} --against {data} --out {out}",
        "contamination {ours} --against {store} --out {out}",
    ],
    "diversity": ["diversity {store} --scores {scores} --ratio 0.5"],
    "stability": ["stability {store}"],
    "fidelity": ["fidelity {store}"],
    "judge": ["judge {store} --right is_correct"],
    "report": ["report {store} --out {out}"],
    "trial": [
        "trial {store} {ids} --model {model} --out {out}",
        "trial {ours} {ids} --model {model} --out {out} --held-out {store}",
    ],
}
NO_STORE = {"compare", "evaluate", "demo"}
"""Commands that open no store, or none that was there before."""
TELLING = {
    "doctor": ("doctor {store} --model {model} --data {data}", 1),
    "support": ("support {store} --json", 0),
}
"""Commands whose result is what they find of a store, whatever its state, with their exit codes."""


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What commands take beside a draft's store: a store, scores and ids of today, and a model."""
    home = tmp_path_factory.mktemp("today")
    ours = Path(known_store(home).store.location)
    run("score", ours, "--out", home / "scores.parquet")
    (home / "ids.txt").write_text("sample-0\nsample-1\n")
    (home / "data.jsonl").write_text('{"prompt": "a", "steps": ["b"], "answer": "c"}\n')
    tiny_text_model("llama", home / "model", num_hidden_layers=1)
    names = {"ours": ours.name, "scores": "scores.parquet", "ids": "ids.txt", "data": "data.jsonl", "model": "model"}
    return {name: home / file for name, file in names.items()}


@pytest.fixture(params=VERSIONS)
def draft(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    shutil.unpack_archive(DRAFTS / f"{request.param}.zip", tmp_path / request.param)
    return tmp_path / request.param / "store.zarr"


def test_every_command_is_tried_here() -> None:
    assert set(COMMANDS) == set(WORDS) | NO_STORE | set(TELLING)


def test_it_is_refused_with_the_version_it_has(draft: Path) -> None:
    version = draft.parent.name
    with pytest.raises(StoreError) as refused:
        Store.open(draft)
    assert str(refused.value) == f"{draft}/zarr.json has version {version} {TOLD}"


@pytest.mark.parametrize("command", WORDS)
def test_a_command_refuses_it_and_changes_nothing(draft: Path, places: dict[str, Path], command: str) -> None:
    before = tree(draft)
    for words in WORDS[command]:
        out = draft.parent / "out"
        told = run(*(word.format(store=draft, out=out, **places) for word in words.split()), code=1).stderr
        assert f"has version {draft.parent.name} {TOLD}" in " ".join(told.split()), words
        assert tree(draft) == before, words
        assert not out.exists(), words


@pytest.mark.parametrize("draft", VERSIONS[-1:], indirect=True)
@pytest.mark.parametrize("command", TELLING)
def test_what_is_found_of_it_is_told_and_nothing_changed(draft: Path, places: dict[str, Path], command: str) -> None:
    before = tree(draft)
    words, code = TELLING[command]
    told = run(*(word.format(store=draft, **places) for word in words.split()), code=code).stdout
    assert f"has version {draft.parent.name} {TOLD}" in " ".join(told.split())
    assert tree(draft) == before


@pytest.mark.parametrize("draft", VERSIONS[1:], indirect=True)  # the first one has no copy of its plan
@pytest.mark.parametrize("damaged", [b"{", None])
def test_a_damaged_one_is_not_repaired(draft: Path, damaged: bytes | None) -> None:
    (draft / "zarr.json").unlink()
    if damaged is not None:
        (draft / "zarr.json").write_bytes(damaged)
    before = tree(draft)
    assert f"{PLAN_COPY} has version {draft.parent.name} {TOLD}" in run("verify", draft, "--repair", code=1).stderr
    assert tree(draft) == before
