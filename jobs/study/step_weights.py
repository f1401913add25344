"""Does a small gradient step with step weights lower the answer's loss more than one with equal weights?

    python -m jobs.study.step_weights gsm8k/train.jsonl --out step-weights

For each trace, the model takes one step of plain gradient descent on the loss of its steps' tokens, weighed by each
method; all of them have the same length. What is compared is by how much the loss of the trace's answer falls. Only the
last layers learn, with all their weights. Run again, it does what is missing.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grace_store.base.arrays import FloatArray
from grace_store.base.files import write_text
from grace_store.base.settings import DataSpec, Frozen, RunOptions
from grace_store.data.sample import Sample
from grace_store.example import demo_model
from grace_store.model.open_model import open_extractor
from grace_store.model.unit_extractor import ProxyExtractor
from grace_store.pool.records import UnitLoader, open_dataset
from grace_store.run.engines.engine import ExtractJob
from grace_store.run.extract import extract
from grace_store.scoring.weigh_steps import weights
from grace_store.scoring.weight_table import WeightTable
from grace_store.store.opened import Store
from grace_store.values.weightings import WEIGHTINGS, WeightsSpec
from jobs.study.ending import end
from jobs.study.environment import claim
from jobs.study.runs import append_line, whole_lines
from jobs.study.tables import Table

log = logging.getLogger("step_weights")

EQUAL = "equal"
NOTE = (
    "By how much the mean loss of a trace's answer falls after one step of gradient descent on its steps, all of one "
    "length, with weights by each method; and how much more than with equal weights, on the same traces."
)
FEWEST_STEPS = 3


class Settings(Frozen):
    """What decides the measured losses; the model is held against the store's own."""

    data_sha256: str
    num: int
    layers: int
    share: float
    methods: tuple[str, ...]


class Learner:
    """A model whose last layers take steps of a given length, and are put back. What comes before them runs once."""

    def __init__(self, extractor: ProxyExtractor, num_layers: int) -> None:
        self._extractor = extractor
        self._decoder: Any = extractor.model.get_decoder()
        self._all = self._decoder.layers
        self._last = self._all[len(self._all) - num_layers :]
        self._parameters = list(self._last.parameters())
        for parameter in self._parameters:
            parameter.requires_grad_(True)
        self._length = math.sqrt(sum(float(each.detach().square().sum()) for each in self._parameters))

    def answer_losses(
        self, sample: Sample, ways: dict[str, FloatArray], share: float
    ) -> tuple[float, dict[str, float]]:
        """Return the answer's mean loss, and the same after a step by each way; share is that of a step's length."""
        (batch,) = self._extractor.prepare([sample]).batches
        inputs = self._extractor.inputs_on_device(batch, {})
        entered: list[Tensor] = []
        hook = self._last[0].register_forward_pre_hook(lambda _, given: entered.append(given[0].detach()))
        with torch.enable_grad():
            losses = self._losses(batch, inputs)
            steps = self._gradients(losses, torch.from_numpy(batch.host_segment), ways)
        hook.remove()
        is_answer = torch.from_numpy(batch.host_segment == batch.host_segment.max())
        after = {}
        rest = {name: each for name, each in inputs.items() if name != "input_ids"} | {"inputs_embeds": entered[0]}
        self._decoder.layers = self._last
        for name, step in zip(ways, steps, strict=True):
            with moved(self._parameters, step, share * self._length):
                after[name] = float(self._losses(batch, rest)[is_answer].mean())
        self._decoder.layers = self._all
        return float(losses.detach()[is_answer].mean()), after

    def _losses(self, batch: Any, inputs: dict[str, Tensor]) -> Tensor:
        """Return the loss of every token of the response."""
        logits = self._extractor.model(**inputs, use_cache=False, return_dict=True).logits
        rows = logits.reshape(-1, logits.shape[-1])[batch.predecessor].float()
        return torch.nn.functional.cross_entropy(rows, batch.target, reduction="none")

    def _gradients(self, losses: Tensor, segment: Tensor, ways: dict[str, FloatArray]) -> list[tuple[Tensor, ...]]:
        """Return the gradient of the loss that each way makes of the steps' tokens; the answer's count nothing."""
        totals = [(losses * torch.from_numpy(np.append(way, 0.0))[segment]).sum() for way in ways.values()]
        return [torch.autograd.grad(each, self._parameters, retain_graph=True) for each in totals]


@contextmanager
def moved(parameters: Sequence[Tensor], step: Sequence[Tensor], length: float) -> Iterator[None]:
    """Move parameters down a gradient by a given length, for as long as it lasts."""
    norm = math.sqrt(sum(float(each.square().sum()) for each in step))
    kept = [each.detach().clone() for each in parameters]
    with torch.no_grad():
        for parameter, each in zip(parameters, step, strict=True):
            parameter.sub_(each, alpha=length / norm if norm else 0.0)
        yield
        for parameter, before in zip(parameters, kept, strict=True):
            parameter.copy_(before)


