"""Signals for other libraries: samples as a pandas DataFrame, decoded vectors as an xarray Dataset."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from grace_store.base.arrays import Array, IntArray, aranges
from grace_store.base.errors import MissingExtra, SettingError
from grace_store.pool.pool import Pool
from grace_store.pool.records import columns_of_rows
from grace_store.pool.samples import iter_samples
from grace_store.pool.walk import SignalReader
from grace_store.store.opened import Store

SEGMENT_COLUMNS = ("segment_num_tokens", "segment_loss", "segment_entropy", "segment_hit_rate", "segment_span")
SAMPLE_COLUMNS = ("sample_num_tokens", "sample_loss", "sample_norm")


def to_pandas(
    store: Store | str | Path,
    signal: str | None = None,
    *,
    fields: Sequence[str] = (),
    data: Sequence[str] | None = None,
    partial: bool = False,
) -> Any:
    """Return a DataFrame with a row for each done sample of a signal: id, row, steps, tokens and mean loss.

    fields adds fields of the records as columns; data gives the new paths of the dataset, if it moved.
    """
    pandas = _imported("pandas", "to_pandas")
    opened = store if isinstance(store, Store) else Store.open(store)
    rows = []
    for sample in iter_samples(Pool.of(opened, signals=signal, partial=partial)):
        num_tokens = sample.num_tokens
        loss = float(num_tokens @ sample.loss.astype(np.float64) / num_tokens.sum())
        rows.append((sample.sample_id, sample.row, sample.num_steps, int(num_tokens.sum()), loss))
    frame = pandas.DataFrame(rows, columns=["sample_id", "row", "num_steps", "num_tokens", "loss"])
    if fields:
        found = columns_of_rows(opened, frame["row"].to_numpy(np.int64), fields, data)
        if taken := sorted(set(found) & set(frame.columns)):
            raise SettingError(
                f"the field {', '.join(taken)} has the same name as a column: read the field with columns_of_rows"
            )
        frame = frame.assign(**found)
    return frame


def to_xarray(
    store: Store | str | Path,
    signal: str | None = None,
    *,
    samples: Sequence[str] | IntArray | None = None,
    partial: bool = False,
) -> Any:
    """Return a Dataset with the decoded vectors and other arrays of a signal.

    samples are ids, ``#row`` or positions in the plan; without it, memory holds all done samples, four bytes for every
    number. Names are those of FORMAT.md; rows are in the order of the plan, without padding. ``segment_sample`` is the
    index of a segment's sample along the dimension sample, ``segment_number`` counts the segments of a sample from 0,
    and ``segment_kind`` is step or answer.
    """
    xarray = _imported("xarray", "to_xarray")
    opened = store if isinstance(store, Store) else Store.open(store)
    reader = SignalReader(opened, (opened.signal(signal).name,), reads=("vectors",))
    reader.check_complete(partial=partial)
    view, spec = reader.views[0], reader.views[0].signal.spec
    sample, arrays = _columns(reader, _positions(opened, samples))
    num_steps = opened.column("sample_num_steps")[sample].astype(np.int64)
    coords: dict[str, Any] = {
        "sample_id": ("sample", opened.column("sample_id")[sample].astype(object)),
        "sample_row": ("sample", opened.column("sample_row")[sample]),
        "sample_num_steps": ("sample", num_steps),
    }
    if not view.per_sample:
        num_segments = num_steps + 1
        number = aranges(num_segments)
        kind = np.where(number == np.repeat(num_steps, num_segments), "answer", "step").astype(object)
        coords["segment_sample"] = ("segment", np.repeat(np.arange(len(num_steps)), num_segments))
        coords |= {"segment_number": ("segment", number), "segment_kind": ("segment", kind)}
    variables = {name: (view.array_spec(name).dims, values) for name, values in arrays.items()}
    attributes = {"store": opened.location, "plan_sha256": opened.plan.digest(), "signal": view.name}
    attributes |= {"signal_sha256": view.identity, "kind": spec.kind, "storage": spec.storage}
    return xarray.Dataset(variables, coords, attributes)


def _positions(store: Store, samples: Sequence[str] | IntArray | None) -> IntArray:
    if samples is None:
        return np.arange(store.plan.num_samples)
    found = [store.find(each) if isinstance(each, str) else int(each) for each in samples]
    if found and not 0 <= min(found) <= max(found) < store.plan.num_samples:
        raise SettingError(f"samples are ids, #rows or positions in the plan, from 0 to {store.plan.num_samples - 1}")
    return np.unique(np.array(found, dtype=np.int64))


def _columns(reader: SignalReader, asked: IntArray) -> tuple[IntArray, dict[str, Array]]:
    """Return the done samples among the given ones, and their columns of the signal, with decoded vectors."""
    walk = reader.walk_units(lambda unit: _unit_columns(reader, unit, asked), asked, reader.threads(None))
    if not (parts := list(walk)):
        raise SettingError(f"signal {reader.names[0]!r} has no finished sample among those given")
    samples, columns = zip(*parts, strict=True)
    return np.concatenate(samples), {name: np.concatenate([each[name] for each in columns]) for name in columns[0]}


def _unit_columns(reader: SignalReader, unit: int, asked: IntArray) -> tuple[IntArray, dict[str, Array]]:
    view = reader.views[0]
    names = SAMPLE_COLUMNS if view.per_sample else SEGMENT_COLUMNS
    found = reader.vectors(0, unit, names)
    assert found is not None  # only committed units are asked for
    start, stop = reader.store.plan.unit_range(unit)
    chosen = found.done & np.isin(np.arange(start, stop), asked)
    num_rows = 1 if view.per_sample else reader.store.column("sample_num_steps", start, stop) + 1
    rows = np.flatnonzero(np.repeat(chosen, num_rows))
    columns = {f"{view.vectors_of}_vector": found.decoded(rows)}
    return start + np.flatnonzero(chosen), columns | {name: found.arrays[name][rows] for name in names}


def _imported(package: str, what: str) -> Any:
    try:
        return import_module(package)
    except ImportError:
        raise MissingExtra(
            f"{what} needs {package}, but {package} is not installed. Run `pip install {package}`."
        ) from None
