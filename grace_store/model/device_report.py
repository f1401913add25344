"""Tell of torch and of every device in lines of JSON, and try each: run as a process, as a device may never answer.

Run as ``python -m grace_store.model.device_report`` by `grace-store support`, which waits for it only so long.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

import torch

from grace_store.model import devices

_SIZE = 64


def describe_devices() -> Iterator[dict[str, Any]]:
    """Yield what torch is built for, then each device with its memory and how a probe of it went."""
    built = {name: value for name, value in vars(torch.version).items() if isinstance(value, str) and name[0] != "_"}
    kind = devices.accelerator()
    yield {"torch": built, "kind": kind, "num_devices": devices.count(), "visible_by": devices.visible_variable()}
    for number in range(devices.count()):
        yield {"begins": number}
        yield _described(torch.device(str(kind), number))


def _described(device: torch.device) -> dict[str, Any]:
    told: dict[str, Any] = {"device": device.index}
    try:
        told["name"] = _name(device)
        told["probe"] = _probe(device)
        free_and_total = devices.memory(device)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what is to be told
        return {**told, "probe": devices.in_words(error)}
    return told | dict(zip(("free_bytes", "total_bytes"), free_and_total or (), strict=False))


def _name(device: torch.device) -> str:
    ask = getattr(torch.get_device_module(device), "get_device_name", None)
    return "" if ask is None else str(ask(device))


def _probe(device: torch.device) -> str:
    """Return "ok" if a product comes back right, in the two formats that models run in, as a unit's results do."""
    devices.make_current(device)
    for dtype in (torch.float32, torch.bfloat16):
        ones = devices.to_device(devices.pin(torch.ones((_SIZE, _SIZE), dtype=dtype), device), device)
        product = devices.to_host(ones @ ones)
        devices.Mark(device).wait()
        if not bool((product == _SIZE).all()):
            return f"a product of {dtype} came back wrong"
    return "ok"


if __name__ == "__main__":
    for line in describe_devices():
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
