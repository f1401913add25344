"""A model and traces made ready to be extracted, over and over, beside other ways to run the same tokens."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from grace_store.base.metadata import Signal
from grace_store.base.settings import DataSpec, ExtractSpec, RunOptions
from grace_store.model.inputs.collate import Batch
from grace_store.model.inputs.encode_samples import PreparedUnit
from grace_store.model.open_model import ProxyExtractor, open_extractor, resolve_spec
from grace_store.pool.records import UnitLoader, open_dataset
from grace_store.run.engines.worker import ListFeed, run_pipeline
from grace_store.run.plan import plan
from grace_store.store.opened import SignalView
from grace_store.store.unit_writer import UnitWriter, complete_signal, create_signal
from jobs.bench.workload import Traces

BARE_TOKENS = ExtractSpec.model_fields["head_tokens"].default
"""Tokens whose logits a bare pass makes at a time: as many as extraction does, which is no slower than fewer or all."""


class Extraction:
    """One model, one set of traces, one store with a signal for every run."""

    def __init__(
        self,
        folder: Path,
        model: Path,
        traces: Traces,
        *,
        threads: int,
        batch_tokens: int | None = None,
        storage: str = "int8",
        request: ExtractSpec | None = None,
        images: Path | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._options = RunOptions(device="cpu", threads=threads, loader_threads=1)
        data = traces.write(folder / "traces.jsonl")
        self.store = plan([data], folder / "store.zarr", DataSpec(min_steps=1))
        self._dataset = open_dataset(self.store)
        batching = {} if batch_tokens is None else {"batch_tokens": batch_tokens}
        request = request or ExtractSpec(storage=storage, **batching)
        self._spec = resolve_spec(str(model), request, self._options)
        extractor = open_extractor(str(model), self._spec, self._options, images=images)
        assert isinstance(extractor, ProxyExtractor)
        self.extractor = extractor
        self._loader = UnitLoader(self.store, self._dataset)
        self.units = self.prepare_all()
        if set_aside := [each for unit in self.units for each in unit.set_aside.values()]:
            raise RuntimeError(f"the model cannot read the benchmark's traces: {set_aside[0]}")
        self._empty: list[SignalView] = []
        self._num_signals = 0

    def __enter__(self) -> Extraction:
        return self

    def __exit__(self, *_: object) -> None:
        self._dataset.close()

    def prepare_all(self) -> list[PreparedUnit]:
        """Read and tokenise every unit, and form its batches."""
        units = range(self.store.plan.num_units)
        return [self.extractor.prepare(self._loader.load(unit)[0]) for unit in units]

    @property
    def num_samples(self) -> int:
        return self.store.plan.num_samples

    @property
    def num_response_tokens(self) -> int:
        return sum(len(batch.target) for batch in self.batches())

    @property
    def num_tokens(self) -> int:
        return sum(tokens.num_tokens for unit in self.units for tokens in unit.tokens.values())

    def batches(self) -> Iterator[Batch]:
        for unit in self.units:
            yield from unit.batches

    def single_batches(self) -> list[Batch]:
        """Return a batch for every sample by itself."""
        samples = self._loader.read(0, self.num_samples)
        return [batch for sample in samples for batch in self.extractor.prepare([sample]).batches]

    def make_room(self, num_runs: int) -> None:
        """Create the empty signals of runs to come, which is not what they are measured for."""
        for _ in range(num_runs):
            name = f"run-{self._num_signals}"
            self._num_signals += 1
            signal = Signal(
                name=name, spec=self._spec, plan_sha256=self.store.plan.digest(), origin={"model": "benchmark"}
            )
            self._empty.append(create_signal(self.store, signal))

    def extract(self) -> SignalView:
        """Read, tokenise, run, compress, write, sync and commit every unit, and complete the signal."""
        view = self._empty.pop()
        feed = ListFeed(range(self.store.plan.num_units), threading.Event())
        run_pipeline(UnitWriter(view), feed, self._loader, self.extractor, self._options, lambda _: None)
        complete_signal(view)
        return view

    def bare_forward(self) -> list[Tensor]:
        """Return every response token's cross-entropy: the same batches, the head on response positions only."""
        weight = self.extractor.model.get_output_embeddings().weight
        losses: list[Tensor] = []
        with torch.inference_mode():
            for batch in self.batches():
                hidden = self.extractor.hidden_states(batch, {})
                for states, target in zip(hidden.split(BARE_TOKENS), batch.target.split(BARE_TOKENS), strict=True):
                    losses.append(functional.cross_entropy(functional.linear(states, weight), target, reduction="none"))
        return losses
