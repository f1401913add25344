"""grace-store repair, as a user types it."""

from __future__ import annotations

from pathlib import Path

from tests.commands import extract_words, run
from tests.jobs import content
from tests.tiny_models import tiny_text_model


def test_a_repair_that_cannot_be_done_undoes_nothing(tmp_path: Path, text_model: str, data: str) -> None:
    store = tmp_path / "store.zarr"
    run(*extract_words(store, text_model, data))
    chunk = store / "signals/base/segment_vector/c/4/0"
    chunk.write_bytes(chunk.read_bytes()[:-7])
    before = content(store)
    other = tiny_text_model("llama", tmp_path / "other")
    result = run("repair", store, "--model", other, code=1)
    assert "model architecture: begun with" in result.stderr
    assert content(store) == before
