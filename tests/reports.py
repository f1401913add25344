"""A small store of traces, some of them hostile, on the fake model; a reader of its report, and a browser for it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, expect, sync_playwright

from grace_store.base.settings import DataSpec
from grace_store.run.engines.engine import ExtractJob
from grace_store.run.extract import extract
from grace_store.store.opened import Store
from tests.fake_model import make_fake_model

NUM_TRACES = 130
"""Three pages of them."""
SCRIPT = "</script><script>window.__pwned = 1</script>"
IMAGE = '<img src=x onerror="window.__pwned = 2">'
LINK = '<a href="javascript:window.__pwned = 3">click</a>'
BIDI = "pay \u202etxt.exe\u202c \x1b[2J\u2028now"
HOSTILE_ID = f"{IMAGE}{SCRIPT}"
FIGURE = "figure <svg onload=window.__pwned=4>.png"


def trace(i: int, max_steps: int = 7) -> dict[str, Any]:
    steps = [f"Step {j + 1}: look at part {j * i % 7} of number {i}." for j in range(2 + i % (max_steps - 1))]
    known = {"kind": "even" if i % 2 == 0 else SCRIPT, "about": {"number": i}}
    return known | {
        "id": f"trace-{i:04}",
        "prompt": f"What about number {i}?",
        "steps": steps,
        "answer": f"It is {i * 3}.",
    }


def hostile_traces() -> list[dict[str, Any]]:
    words = [SCRIPT, IMAGE, LINK, BIDI, "{{x}} ${y} %{z}"]
    return [
        {"id": HOSTILE_ID, "prompt": f"Prompt {SCRIPT}{IMAGE}", "steps": words, "answer": f"Answer {SCRIPT}"},
        {"id": "with-figure", "prompt": "See <image>.", "steps": ["a b c", "d e"], "answer": "f", "images": [FIGURE]},
        {
            "id": "without-figure",
            "prompt": "See <image>.",
            "steps": ["g h", "i"],
            "answer": "j",
            "images": ["gone.png"],
        },
        {"id": SCRIPT, "prompt": "?", "steps": ["only one"], "answer": "set aside for its steps"},
    ]


def make_store(folder: Path, num_traces: int = NUM_TRACES, *, max_steps: int = 7, hostile: bool = True) -> Store:
    """Extract a store from a dataset in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    records = [trace(i, max_steps) for i in range(num_traces)] + (hostile_traces() if hostile else [])
    # A copy of an earlier trace under another id.
    records.append(trace(7, max_steps) | {"id": "copy-of-7"})
    data = folder / "data.jsonl"
    data.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    Image.new("RGB", (60, 40), (200, 30, 30)).save(folder / FIGURE)
    job = ExtractJob(
        store=str(folder / "traces.zarr"),
        model=make_fake_model(folder / "model"),
        data=(str(data),),
        data_request=DataSpec(format="explicit", min_steps=2),
        samples_per_unit=64,
        door="tests.fake_model",
    )
    return extract(job).store


class PageReader(HTMLParser):
    """Reads a page as a browser's parser does: scripts by id or number, and all text outside them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts: dict[str, str] = {}
        self.tags: list[str] = []
        self.policy = ""
        self._script: str | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        found = dict(attrs)
        if tag == "script":
            self._script = found.get("id") or f"script {len(self.scripts)}"
            self.scripts[self._script] = ""
        if found.get("http-equiv") == "Content-Security-Policy":
            self.policy = found["content"] or ""

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self._script = None

    def handle_data(self, data: str) -> None:
        if self._script is not None:
            self.scripts[self._script] += data

    def document(self, name: str) -> Any:
        return json.loads(self.scripts[name])


def read_page(path: Path) -> PageReader:
    return PageReader(path.read_text(encoding="utf-8"))


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start the system's Chromium without a window."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    assert found is not None, "these tests need Chromium: run .ci/tools"
    with sync_playwright() as playwright:
        # Its sandbox does not work for root, nor in most containers; what is opened here is our own.
        expect.set_options(timeout=30_000)  # a busy machine is no failure
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()
