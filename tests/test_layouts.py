"""The page of layouts: every row has a record that is read as the row says, and every record has its row."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.commands import run_json
from tests.layouts import LAYOUTS, Layout

PAGE = Path(__file__).parent.parent / "docs" / "layouts.md"


def rows() -> dict[str, dict[str, str]]:
    """Return the rows of the page's table by the name of the layout."""
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    head, _, *body = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return {cells[0]: dict(zip(head, cells, strict=True)) for cells in body}


def preview(layout: Layout, folder: Path, *options: str) -> dict:
    data = folder / "data.jsonl"
    data.write_text(json.dumps(layout.record) + "\n")
    words = ["plan", folder / "s.zarr", data, "--min-steps", "1", "--dry-run"]
    return run_json(*words, *options)


def test_the_page_has_a_row_for_each_layout_with_a_record_and_no_other() -> None:
    assert list(rows()) == list(LAYOUTS)
    assert len(LAYOUTS) >= 20


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_record_is_read_as_its_row_says(name: str, tmp_path: Path) -> None:
    layout, row = LAYOUTS[name], rows()[name]
    found = preview(layout, tmp_path, *layout.options.split())
    assert found["settings"]["format"] == layout.format
    trace = found["traces"][0]
    assert (trace["prompt"], trace["steps"], trace["answer"]) == (layout.prompt, layout.steps, layout.answer)
    assert (found["num_planned"], found["set_aside"]) == (layout.num_traces, {})
    assert row["format"] == f"`{layout.format}`"
    assert row["options"] == (f"`{layout.options}`" if layout.options else "")
    assert set(re.findall(r"`(\w+)", row["keys of a record"])) == layout.record.keys()


@pytest.mark.parametrize("name", [name for name, layout in LAYOUTS.items() if layout.num_traces > 1])
def test_a_layout_of_several_responses_says_so_without_its_option(name: str, tmp_path: Path) -> None:
    options = LAYOUTS[name].options.split()
    expand = options.index("--expand")
    found = preview(LAYOUTS[name], tmp_path, *options[:expand])
    if LAYOUTS[name].format == "mapped":
        assert "'response' is a list" in found["examples"][0]["detail"]
    else:
        assert found["several_responses"] == {" ".join(options[expand:]): 1}


def test_the_options_for_the_second_trace_of_a_record_read_it(tmp_path: Path) -> None:
    """s1K-1.1 has a trace of each of two models."""
    ((options, count),) = preview(LAYOUTS["s1K-1.1"], tmp_path)["several_responses"].items()
    assert count == 1
    other = preview(LAYOUTS["s1K-1.1"], tmp_path, *options.split())["traces"][0]
    assert (other["steps"], other["answer"]) == (["<think>\nHm.\n\n", "Well.\n</think>\n\n"], "2")
