"""Extraction against what takes backward passes: true step gradients, and other libraries' per-sample collection.

bergson and TRAK are measured if they are installed: give --peers the Python of an environment that has them, torch and
transformers. TRAK is measured without its projection, which on a CPU would take far longer than the gradients.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from grace_store.model.inputs.collate import Batch
from grace_store.model.inputs.encode_samples import PreparedUnit
from jobs.bench.extraction import Extraction
from jobs.bench.findings import Findings, Goal, Ratio, sides
from jobs.bench.measuring import in_turns
from jobs.bench.workload import RandomModel, Traces

TRUE_GOAL = Goal(">=", 8.0)
PEER_GOAL = Goal(">=", 2.5)
IGNORED = -100
BERGSON_DIMENSION = 16
"""Of its projection of each module's gradient, from either side."""


def measure(*, quick: bool, threads: int) -> dict[str, Any]:
    """Measure against one whole backward pass for every segment."""
    with _ready(quick=quick, threads=threads) as (bench, note, _):
        # One sample at a time: in a batch, every segment's backward pass would go through all of its samples.
        name, gradients = "true step gradients, CPU time", partial(true_step_gradients, bench, bench.single_batches())
        return Findings([_ratio(bench, name, gradients, TRUE_GOAL, note, quick=quick)]).to_json()


def measure_peers(*, quick: bool, threads: int) -> dict[str, Any]:
    """Measure against those of the peers that are installed."""
    peers: dict[str, tuple[str, Callable[[Extraction, Path], object]]] = {
        "bergson": ("bergson", bergson_gradients),
        "TRAK": ("trak", trak_gradients),
    }
    ratios, notes = [], []
    with _ready(quick=quick, threads=threads) as (bench, note, folder):
        for name, (module, collect) in peers.items():
            if find_spec(module) is None:
                notes.append(f"{name} is not installed and was not measured.")
                continue
            other = partial(collect, bench, folder / module)
            ratios.append(_ratio(bench, f"{name}, per sample, CPU time", other, PEER_GOAL, note, quick=quick))
    return Findings(ratios, notes=notes).to_json()


@contextmanager
def _ready(*, quick: bool, threads: int) -> Iterator[tuple[Extraction, str, Path]]:
    """Yield what is extracted, what it is in words, and a folder for others' output."""
    torch.set_num_threads(threads)
    model = RandomModel(64, 2, 2_000) if quick else RandomModel(512, 8, 32_000)
    traces = Traces(num_samples=1 if quick else 2)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        with Extraction(folder / "bench", model.write(folder / "model"), traces, threads=threads) as bench:
            yield bench, f"{model.describe()}; {bench.num_samples} samples, {bench.num_tokens} tokens", folder


def _ratio(bench: Extraction, name: str, other: Callable[[], object], goal: Goal, note: str, *, quick: bool) -> Ratio:
    repeats = 1 if quick else 2
    bench.make_room(repeats)
    costs = in_turns({"extract": bench.extract, name: other}, repeats)
    return Ratio(
        "extract, store written", name, costs[name].cpu_seconds / costs["extract"].cpu_seconds, goal, sides(costs), note
    )


def true_step_gradients(bench: Extraction, batches: Sequence[Batch]) -> None:
    """Take the gradient of every segment's mean loss over all parameters, one backward pass each."""
    model = bench.extractor.model
    weight = model.get_output_embeddings().weight
    with _trainable(model) as parameters:
        for batch in batches:
            hidden = bench.extractor.hidden_states(batch, {})
            losses = functional.cross_entropy(functional.linear(hidden, weight), batch.target, reduction="none")
            for segment in range(int(batch.segment[-1]) + 1):
                loss = losses[batch.segment == segment].mean()
                torch.autograd.grad(loss, parameters, retain_graph=True)


@contextmanager
def _trainable(model: nn.Module) -> Iterator[list[nn.Parameter]]:
    """Let gradients flow to all parameters, as an extractor's model does not."""
    parameters = list(model.parameters())
    for parameter in parameters:
        parameter.requires_grad_(True)
    try:
        yield parameters
    finally:
        for parameter in parameters:
            parameter.requires_grad_(False)


def _labelled(unit: PreparedUnit, member: int) -> tuple[Tensor, Tensor]:
    """Return a sample's tokens and labels, which are ignored outside the response."""
    tokens = unit.tokens[member]
    ids = torch.from_numpy(tokens.ids)
    return ids, ids.where(torch.from_numpy(tokens.segment >= 0), torch.tensor(IGNORED))


def bergson_gradients(bench: Extraction, folder: Path) -> None:
    """Collect one projected gradient a sample as bergson does, in the batches that extraction has."""
    from bergson import GradientProcessor, IndexConfig, collect_gradients
    from datasets import Dataset

    rows: list[dict[str, list[int]]] = []
    batches: list[list[int]] = []
    for unit in bench.units:
        for batch in unit.batches:
            batches.append(list(range(len(rows), len(rows) + len(batch.members))))
            several = [_labelled(unit, member) for member in batch.members]
            rows += [{"input_ids": ids.tolist(), "labels": labels.tolist()} for ids, labels in several]
    config = IndexConfig(run_path=str(folder), projection_dim=BERGSON_DIMENSION)
    config.partial_run_path.mkdir(parents=True, exist_ok=True)
    processor = GradientProcessor(projection_dim=BERGSON_DIMENSION)
    with _trainable(bench.extractor.model):
        collect_gradients(bench.extractor.model, Dataset.from_list(rows), processor, config, batches=batches)


def trak_gradients(bench: Extraction, folder: Path) -> None:
    """Make one gradient a sample as TRAK does, by vectorised backward passes over the batches of extraction."""
    from trak.gradient_computers import FunctionalGradientComputer

    model = bench.extractor.model
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    with _trainable(model):
        computer = FunctionalGradientComputer(model, MeanLoss, num_parameters, torch.float32, "cpu")
        for unit in bench.units:
            for batch in unit.batches:
                ids, labels = zip(*(_labelled(unit, member) for member in batch.members), strict=True)
                computer.compute_per_sample_grad(
                    (
                        pad_sequence(list(ids), batch_first=True),
                        pad_sequence(list(labels), batch_first=True, padding_value=IGNORED),
                    )
                )


class MeanLoss:
    """What TRAK differentiates: a sample's mean loss over its response."""

    @staticmethod
    def get_output(model: Any, weights: Any, buffers: Any, ids: Tensor, labels: Tensor) -> Tensor:
        arguments = {"input_ids": ids.unsqueeze(0), "use_cache": False}
        output = torch.func.functional_call(model, (weights, buffers), args=(), kwargs=arguments)
        return functional.cross_entropy(output.logits[0, :-1], labels[1:], ignore_index=IGNORED)
