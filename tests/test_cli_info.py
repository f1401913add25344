"""grace-store info, as a user types it."""

from __future__ import annotations

from pathlib import Path

from tests.commands import run, run_json


def test_info_shows_where_it_came_from(extracted: Path, text_model: str) -> None:
    text = run("info", extracted / "store.zarr").stdout
    assert "traces.jsonl: 27 records" in text
    assert "Qwen3ForCausalLM" in text
    assert text_model in text
    facts = run_json("info", extracted / "store.zarr")
    assert facts["signals"]["base"]["spec"]["storage"] == "int8"
