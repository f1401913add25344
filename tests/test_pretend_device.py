"""The pretend accelerator is as hard to use as a real one, and counts exactly."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.pretend.processes import environment, on_device, run_python

pytestmark = pytest.mark.slow
"""The pretend accelerator is built by a C++ compiler first; most of its tests start a process that imports torch."""


def _device() -> Any:
    import pretend_accelerator  # type: ignore[import-not-found]

    return pretend_accelerator


# ---------------------------------------------------------------- it is torch's accelerator


@on_device
def test_it_is_the_accelerator_of_torch() -> None:
    import torch

    assert torch.accelerator.current_accelerator(check_available=True) == torch.device("pretend")
    assert torch.accelerator.device_count() == 8
    torch.accelerator.set_device_index(3)
    try:
        assert torch.empty(1, device="pretend").device == torch.device("pretend:3")
        assert torch.pretend.current_device() == torch.accelerator.current_device_index() == 3
    finally:
        torch.accelerator.set_device_index(0)
    with torch.pretend.device("pretend:2"):
        assert torch.accelerator.current_device_index() == 2
    assert torch.accelerator.current_device_index() == 0
    with pytest.raises(torch.AcceleratorError, match="invalid device ordinal"):
        torch.empty(1, device="pretend:8")


@on_device
def test_mixed_devices_are_refused() -> None:
    import torch

    here, there, host = torch.ones(3, device="pretend:0"), torch.ones(3, device="pretend:1"), torch.ones(3)
    for other in (there, host):
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            here + other
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            torch.nn.functional.embedding(other.long(), here[:, None])
    assert (here + torch.tensor(2.0)).tolist() == [3, 3, 3], "a single number may come from the host"
    assert there.to("pretend:0").add(here).tolist() == [2, 2, 2]


@on_device
def test_two_threads_have_their_own_current_device() -> None:
    import torch

    both = threading.Barrier(2)

    def take(index: int) -> list[int]:
        first = torch.accelerator.current_device_index()
        torch.accelerator.set_device_index(index)
        both.wait()
        return [first, torch.accelerator.current_device_index(), torch.ones(2, device="pretend").device.index]

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(take, (4, 5))) == [[0, 4, 4], [0, 5, 5]]


@on_device
def test_seeds_give_the_same_numbers_again_on_each_device() -> None:
    import torch

    def draw() -> list[float]:
        return [
            *torch.randn(4, device="pretend:1").tolist(),
            *torch.nn.functional.dropout(torch.ones(9, device="pretend")).tolist(),
        ]

    torch.manual_seed(5)
    state = torch.pretend.get_rng_state_all()
    first = draw()
    assert draw() != first
    torch.pretend.set_rng_state_all(state)
    assert draw() == first
    torch.manual_seed(5)
    assert draw() == first
    generator = torch.Generator("pretend").manual_seed(7)
    first, second = (torch.rand(2, device="pretend", generator=generator).tolist() for _ in range(2))
    assert first != second
    assert torch.rand(2, device="pretend", generator=generator.manual_seed(7)).tolist() == first


# ---------------------------------------------------------------- it computes as the CPU


@on_device
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3", "gpt2", "qwen3_moe"])
def test_models_give_the_states_and_gradients_of_the_cpu(family: str, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    from tests.tiny_models import tiny_text_model

    folder = tiny_text_model(family, tmp_path)
    ids = torch.randint(3, 50, (2, 11), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    found = []
    for device in ("cpu", "pretend:3"):
        model = AutoModelForCausalLM.from_pretrained(folder, device_map={"": device})
        out = model(ids.to(device), attention_mask=mask.to(device), labels=ids.to(device))
        out.loss.backward()
        parameters = list(model.parameters())
        assert {p.device for p in parameters} | {p.grad.device for p in parameters if p.grad is not None} == {
            torch.device(device)
        }
        found.append([out.logits.detach().cpu(), *(p.grad.cpu() for p in parameters if p.grad is not None)])
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)


@on_device
def test_a_vision_model_gives_the_states_of_the_cpu() -> None:
    import torch
    from transformers import Qwen2VLConfig, Qwen2VLModel

    text = {
        "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 60,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]},
    }  # fmt: skip
    vision = {"depth": 2, "embed_dim": 32, "hidden_size": 32, "num_heads": 4}
    tokens = {"image_token_id": 50, "vision_start_token_id": 51, "vision_end_token_id": 52}
    config = Qwen2VLConfig(text_config=text, vision_config=vision, **tokens)
    torch.manual_seed(0)
    model = Qwen2VLModel(config).eval()
    grid = torch.tensor([[1, 4, 4]])
    inputs = {
        "input_ids": torch.tensor([[1, 51, 50, 50, 50, 50, 52, 3, 4]]),
        "mm_token_type_ids": torch.tensor([[0, 0, 1, 1, 1, 1, 0, 0, 0]]),
        "pixel_values": torch.randn(16, 3 * 2 * 14 * 14),
        "image_grid_thw": grid,
    }
    with torch.inference_mode():
        expected = model(**inputs).last_hidden_state
        model.to("pretend:1")
        found = model(**{name: value.to("pretend:1") for name, value in inputs.items()}).last_hidden_state
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-5)


@on_device
def test_optimizers_and_autocast_and_checkpoints_work(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    found = []
    for device in ("cpu", "pretend:2"):
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.Linear(8, 3))
        model.to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for step in range(3):
            rows = torch.linspace(-1, 1, 24).reshape(4, 6).to(device) * (step + 1)
            model(rows).square().sum().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        found.append([p.detach().cpu() for p in model.parameters()])
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-6)
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    torch.testing.assert_close(load_file(tmp_path / "w.safetensors"), dict(model.cpu().state_dict()))
    rows = torch.ones(2, 6, device="pretend:2")
    with torch.autocast("pretend", dtype=torch.bfloat16):
        assert (rows @ rows.T).dtype == torch.bfloat16
        assert torch.nn.functional.layer_norm(rows.bfloat16(), (6,)).dtype == torch.float32
    assert (rows @ rows.T).dtype == torch.float32


@on_device
def test_no_operator_of_a_model_is_run_before_its_turn(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    from tests.tiny_models import tiny_text_model

    model = AutoModelForCausalLM.from_pretrained(tiny_text_model("llama", tmp_path)).to("pretend")
    ids = torch.ones(1, 5, dtype=torch.long).pin_memory().to("pretend", non_blocking=True)
    _device().reset_counters()
    model(ids).logits.sum().backward()
    assert _device().counters()["run at once"] == {}


# ---------------------------------------------------------------- work is queued


@on_device
def test_a_copy_to_the_host_holds_garbage_until_its_event() -> None:
    import torch

    values = torch.arange(6.0, device="pretend")
    host = torch.zeros(6, pin_memory=True)
    host.copy_(values + 1, non_blocking=True)
    event = torch.Event("pretend")
    event.record()
    values.zero_()
    assert host.isnan().all()
    event.synchronize()
    assert host.tolist() == [1, 2, 3, 4, 5, 6], "what the device held at the copy's place in the stream"


@on_device
def test_a_copy_to_memory_that_is_not_pinned_is_waited_for() -> None:
    import torch

    host = torch.zeros(3)
    host.copy_(torch.ones(3, device="pretend"), non_blocking=True)
    assert host.tolist() == [1, 1, 1]
    assert "non-blocking copy that blocks, device to host" in "".join(_device().counters()["waits"])


@on_device
def test_a_host_buffer_reused_too_early_corrupts_what_was_copied() -> None:
    import torch

    buffer = torch.ones(4).pin_memory()
    early = buffer.to("pretend", non_blocking=True) * 2
    buffer.fill_(7)
    assert early.tolist() == [14, 14, 14, 14]
    buffer.fill_(1)
    waited = buffer.to("pretend", non_blocking=True) * 2
    torch.accelerator.current_stream().synchronize()
    buffer.fill_(7)
    assert waited.tolist() == [2, 2, 2, 2]


@on_device
def test_a_pinned_buffer_freed_early_is_kept_for_the_queue() -> None:
    import torch

    values = torch.ones(1000).pin_memory().to("pretend", non_blocking=True)
    others = [torch.zeros(1000).pin_memory() for _ in range(8)]
    assert values.sum().item() == 1000
    assert all(other.is_pinned() and not other.numpy().any() for other in others)


@on_device
def test_streams_see_each_other_by_events_only() -> None:
    import torch

    other = torch.Stream("pretend")
    source = torch.zeros(2, device="pretend")
    torch.accelerator.synchronize()
    source += 1
    event = torch.Event("pretend")
    event.record()
    with other:
        assert torch.accelerator.current_stream() == other
        unordered = source * 10
        assert unordered.tolist() == [0, 0], "nothing told the other stream to wait"
        other.wait_event(event)
        assert (source * 10).tolist() == [10, 10]
    assert torch.accelerator.current_stream() != other


@on_device
def test_an_event_that_is_polled_comes() -> None:
    import torch

    values = torch.ones(2, device="pretend") + 1
    event = torch.Event("pretend")
    event.record()
    answers = [event.query() for _ in range(5)]
    assert not answers[0]
    assert answers[-1]
    assert values.tolist() == [2, 2]


@on_device
def test_pinned_memory() -> None:
    import torch

    assert torch.empty(3, pin_memory=True).is_pinned()
    assert torch.ones(3).pin_memory()[1:].is_pinned()
    assert not torch.ones(3).is_pinned()
    assert torch.ones(3, device="pretend").to("cpu", non_blocking=True).is_pinned()
    assert torch.tensor([1, 2]).pin_memory().tolist() == [1, 2]


# ---------------------------------------------------------------- limits and faults


@on_device
def test_memory_ends_at_the_byte_that_is_chosen() -> None:
    import torch

    device, index = "pretend:4", 4
    before = torch.accelerator.memory_allocated(index)
    _device().set_memory(before + 1000, index)
    try:
        held = torch.empty(1000, dtype=torch.uint8, device=device)
        assert torch.accelerator.get_memory_info(index) == (0, before + 1000)
        with pytest.raises(torch.OutOfMemoryError, match=r"pretend out of memory. Tried to allocate 1 bytes"):
            torch.empty(1, dtype=torch.uint8, device=device)
        with pytest.raises(torch.OutOfMemoryError, match="pretend:4 has a total capacity"):
            held + held
        del held
        assert torch.accelerator.memory_allocated(index) == before
        torch.empty(1000, dtype=torch.uint8, device=device)
        assert torch.accelerator.max_memory_allocated(index) == before + 1000
        assert torch.accelerator.memory_stats(index)["num_ooms"] == 2
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(1001, dtype=torch.uint8, device=device)
    finally:
        _device().set_memory(1 << 30, index)


@on_device
def test_the_nth_launch_fails_and_the_device_is_lost() -> None:
    import torch

    values = torch.ones(2, device="pretend:7")
    host = torch.zeros(2, pin_memory=True)
    _device().plan_fault("fail", 3, 7)
    for _ in range(3):
        values = values + 1
    host.copy_(values, non_blocking=True)
    with pytest.raises(torch.AcceleratorError, match=r"unspecified launch failure in aten::add \(pretend:7\)"):
        torch.accelerator.synchronize(7)
    calls = (lambda: values + 1, lambda: torch.empty(1, device="pretend:7"), lambda: torch.accelerator.synchronize(7))
    for call in (*calls, values.tolist):
        with pytest.raises(torch.AcceleratorError, match="The device is lost"):
            call()
    assert host.isnan().all()
    assert torch.ones(2, device="pretend:0").tolist() == [1, 1], "the others go on"


@on_device
def test_an_index_out_of_range_is_found_by_the_kernel_and_ends_the_device() -> None:
    import torch

    rows = torch.ones(4, 2, device="pretend:6")
    torch.nn.functional.embedding(torch.tensor([9], device="pretend:6"), rows)
    with pytest.raises(torch.AcceleratorError, match="device-side assert triggered"):
        rows.sum().item()


def test_a_hang_lasts_until_the_process_is_killed() -> None:
    program = "import torch; x = torch.ones(2, device='pretend:1') + 1; print('queued', flush=True); print(x.tolist())"
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, env=environment(faults="1=hang@2"), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "queued\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)
        process.terminate()
        assert process.stdout.read() == ""
    assert process.returncode == -signal.SIGTERM


def test_the_host_cannot_touch_the_memory() -> None:
    program = "import ctypes, torch; ctypes.string_at(torch.ones(2, device='pretend:1').data_ptr(), 4)"
    result = run_python(["-X", "faulthandler", "-c", program])
    assert result.returncode < 0
    assert "the host touched memory of pretend:1" in result.stderr
    assert 'File "<string>", line 1' in result.stderr


# ---------------------------------------------------------------- counters


@on_device
def test_counters_count_exactly() -> None:
    import torch

    pinned, plain = torch.ones(4).pin_memory(), torch.ones(2, 2)
    out = torch.empty(4, pin_memory=True)
    _device().reset_counters()
    first = pinned.to("pretend", non_blocking=True)
    second = plain.to("pretend")
    total = (first * 2).sum() + second.sum()
    out.copy_(first, non_blocking=True)
    torch.accelerator.synchronize()
    assert total.item() == 12
    found = _device().counters()
    assert found["launches"] == {"aten::mul": 1, "aten::sum": 2, "aten::add": 1, "aten::_local_scalar_dense": 1}
    assert found["copies"] == {
        "host to device, pinned, queued": 1,
        "host to device, pageable, waited for": 1,
        "device to host, pinned, queued": 1,
    }
    assert set(found["copied bytes"].values()) == {16}
    waits = {name.partition(" at ")[0]: count for name, count in found["waits"].items()}
    assert waits == {"copy, host to device": 1, "synchronize": 1, "item": 1}
    assert all("tests/test_pretend_device.py:" in name for name in found["waits"])
    assert found["memory"]["allocations"] == 6
    assert found["memory"]["peak_bytes"] >= 2 * 16
    assert found["run at once"] == {}


def test_a_process_sees_its_own_devices_and_leaves_its_counters(tmp_path: Path) -> None:
    program = """
