"""A model door without a model: vectors are a function of text and adapter. For tests of jobs, without torch."""

from __future__ import annotations

import hashlib
import os
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from grace_store.base.files import whole_file
from grace_store.base.settings import (
    ExtractSpec,
    GradientSpec,
    ModelIdentity,
    RunOptions,
)
from grace_store.base.states import Reason, SampleSignals, SetAside, UnitOutcome, UnitSignals
from grace_store.data.sample import Sample

HIDDEN_SIZE = 24
CALLS_FILE = "FAKE_MODEL_CALLS"
"""Environment variable naming a file that gets a line for every unit computed, from any process."""
GATE = "FAKE_MODEL_GATE"
"""Environment variable naming the folder of a Gate, for workers that get no other word from a test."""


def make_fake_model(folder: Path, weights: str = "weights") -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "weights").write_text(weights)
    return str(folder)


@dataclass(frozen=True)
class Gate:
    """A folder by which a test sees where units are computed, holds them there, or has one kill its worker."""

    folder: Path

    def hold(self, *samples: str) -> None:
        """Have units that begin with these samples wait until let go."""
        for sample in samples:
            (self.folder / f"{sample}.held").touch()

    def let_go(self) -> None:
        for path in self.folder.glob("*.held"):
            path.unlink()

    def make_deadly(self, sample: str) -> None:
        (self.folder / f"{sample}.deadly").touch()

    def clear(self) -> None:
        for path in self.folder.iterdir():
            path.unlink()

    def seen(self, node: str) -> list[str]:
        """Return the first samples of the units that came here on a node."""
        return [path.stem.partition("=")[2] for path in self.folder.glob(f"{node}=*.seen")]

    def processes(self, node: str) -> set[int]:
        """Return the processes that computed these units."""
        return {int(path.read_text()) for path in self.folder.glob(f"{node}=*.seen")}

    def pass_through(self, sample: str) -> None:
        if (self.folder / f"{sample}.deadly").exists():
            os.kill(os.getpid(), 9)
        with whole_file(self.folder / f"{_node()}={sample}.seen") as part:
            part.write_text(str(os.getpid()))
        while (self.folder / f"{sample}.held").exists():
            time.sleep(0.01)


def _node() -> str:
    """Return the node of a Ray cluster that this process belongs to, if it does."""
    ray = sys.modules.get("ray")
    return ray.get_runtime_context().get_node_id() if ray is not None and ray.is_initialized() else ""


def resolve_spec(model: str, request: ExtractSpec, options: RunOptions, *, adapter: str | None = None) -> ExtractSpec:
    digest = hashlib.sha256((Path(model) / "weights").read_bytes()).hexdigest()
    identity = ModelIdentity(
        architecture="Fake",
        hidden_size=HIDDEN_SIZE,
        vocab_size=7,
        config="0",
        weights=digest,
        tokenizer="0",
        adapter=adapter,
    )
    settings = {"rendering": "plain", **request.given()}
    if request.kind == "gradient":
        wanted = request.gradient or GradientSpec()
        found = {"normalise": wanted.per == "sample", "parameters": "0", "dimension": HIDDEN_SIZE}
        settings["gradient"] = GradientSpec(**{**found, **wanted.given()})
    return ExtractSpec(model=identity, **settings).whole()


def open_extractor(
    model: str,
    spec: ExtractSpec,
    options: RunOptions,
    *,
    adapter: str | None = None,
    images: str | None = None,
) -> FakeExtractor:
    assert resolve_spec(model, ExtractSpec(), options, adapter=adapter).model == spec.model
    bad_device = os.environ.get("FAKE_MODEL_BAD_DEVICE")
    if bad_device and bad_device == os.environ.get("CUDA_VISIBLE_DEVICES"):
        os.kill(os.getpid(), 9)
    return FakeExtractor(spec)


@dataclass
class FakePending:
    signals: UnitOutcome

    def result(self) -> UnitOutcome:
        return self.signals