def first_traces(source: Path, out: Path, num: int) -> Path:
    """Write the first traces that have enough steps, and return where."""
    lines = (line for line in source.read_text().splitlines() if json.loads(line)["answer"].count("\n") >= FEWEST_STEPS)
    out.mkdir(parents=True, exist_ok=True)
    (out / "traces.jsonl").write_text("\n".join(islice(lines, num)) + "\n")
    return out / "traces.jsonl"


def _settings(given: argparse.Namespace) -> Settings:
    with given.data.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return Settings(
        data_sha256=digest, num=given.num, layers=given.layers, share=given.share, methods=tuple(given.methods)
    )


def measure(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield what became of each trace, those measured before first."""
    done = given.out / "traces-measured.jsonl"
    claim(_settings(given), given.out / "settings.json")
    known = [json.loads(line) for line in whole_lines(done)]
    yield from known
    store, options = given.out / "traces.zarr", RunOptions(threads=given.threads, device="cpu")
    request = DataSpec(format="gsm8k", min_steps=FEWEST_STEPS)
    data = first_traces(given.data, given.out, given.num)
    extract(
        ExtractJob(store=str(store), model=str(given.model), data=(str(data),), data_request=request, options=options)
    )
    opened = Store.open(store)
    tables = {name: weights(opened, WeightsSpec(method=name)) for name in given.methods}
    extractor = open_extractor(str(given.model), opened.signal(None).signal.spec, options)
    assert isinstance(extractor, ProxyExtractor)
    learner, measured = Learner(extractor, given.layers), {each["row"] for each in known}
    with open_dataset(opened) as dataset:
        samples = UnitLoader(opened, dataset).read(0, opened.plan.num_samples)
    rows = opened.column("sample_row").tolist()
    for row, sample in zip(rows, samples, strict=True):
        if row in measured:
            continue
        found = _one(learner, row, sample, tables, given.share)
        append_line(done, found)
        log.info("%s", found)
        yield found


def _one(learner: Learner, row: int, sample: Sample, tables: dict[str, WeightTable], share: float) -> dict[str, Any]:
    """Return the loss of a trace's answer before a step and after one by each method that has weights for it."""
    num_steps = len(sample.bounds) - 2
    ways = {EQUAL: np.ones(num_steps)}
    for name, table in tables.items():
        (segments,) = table.segment_weights(np.array([row]))
        if segments is not None and segments[:-1].any():
            ways[name] = segments[:-1]
    before, after = learner.answer_losses(sample, ways, share)
    return {"row": row, "num_steps": num_steps, "before": before, "after": after}


def table_of(found: Sequence[dict[str, Any]]) -> Table:
    """Return by how much the answer's loss fell, each method against equal weights on the same traces."""
    rows = []
    for name in (EQUAL, *WEIGHTINGS):
        if not (mine := [each for each in found if name in each["after"]]):
            continue
        fall = np.array([each["before"] - each["after"][name] for each in mine])
        more = np.array([each["after"][EQUAL] - each["after"][name] for each in mine])
        reach = 1.96 * more.std(ddof=1) / math.sqrt(len(more))
        low, high = more.mean() - reach, more.mean() + reach
        against = "" if name == EQUAL else f"{more.mean():+.4f} ({low:+.4f} to {high:+.4f})"
        better = "" if name == EQUAL else f"{(more > 0).mean():.0%}"
        rows.append((name, str(len(mine)), f"{fall.mean():.4f}", against, better))
    columns = ("weights", "traces", "fall of the answer's loss", "more than equal (95 %)", "traces with more")
    return Table("One step of each trace", columns, tuple(rows), NOTE)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m jobs.study.step_weights",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("data", type=Path, help="GSM8K's train.jsonl")
    parser.add_argument("--out", type=Path, required=True, help="folder for the store and the results")
    parser.add_argument("--model", type=Path, default=None, help="the model (default: the demo's)")
    parser.add_argument("--num", type=int, default=30, help="traces (default: 30)")
    parser.add_argument("--layers", type=int, default=6, help="last layers that learn (default: 6)")
    parser.add_argument("--share", type=float, default=1e-5, help="length of a step, of the weights'")
    parser.add_argument("--methods", nargs="+", choices=WEIGHTINGS, default=["fit"], help="(default: fit)")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args(arguments)
    given.model = given.model or demo_model()
    return end(log, lambda: _write_table(given))


def _write_table(given: argparse.Namespace) -> str:
    """Measure what is missing, and return the table as it is written."""
    text = table_of(list(measure(given))).markdown()
    write_text(given.out / "step-weights.md", text)
    return text


if __name__ == "__main__":
    sys.exit(main())