import threading, torch
assert torch.accelerator.device_count() == 2
assert torch.accelerator.get_memory_info(1)[1] == 5000
torch.accelerator.set_device_index(1)
worker = threading.Thread(target=lambda: torch.empty(1, pin_memory=True), name="pins")
worker.start()
worker.join()
"""
    settings = {"devices": 8, "visible_devices": "3,5", "memory": "3=4000,5=5000", "counters": tmp_path}
    result = run_python(["-c", program], **settings)
    assert result.returncode == 0, result.stderr
    (file,) = tmp_path.iterdir()
    devices = json.loads(file.read_text())["devices"]
    assert {number: list(counted["contexts"]) for number, counted in devices.items()} == {
        "3": ["pinned memory in thread python"],
        "5": ["memory info in thread python"],
    }, "a thread that never chose a device makes a context on the first"


def test_ranks_add_up_on_their_devices() -> None:
    program = """
import os, sys, torch, torch.distributed as dist
rank = int(os.environ["RANK"])
torch.accelerator.set_device_index(rank)
dist.init_process_group("pretend_ccl")
total = torch.tensor([1 + rank, 5], device="pretend")
dist.all_reduce(total)
dist.barrier()
os.write(1, f"{total.tolist()}\\n".encode())  # in one piece: print writes its newline apart, and the ranks share a pipe
dist.destroy_process_group()
"""
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, "--no-python"]
    result = run_python([*words, sys.executable, "-c", program])
    assert result.stdout.splitlines() == ["[3, 10]", "[3, 10]"], result.stderr


@on_device
def test_a_forked_process_cannot_use_the_device() -> None:
    import os

    import torch

    torch.ones(1, device="pretend")
    child = os.fork()
    if child == 0:
        try:
            torch.ones(1, device="pretend")
        except RuntimeError as error:
            os._exit(17 if "forked subprocess" in str(error) else 1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 17