class FakeExtractor:
    vector_size = HIDDEN_SIZE
    sharing = None

    def __init__(self, spec: ExtractSpec) -> None:
        self.spec = spec

    def prepare(self, samples: Sequence[Sample]) -> Sequence[Sample]:
        return samples

    def compute(self, prepared: Sequence[Sample]) -> FakePending:
        if calls := os.environ.get(CALLS_FILE):
            with open(calls, "a") as file:
                file.write(prepared[0].sample_id + "\n")
        if gate := os.environ.get(GATE):
            Gate(Path(gate)).pass_through(prepared[0].sample_id)
        if os.environ.get("FAKE_MODEL_KILLED_BY") in [sample.sample_id for sample in prepared]:
            os.kill(os.getpid(), 9)
        adapter = self.spec.model.adapter
        signals = fake_signals(prepared, self.spec.max_length, "" if adapter is None else Path(adapter).name)
        return FakePending(first_vectors(prepared, signals) if self.spec.is_per_sample else signals)


def first_vectors(samples: Sequence[Sample], signals: UnitSignals) -> SampleSignals:
    """Return the vector of each sample's first segment as the sample's own."""
    first = np.cumsum([0, *(sample.num_segments for sample in samples)])[:-1]
    vectors = signals.segment_vector[first]
    norm = np.linalg.norm(vectors, axis=1).astype(np.float32)
    return SampleSignals(
        sample_vector=vectors / np.where(norm > 0, norm, 1)[:, None],
        sample_norm=norm,
        sample_num_tokens=signals.segment_num_tokens[first],
        sample_loss=signals.segment_loss[first],
        set_aside=signals.set_aside,
        num_tokens=signals.num_tokens,
    )


def _word_starts(sample: Sample) -> list[int]:
    """Return the first character of every word: the tokens of this model."""
    segments = zip(sample.bounds, sample.segments, strict=False)
    return [start + word.start() for start, segment in segments for word in re.finditer(r"\S+", segment)]


def fake_signals(samples: Sequence[Sample], max_length: int, adapter: str = "") -> UnitSignals:
    vectors, tokens, set_aside = [], [], {}
    for position, sample in enumerate(samples):
        if len(sample.response) > max_length:
            set_aside[position] = SetAside(Reason.TOO_LONG, f"{len(sample.response)} characters")
        for segment in sample.segments:
            alive = position not in set_aside
            seed = int.from_bytes(hashlib.sha256((adapter + segment).encode()).digest()[:8])
            vectors.append(np.random.default_rng(seed).standard_normal(HIDDEN_SIZE) * alive)
            tokens.append(len(segment.split()) * alive)
    counts = np.array(tokens, dtype=np.int32)
    starts = [_word_starts(sample) if position not in set_aside else [] for position, sample in enumerate(samples)]
    lengths = [len(sample.response) for sample in samples]
    characters = [np.diff([0, *start[1:], length]) for start, length in zip(starts, lengths, strict=True) if start]
    losses, number = np.repeat(counts / 7, counts), np.concatenate([np.arange(count) for count in counts])
    return UnitSignals.of_vectors(
        np.array(vectors, dtype=np.float32),
        counts,
        len(samples),
        segment_loss=(counts / 7).astype(np.float32),
        segment_entropy=(counts / 5).astype(np.float32),
        segment_hit_rate=(counts / 100).astype(np.float32),
        segment_rank=((counts + 1) / 2).astype(np.float32),
        segment_first_loss=(counts / 7).astype(np.float32),
        segment_error=(counts / 50).astype(np.float32),
        sample_top_entropy=np.array([len(start) / 3 for start in starts], dtype=np.float32),
        sample_num_token_rows=np.array([len(start) for start in starts], dtype=np.int32),
        token_log_probability=-losses.astype(np.float32),
        token_rank=number + 1,
        token_entropy=(losses * 7 / 5).astype(np.float32),
        token_error=(losses * 7 / 50).astype(np.float32),
        token_num_characters=np.concatenate([[], *characters]),
        set_aside=set_aside,
        num_tokens=int(counts.sum()),
    )
