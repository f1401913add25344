"""Extraction on a device, counted: no wait of ours between batches, no copy too many, no device but its own."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from jobs.bench import device_counts
from tests.pretend import hot_loop
from tests.pretend.mutants import MUTANTS
from tests.pretend.processes import run_python

pytestmark = pytest.mark.slow
"""The pretend accelerator is built by a C++ compiler first."""

TO_DEVICE, TO_HOST = "host to device, pinned, queued", "device to host, pinned, queued"
COPIES = {
    # Ids, the response's predecessors and targets, each token's segment and weight; packed, positions as well.
    "text": (5, 2),
    "text, packed": (6, 2),
    # And for each sample its tokens for the mean, and where its rows go.
    "gradients": (5, 3),
}
"""Copies for each batch, there and back: vectors and numbers of tokens, of gradients norms as well."""
MOST = {
    "text, shared prompts": (64, 8),
    "Qwen3-VL": (104, 24),
    "Qwen3-VL, shared prompts": (112, 16),
    "gradients per segment": (96, 18),
}
"""The same in all, where they depend on what is in a batch: pixels and grids, one pass for each segment, or several for
the responses of shared prompts."""
HIDDEN_SIZE = 48
"""Of the tiny models."""
SHARE = random.Random(20261117).choice(sorted(MUTANTS))


@pytest.fixture(scope="module")
def counted() -> dict[str, Any]:
    made = run_python(["-m", "tests.pretend.hot_loop", *COPIES, *MOST], devices=8, timeout=600)
    assert made.returncode == 0, made.stderr
    return json.loads(made.stdout)


@pytest.mark.parametrize("name", [*COPIES, *MOST])
def test_no_wait_of_ours_is_between_batches(counted: dict[str, Any], name: str) -> None:
    found = counted[name]
    assert found["batches"] >= 2 * found["units"]
    assert device_counts.waits_of_ours(found) == {}
    (wait,) = found["waits for units"]
    assert wait.startswith("event.synchronize at grace_store/model/devices.py:")
    assert found["waits for units"][wait] == found["units"]
    assert found["run at once"] == {}


@pytest.mark.parametrize("name", COPIES)
def test_a_text_model_waits_once_a_batch_for_what_transformers_asks(counted: dict[str, Any], name: str) -> None:
    found = counted[name]
    assert sum(found["waits"].values()) <= found["batches"]


@pytest.mark.parametrize("name", COPIES)
def test_copies_are_as_many_as_designed(counted: dict[str, Any], name: str) -> None:
    found, (there, back) = counted[name], COPIES[name]
    assert found["copies"] == {TO_DEVICE: there * found["batches"], TO_HOST: back * found["batches"]}


@pytest.mark.parametrize("name", MOST)
def test_copies_do_not_grow(counted: dict[str, Any], name: str) -> None:
    copies, (there, back) = counted[name]["copies"], MOST[name]
    assert copies[TO_DEVICE] <= there
    assert copies[TO_HOST] == back


@pytest.mark.parametrize("name", [name for name in (*COPIES, *MOST) if "gradients" not in name])
def test_what_comes_back_is_a_vector_a_segment_and_four_numbers_a_token(counted: dict[str, Any], name: str) -> None:
    found, workload = counted[name], hot_loop.WORKLOADS[name]
    num_segments = sum(sample.num_segments for sample in workload.samples)
    vectors = HIDDEN_SIZE * num_segments * found["units"]
    assert found["bytes"][TO_HOST] == 4 * (vectors + 4 * found["response tokens"])


def test_shared_prompts_and_images_ask_for_less(counted: dict[str, Any]) -> None:
    """Two samples have each prompt, and three images are in three prompts twice each."""
    shared, alone = counted["Qwen3-VL, shared prompts"], counted["Qwen3-VL"]
    assert shared["launches"] < alone["launches"]
    assert shared["bytes"][TO_DEVICE] < 0.8 * alone["bytes"][TO_DEVICE]


@pytest.mark.parametrize("name", [*COPIES, *MOST])
def test_the_benchmark_says_what_is_counted(counted: dict[str, Any], name: str) -> None:
    page = (Path(device_counts.__file__).parent / "ROOFLINE.md").read_text()
    lines = {tuple(cell.strip() for cell in line.strip("| ").split("|")) for line in page.splitlines()}
    assert device_counts.row(name, counted[name]) in lines


def test_a_process_has_a_context_on_its_own_device_only(counted: dict[str, Any]) -> None:
    opened = {device for found in counted.values() for device in found["contexts"]}
    assert opened == {"3"}


@pytest.mark.parametrize("name", ["none", SHARE])
def test_mistakes_that_only_a_device_shows_are_noticed(name: str) -> None:
    made = run_python(["-m", "tests.pretend.mutants", name], devices=8, timeout=600)
    assert made.returncode == 0, made.stdout + made.stderr
