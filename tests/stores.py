"""Small finished stores for tests: by the real job with the fake model, or array by array without any data."""

from __future__ import annotations

import atexit
import functools
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

import numpy as np
import numpy.typing as npt

from grace_store.base.metadata import DataFile, Plan, Signal
from grace_store.base.settings import (
    DataSpec,
    ExtractSpec,
    GradientSpec,
    ModelIdentity,
    Per,
    Storage,
)
from grace_store.base.states import STATISTICS, TOKEN_COLUMNS, Reason, SampleSignals, SetAside, UnitSignals
from grace_store.run.engines.engine import ExtractJob
from grace_store.run.extract import extract
from grace_store.store.backend import open_backend
from grace_store.store.layout import PlannedSample
from grace_store.store.opened import SignalView, Store
from grace_store.store.plan_writer import PlanWriter
from grace_store.store.unit_writer import UnitWriter, complete_signal, create_signal
from tests.fake_model import make_fake_model

STORAGES: tuple[Storage, ...] = get_args(Storage)
RELATIVE_ERROR = {"float32": 0.0, "float16": 2**-11, "int8": 0.02, "int4": 0.14}
"""Most that a vector of normal coordinates may be off, as a share of its norm, from a size of 97 on."""
ODD_SIZES = [1, 2, 3, 24, 31, 97, 896]
SIGNAL = "base"
SAMPLES_PER_UNIT = 4
NUM_SAMPLES = 11
NUM_UNITS = 3
TOO_LONG = 3
"""The sample that every extraction sets aside."""


# ---------------------------------------------------------------- by the real job


def make_records(path: Path) -> Path:
    """Write a dataset of 11 usable records, one too long to extract, and three that planning sets aside."""
    records: list[dict[str, object] | str] = []
    for i in range(NUM_SAMPLES):
        steps = [f"Step {j + 1}: from {i} take {j}." for j in range(1 + i * 7 % 5)]
        answer = "a very long answer " * 20 if i == TOO_LONG else f"naïve ∑ {i}"
        records.append({"id": f"sample-{i}", "prompt": f"What of {i}?", "steps": steps, "answer": answer})
    records.insert(2, '{"id": "cut sho')
    records.insert(5, {"id": "stepless", "prompt": "?", "steps": [], "answer": "1"})
    records.append({"id": "sample-0", "prompt": "again", "steps": ["a"], "answer": "b"})
    lines = [record if isinstance(record, str) else json.dumps(record, ensure_ascii=False) for record in records]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def extract_store(folder: Path, storage: Storage = "int8") -> Store:
    """Plan and extract a store at folder/store.zarr with the fake model."""
    folder.mkdir(parents=True, exist_ok=True)
    job = ExtractJob(
        store=str(folder / "store.zarr"),
        model=make_fake_model(folder / "model"),
        data=(str(make_records(folder / "data.jsonl")),),
        signal=SIGNAL,
        data_request=DataSpec(format="explicit", min_steps=1),
        request=ExtractSpec(storage=storage, max_length=300),
        samples_per_unit=SAMPLES_PER_UNIT,
        door="tests.fake_model",
    )
    return extract(job).store


@functools.cache
def _finished(storage: Storage) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="grace-store-test-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(extract_store(folder, storage).location)


def finished_store(folder: Path, storage: Storage = "int8") -> Store:
    """Return a copy, of one's own to damage, of a store that is extracted once for all tests."""
    return Store.open(shutil.copytree(_finished(storage), folder / f"{storage}.zarr"))


# ---------------------------------------------------------------- array by array

CHARACTERS_PER_SEGMENT = 10
MAX_TOKENS_PER_SEGMENT = 50


def write_plan(
    location: Path, num_steps: Sequence[int], samples_per_unit: int, set_aside: Mapping[int, Reason] | None = None
) -> Plan:
    """Write a plan of samples with so many steps; records set aside have row numbers of their own, at the end."""
    writer = PlanWriter(open_backend(location))
    for row, steps in enumerate(num_steps):
        response = CHARACTERS_PER_SEGMENT * (steps + 1), MAX_TOKENS_PER_SEGMENT * (steps + 1)
        digests = row.to_bytes(16, "big"), steps, 0, row.to_bytes(16, "little")
        writer.add(PlannedSample(f"s{row}", row, 0, row * 10, 10, *digests, *response))
    for row, reason in (set_aside or {}).items():
        writer.add_set_aside(len(num_steps) + row, reason, f"record {row} is {reason}")
    num_records = len(num_steps) + len(set_aside or {})
    file = DataFile(path="data.jsonl", kind="jsonl", num_bytes=0, num_records=num_records, sha256="0" * 64)
    spec = DataSpec(format="explicit", min_steps=1, max_steps=max([512, *num_steps]))
    return writer.finish(spec, [file], samples_per_unit, "tests")


