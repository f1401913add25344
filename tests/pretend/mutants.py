"""Mistakes that only a device shows, made on purpose: `python -m tests.pretend.mutants NAME` ends well if noticed.

Each is a replacement in the source of one function, which fails if the text is not there any more, and a check that
holds without it.
"""

from __future__ import annotations

import inspect
import sys
import tempfile
import textwrap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from grace_store.base.errors import GraceStoreError
from grace_store.base.settings import RunOptions
from grace_store.model import devices, unit_extractor
from grace_store.model.inputs import collate
from tests.pretend.hot_loop import DEVICE, WORKLOADS, contexts

CPU = RunOptions(device="cpu", threads=1)


@dataclass(frozen=True)
class Mutant:
    """A mistake: where, what is written there, what would be written instead, and who must notice."""

    module: ModuleType
    function: str
    """Its name, after that of its class if it has one."""
    old: str
    new: str
    check: Callable[[Path], None]

    def make(self) -> None:
        """Make the mistake in this process."""
        *above, name = self.function.split(".")
        owner: Any = self.module
        for part in above:
            owner = getattr(owner, part)
        source = textwrap.dedent(inspect.getsource(getattr(owner, name)))
        assert source.count(self.old) == 1, f"{self.function} has changed: {self.old!r} is not in it once"
        made: dict[str, Any] = {}
        exec(compile(source.replace(self.old, self.new), self.function, "exec"), vars(self.module), made)
        setattr(owner, name, made[name])


def check_values(folder: Path) -> None:
    """Vectors are those of the CPU, whatever is still on its way when others are asked for."""
    for name in ("text", "LLaVA"):
        workload = WORKLOADS[name]
        here = workload.extractor(folder)
        with ThreadPoolExecutor(1) as loader:  # as the pipeline does
            pending = [here.compute(unit) for unit in loader.map(here.prepare, [workload.samples] * 2)]
        found = [each.result() for each in pending]
        there = workload.extractor(folder, CPU)
        expected = there.compute(there.prepare(workload.samples)).result()
        for each in found:
            assert each.set_aside == expected.set_aside, each.set_aside
            np.testing.assert_allclose(each.segment_vector, expected.segment_vector, rtol=1e-3, atol=1e-5)


def check_place(folder: Path) -> None:
    """All of it happens on the device that was asked for, and nobody opens another, whatever thread it is."""
    check_values(folder)
    assert list(contexts()) == [DEVICE], contexts()


def check_split(folder: Path) -> None:
    """A batch that does not fit is split in two that do, once what the failed one had is free."""
    import pretend_accelerator  # type: ignore[import-not-found]

    workload = WORKLOADS["one batch"]
    extractor = workload.extractor(folder)
    whole = extractor.prepare(workload.samples)
    middle = (len(whole.tokens) + 1) // 2
    members = whole.batches[0].members
    largest = 0
    for half in (members[:middle], members[middle:]):
        pretend_accelerator.reset_counters(DEVICE)
        some = [workload.samples[member] for member in half]
        extractor.compute(extractor.prepare(some)).result()
        largest = max(largest, pretend_accelerator.counters(DEVICE)["memory"]["peak_bytes"])
    pretend_accelerator.set_memory(largest, DEVICE)
    assert extractor.compute(whole).result().split == (middle, len(members) - middle)


MUTANTS = {
    "drop an event's wait": Mutant(devices, "Mark.wait", "self._event.synchronize()", "pass", check_values),
    "read a pinned buffer early": Mutant(
        unit_extractor,
        "UnitInFlight.result",
        "        self.mark.wait()\n    signals = self.gather()",
        "        signals = self.gather()\n        self.mark.wait()",
        check_values,
    ),
    "use a pinned buffer twice": Mutant(
        devices,
        "to_host",
        "torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)",
        "vars(torch).setdefault('kept', {}).setdefault(tensor.shape, "
        "torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True))",
        check_values,
    ),
    "leave one tensor on the host": Mutant(
        collate, "Batch.tokens_on", "devices.to_device(self.weight, device)", "self.weight", check_values
    ),
    "forget a device's index": Mutant(
        devices,
        "resolve",
        "int(number) if number else _current_index(kind)",
        "_current_index(kind)",
        check_place,
    ),
    "let threads pin where they are": Mutant(
        unit_extractor, "UnitExtractor.prepare", "devices.make_current(self._device)", "pass", check_place
    ),
    "keep tensors across a split": Mutant(
        unit_extractor,
        "UnitExtractor._try",
        "failure = error.with_traceback(None)",
        "failure = self._kept = error",
        check_split,
    ),
}
CHECKS: list[Callable[[Path], None]] = [check_place, check_split]
"""Those that hold without any mutant, the first in a process that did nothing before."""


def main(name: str) -> int:
    """Return 0 if a mutant was noticed, or with "none" if all checks hold."""
    mutant = MUTANTS.get(name)
    if mutant is not None:
        mutant.make()
    with tempfile.TemporaryDirectory() as folder:
        try:
            for number, check in enumerate([mutant.check] if mutant else CHECKS):
                check(Path(folder) / str(number))
        except (AssertionError, RuntimeError, GraceStoreError) as error:
            sys.stdout.write(f"{name}: noticed: {type(error).__name__}: {str(error).strip()[:300]}\n")
            return 0 if mutant else 1
    sys.stdout.write(f"{name}: nothing was noticed\n")
    return 1 if mutant else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
