"""The door to devices, as far as a machine without an accelerator can show it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import grace_store
from grace_store.base.errors import SettingError
from grace_store.base.settings import RunOptions, default_threads
from grace_store.model import devices
from grace_store.model.load import weights
from tests.tiny_models import tiny_text_model

PACKAGE = Path(grace_store.__file__).parent
NAMES = re.compile(r"cuda|\bmps\b|\bxpu\b|\bnpu\b|nccl|cublas", re.IGNORECASE)


def test_one_module_names_kinds_of_devices():
    found = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py") if NAMES.search(path.read_text())}
    assert found == {"model/devices.py"}


@pytest.fixture
def machine(monkeypatch):
    """Return what makes torch see a number of accelerators of a kind, as far as nobody uses them."""

    def make(kind: str, count: int) -> None:
        monkeypatch.setattr(devices, "accelerator", lambda: kind)
        monkeypatch.setattr(devices, "count", lambda: count)

    return make


def test_a_device_that_is_not_there_is_refused_by_name():
    for name in ("cuda:3", "mps", "abacus", "accelerator"):
        with pytest.raises(
            SettingError, match=f"--device {name} cannot be used: torch .* sees no accelerator on this machine"
        ):
            devices.resolve(name)
    assert devices.resolve("auto") == devices.resolve("cpu") == torch.device("cpu")
    assert 1 <= default_threads() <= 8


@pytest.mark.parametrize(
    ("named", "wanted"), [("3", 3), ("12", 12), ("2,4", 2), ("", None), ("0", None), ("all", None)]
)
def test_a_number_of_threads_that_the_environment_names_wins(monkeypatch, tmp_path, named, wanted):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    default = default_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", named)
    assert default_threads() == (wanted or default)
    before = torch.get_num_threads()
    try:
        weights.load(tiny_text_model("qwen3", tmp_path / "model"), "float32", "sdpa", "cpu")
        assert torch.get_num_threads() == (wanted or default)
        weights.load(tmp_path / "model", "float32", "sdpa", "cpu", threads=1)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_numbers_and_kinds_that_are_not_there_are_refused(machine):
    machine("cuda", 2)
    for name in ("cuda:2", "npu", "npu:0"):
        with pytest.raises(SettingError, match="sees 2 of the kind cuda, numbered from 0"):
            devices.resolve(name)
    assert devices.resolve("cuda:1") == torch.device("cuda", 1)


@pytest.mark.parametrize("name", ["", "CUDA", "cuda:", "cuda:x", "cuda:99999", "cuda 1", "../cuda"])
def test_what_is_no_device_is_refused_before_torch_is_asked(name):
    with pytest.raises(ValueError, match="use auto, cpu, NAME or NAME:N"):
        RunOptions(device=name)


@pytest.mark.parametrize(
    ("kind", "variable"),
    [
        ("cuda", "CUDA_VISIBLE_DEVICES"),
        ("xpu", "ZE_AFFINITY_MASK"),
        ("npu", "ASCEND_RT_VISIBLE_DEVICES"),
        ("abacus", "ABACUS_VISIBLE_DEVICES"),
    ],
)
def test_a_worker_is_shown_one_device(machine, kind, variable):
    machine(kind, 3)
    assert devices.visible_devices({}) == ["0", "1", "2"]
    assert devices.visible_devices({variable: "4,2,7"}) == ["4", "2", "7"]
    assert devices.environment_of("7") == {variable: "7", devices.ONE_DEVICE: "1"}
    assert devices.environment_of("cpu") == {}


def test_rocm_has_its_own_variable_where_it_is_used(machine, monkeypatch):
    machine("cuda", 2)
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert devices.visible_variable() == "CUDA_VISIBLE_DEVICES"
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "5,6")
    assert devices.visible_variable() == "HIP_VISIBLE_DEVICES"


def test_a_worker_that_sees_more_than_its_device_says_so(machine, monkeypatch):
    machine("abacus", 4)
    monkeypatch.setenv(devices.ONE_DEVICE, "1")
    with pytest.raises(SettingError, match="should see one device because of ABACUS_VISIBLE_DEVICES, but it sees 4"):
        devices.resolve("auto")


@pytest.mark.parametrize(
    ("kind", "count", "names", "device"),
    [
        ("abacus", 1, "", "accelerator"),
        ("abacus", 4, "", "abacus:2"),
        ("abacus", 4, "5,2,7,1", "abacus:2"),
        ("cuda", 1, "2", "accelerator"),
        ("cuda", 4, "5,2,7,1", "cuda:1"),
    ],
    ids=["one", "several", "renamed by a variable that clusters do not know", "shown one", "shown all, by their names"],
)
def test_a_worker_of_a_cluster_takes_the_device_that_it_was_given(machine, monkeypatch, kind, count, names, device):
    machine(kind, count)
    if names:
        monkeypatch.setenv(f"{kind.upper()}_VISIBLE_DEVICES", names)
    assert devices.assigned("2") == device


def test_ranks_share_devices_in_turn(machine):
    assert devices.of_rank("auto", 3) == "auto"
    machine("npu", 2)
    assert [devices.of_rank(name, 3) for name in ("auto", "npu", "cpu", "npu:0")] == ["npu:1", "npu:1", "cpu", "npu:0"]


@pytest.mark.parametrize(
    ("error", "is_out", "is_lost"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), True, False),
        (RuntimeError("CUDA error: out of memory"), True, False),
        (RuntimeError("UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY"), True, False),
        (MemoryError(), True, False),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False, True),
        (RuntimeError("HIP error: invalid argument"), False, True),
        (RuntimeError("shape mismatch"), False, False),
    ],
    ids=lambda each: str(each)[:40] if isinstance(each, Exception) else "",
)
def test_failures_of_devices_are_known_by_what_they_say(error, is_out, is_lost):
    assert (devices.is_out_of_memory(error), devices.is_lost(error)) == (is_out, is_lost)


def test_on_a_cpu_nothing_is_pinned_copied_or_waited_for():
    tensor = torch.ones(3)
    assert devices.pin(tensor, devices.CPU) is tensor
    assert devices.to_device(tensor, devices.CPU) is tensor
    assert devices.to_host(tensor) is tensor
    devices.Mark(devices.CPU).wait()
    devices.release_memory(devices.CPU)
    assert devices.memory(devices.CPU) is None
    assert devices.default_dtype("cpu") == "float32"
    assert devices.collectives(devices.CPU) == "gloo"