def make_spec(storage: Storage, vector_size: int, per: Per | None = None, *, normalise: bool = True) -> ExtractSpec:
    """Return the spec of a proxy signal, or of projected gradients per sample or segment."""
    hidden_size = vector_size if per is None else 3
    model = ModelIdentity(
        architecture="None", hidden_size=hidden_size, vocab_size=2, config="0", weights="0", tokenizer="0"
    )
    if per is None:
        return ExtractSpec(model=model, rendering="plain", storage=storage)
    gradient = GradientSpec(per=per, dimension=vector_size, normalise=normalise, parameters="0")
    return ExtractSpec(kind="gradient", gradient=gradient, model=model, rendering="plain", storage=storage)


def add_signal(
    store: Store,
    storage: Storage,
    vector_size: int,
    name: str = SIGNAL,
    per: Per | None = None,
    *,
    normalise: bool = True,
) -> SignalView:
    """Add an empty signal to a store."""
    spec = make_spec(storage, vector_size, per, normalise=normalise)
    return create_signal(store, Signal(name=name, spec=spec, plan_sha256=store.plan.digest()))


def random_vectors(view: SignalView, unit: int, set_aside: Sequence[int] = ()) -> SampleSignals:
    """Return signals of one unit with one vector a sample; positions set aside are zero."""
    start, stop = view.store.plan.unit_range(unit)
    assert view.signal.spec.gradient is not None
    alive = np.array([position not in set_aside for position in range(stop - start)])
    rng = np.random.default_rng([unit, view.vector_size])
    vectors = rng.standard_normal((len(alive), view.vector_size)) * alive[:, None]
    norms = np.linalg.norm(vectors, axis=1)
    if view.signal.spec.gradient.normalise:
        vectors /= np.where(alive, norms, 1)[:, None]
    return SampleSignals(
        sample_vector=vectors.astype(np.float32),
        sample_norm=norms.astype(np.float32),
        sample_num_tokens=(rng.integers(1, 50, len(alive)) * alive).astype(np.int32),
        sample_loss=rng.random(len(alive)).astype(np.float32) * alive,
        set_aside={position: SetAside(Reason.TOO_LONG, "5000 tokens") for position in set_aside},
        num_tokens=len(alive),
    )


def random_signals(view: SignalView, unit: int, set_aside: Sequence[int] = ()) -> UnitSignals:
    """Return signals of one unit; positions set aside have rows of zeros."""
    start, stop = view.store.plan.unit_range(unit)
    num_segments = view.store.column("sample_num_steps", start, stop) + 1
    alive = np.repeat([position not in set_aside for position in range(stop - start)], num_segments)
    rng = np.random.default_rng([unit, view.vector_size])
    vectors = rng.standard_normal((len(alive), view.vector_size)) * alive[:, None]
    num_tokens = (rng.integers(1, MAX_TOKENS_PER_SEGMENT, len(alive)) * alive).astype(np.int32)
    by_sample = np.add.reduceat(num_tokens, np.cumsum(num_segments) - num_segments).astype(np.int32)
    characters = [
        rng.multinomial(CHARACTERS_PER_SEGMENT * segments, np.ones(tokens) / tokens)
        for segments, tokens in zip(num_segments, by_sample, strict=True)
        if tokens
    ]
    numbers = {name: rng.random(by_sample.sum()).astype(np.float32) for name in TOKEN_COLUMNS}
    numbers |= {"rank": rng.geometric(0.001, by_sample.sum()), "num_characters": np.concatenate([[], *characters])}
    return UnitSignals.of_vectors(
        vectors.astype(np.float32),
        num_tokens,
        stop - start,
        **{f"segment_{name}": rng.random(len(alive)).astype(np.float32) * alive for name in STATISTICS},
        sample_top_entropy=rng.random(stop - start).astype(np.float32) * (by_sample > 0),
        sample_num_token_rows=by_sample,
        **{f"token_{name}": column for name, column in numbers.items()},
        set_aside={position: SetAside(Reason.TOO_LONG, "5000 tokens") for position in set_aside},
        num_tokens=len(alive),
    )


def spans_for(view: SignalView, unit: int) -> npt.NDArray[np.int32]:
    """Return spans of a unit's segments, each ten characters long."""
    start, stop = view.store.plan.unit_range(unit)
    firsts = [np.arange(steps + 1) * 10 for steps in view.store.column("sample_num_steps", start, stop)]
    first = np.concatenate(firsts)
    return np.stack([first, first + 10], axis=1).astype(np.int32)


def write_store(
    location: Path, num_steps: Sequence[int], samples_per_unit: int, storage: Storage, vector_size: int
) -> SignalView:
    """Write a finished store without data or job."""
    write_plan(location, num_steps, samples_per_unit)
    view = add_signal(Store.open(location), storage, vector_size)
    writer = UnitWriter(view)
    for unit in range(view.store.plan.num_units):
        writer.write(unit, random_signals(view, unit), spans_for(view, unit))
    complete_signal(view)
    return view
