"""The table of scores: Parquet, one row a sample, with the spec that made it in the metadata."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from grace_store.artifacts.table_check import check_columns, parse_note
from grace_store.base.arrays import Array, ByteArray, Float32Array, FloatArray, Int32Array, IntArray
from grace_store.base.errors import DataError, SettingError
from grace_store.base.files import whole_file
from grace_store.values.grace import flag_names
from grace_store.values.gram import offsets_of
from grace_store.values.length_bias import Length, lengths_of, step_token_totals
from grace_store.values.ranking import balanced_order, rank

METADATA_KEY = b"grace_store"

SCHEMA = pa.schema(
    [
        ("sample_id", pa.string()),
        ("row", pa.int64()),
        ("num_steps", pa.int32()),
        ("num_tokens", pa.int64()),
        ("value", pa.float64()),
        ("step_score", pa.list_(pa.float64())),
        ("answer_alignment", pa.list_(pa.float64())),
        ("history_alignment", pa.list_(pa.float64())),
        ("step_num_tokens", pa.list_(pa.int32())),
        ("flags", pa.list_(pa.string())),
    ]
)
STEP_SCORES = ("step_score", "answer_alignment", "history_alignment")
STEP_COLUMNS = (*STEP_SCORES, "step_num_tokens")

INFLUENCE_COLUMNS = {
    "influence": pa.list_(pa.float32()),
    "votes": pa.int32(),
    "capability": pa.int32(),
    "stage": pa.float64(),
}
"""What tables of methods with a target set have besides: a sample's influence on each thing that the metadata lists
under influence_of; how many subtasks vote for it; which of those things it is counted to, from 0; and where it stands
in a training by stages, the smallest first."""
COLUMNS_OF = {
    "less": ("influence",),
    "icons": ("influence", "votes"),
    "cadc": ("influence", "capability", "stage"),
}
RECONSTRUCTED = ("cadc",)
"""Methods published without code: what is here is our reading of their text, and says so wherever it is shown."""
_FLAG_LISTS = [flag_names(flags) for flags in range(256)]


@dataclass(frozen=True, slots=True)
class ScoreTable:
    """A scores table in memory: its columns as Arrow or NumPy, and what made it."""

    table: pa.Table
    made_by: dict[str, Any]
    path: Path | None = None
    """Where it was read from."""

    @property
    def value(self) -> FloatArray:
        """V of every sample; NaN where there is none."""
        return np.asarray(self.table["value"].to_numpy(zero_copy_only=False), dtype=np.float64)

    @property
    def row(self) -> IntArray:
        """Where every sample's record stands in the dataset."""
        return self._ints("row")

    @property
    def num_steps(self) -> IntArray:
        return self._ints("num_steps")

    @property
    def num_tokens(self) -> IntArray:
        """Tokens in every sample's response."""
        return self._ints("num_tokens")

    @property
    def sample_id(self) -> list[str]:
        ids: list[str] = self.table["sample_id"].to_pylist()
        return ids

    @property
    def lengths(self) -> dict[Length, FloatArray]:
        """The lengths that a value may follow: all three, or two where the tokens of steps are not known."""
        if self.table["step_num_tokens"].null_count:
            return lengths_of(self.num_steps, self.num_tokens, None)
        totals = step_token_totals(self.flat("step_num_tokens"), self.num_steps)
        return lengths_of(self.num_steps, self.num_tokens, totals)

    @property
    def capability(self) -> IntArray | None:
        """Which capability each sample is counted to, -1 without one; None if the method has no capabilities."""
        if "capability" not in self.table.column_names:
            return None
        return np.asarray(self.table["capability"].fill_null(-1).to_numpy(), dtype=np.int64)

    @property
    def influence(self) -> Float32Array:
        """Influence of each sample on every subtask or capability, (n, J); NaN for one without a value."""
        names = self.made_by["influence_of"]
        return np.asarray(self.flat("influence"), dtype=np.float32).reshape(-1, len(names))

    @property
    def method(self) -> str:
        """The method's name, with what must be said of it."""
        return named_method(self.made_by)

    @property
    def what(self) -> str:
        """What it is and where, for a sentence."""
        return "table of scores" if self.path is None else f"table of scores {self.path}"

    def values_of(self, row: IntArray) -> FloatArray:
        """Return the value of each of some dataset rows; NaN for a row that the table lacks."""
        mine, found = self.row, np.full(len(row), np.nan)
        if len(mine):
            order = np.argsort(mine, kind="stable")
            place = order[np.searchsorted(mine, row, sorter=order).clip(max=len(mine) - 1)]
            here = mine[place] == row
            found[here] = self.value[place[here]]
        return found

    @property
    def has_step_scores(self) -> bool:
        """Whether steps have scores; those of a heuristic have none."""
        return "step_score" in self.table.column_names and self.table["step_score"].null_count == 0

    def with_steps(self) -> ScoreTable:
        """Return the table with its step scores, if it has any, reading them if they were left out."""
        return self if self.path is None or "step_score" in self.table.column_names else read_scores(self.path)

    def ranked(self, value: FloatArray | None = None) -> IntArray:
        """Return the rows that have a value, the best first, by the table's values or others in their place.

        A table with capabilities is ranked in turns, the best of each one, then the second best, and so on.
        """
        order = rank(self.value if value is None else value, self.row)
        if self.capability is None:
            return order
        # Numbered anew from 0: a stranger's table may have any number there.
        return order[balanced_order(np.unique(self.capability[order], return_inverse=True)[1], "equal")]

    def signal_named(self, signal: str | None = None) -> str:
        """Return the signal whose vectors go with the table: the one named, or the one that was scored."""
        if signal is not None:
            return signal
        scored = list(self.made_by.get("signals", ()))
        if len(scored) != 1:
            place = self.path.name if self.path else "the table"
            raise SettingError(
                f"{place} was scored from {', '.join(scored) or 'no'} signals: name the one whose vectors are meant, "
                "with --signal"
            )
        return str(scored[0])

    def flat(self, name: str) -> Array:
        """Return a column of lists as one array, the steps of sample i at offsets[i]..offsets[i + 1]."""
        chunks = [chunk.flatten() for chunk in self.table[name].chunks]
        flat = pa.chunked_array(chunks, self.table.schema.field(name).type.value_type)
        return np.asarray(flat.to_numpy())

    @property
    def offsets(self) -> IntArray:
        """Where each sample's steps begin in a flat column, and where the last ones end."""
        return offsets_of(self.num_steps)

    def _ints(self, name: str) -> IntArray:
        return np.asarray(self.table[name].to_numpy(zero_copy_only=False), dtype=np.int64)

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame; pandas must be installed."""
        return self.table.to_pandas()

    def __len__(self) -> int:
        return int(self.table.num_rows)


def score_rows(
    *, sample_id: Array, row: IntArray, num_steps: IntArray, num_tokens: IntArray, value: FloatArray,
    steps: tuple[FloatArray, FloatArray, FloatArray] | None, step_tokens: Int32Array | None,
    flags: ByteArray, more: Mapping[str, pa.Array] | None = None,
) -> pa.Table:  # fmt: skip
    """Return some rows of a table.

    steps are step_score, answer_alignment, history_alignment, flat, or none; step_tokens are none where only the
    tokens of whole responses are known. more are columns of INFLUENCE_COLUMNS, as the method has them.
    """
    offsets = pa.array(offsets_of(num_steps), pa.int32())

    def lists(values: FloatArray) -> pa.ListArray:
        return pa.ListArray.from_arrays(offsets, pa.array(values, pa.float64(), from_pandas=True))

    empty = pa.nulls(len(row), pa.list_(pa.float64()))
    no_tokens = pa.nulls(len(row), pa.list_(pa.int32()))
    return pa.table(
        [
            pa.array(sample_id.tolist(), pa.string()),
            pa.array(row, pa.int64()),
            pa.array(num_steps, pa.int32()),
            pa.array(num_tokens, pa.int64()),
            # No value is null, not NaN, which databases sort above all numbers.
            pa.array(value, pa.float64(), from_pandas=True),
            *([empty] * 3 if steps is None else map(lists, steps)),
            no_tokens if step_tokens is None else pa.ListArray.from_arrays(offsets, pa.array(step_tokens, pa.int32())),
            _flag_lists(flags),
            *(more or {}).values(),
        ],
        schema=_with_columns(more or {}),
    )


def influence_lists(influence: Float32Array) -> pa.Array:
    """Return influences (n, J) as a column; NaN becomes null, as in other columns."""
    offsets = pa.array(np.arange(len(influence) + 1, dtype=np.int32) * influence.shape[1])
    return pa.ListArray.from_arrays(offsets, pa.array(influence.ravel(), pa.float32(), from_pandas=True))


def schema_of(made_by: dict[str, Any]) -> pa.Schema:
    """Return the columns that a table has, by the method that made it, with what made it in the metadata."""
    columns = COLUMNS_OF.get(made_by["spec"].get("method"), ())
    return _with_columns(columns).with_metadata(metadata_of(made_by))


def _with_columns(names: Iterable[str]) -> pa.Schema:
    return pa.schema([*SCHEMA, *((name, INFLUENCE_COLUMNS[name]) for name in names)])


def named_method(made_by: dict[str, Any]) -> str:
    """Return the name of the method that made a table, with what must be said of it.

    >>> named_method({"spec": {"method": "cadc"}})
    'cadc (reconstruction)'
    """
    method = str(made_by["spec"].get("method"))
    return f"{method} (reconstruction)" if method in RECONSTRUCTED else method


def _flag_lists(flags: ByteArray) -> pa.Array:
    if not flags.any():
        offsets = pa.array(np.zeros(len(flags) + 1, np.int32))
        return pa.ListArray.from_arrays(offsets, pa.array([], pa.string()))
    return pa.array([_FLAG_LISTS[flag] for flag in flags.tolist()], pa.list_(pa.string()))


def metadata_of(made_by: dict[str, Any]) -> dict[bytes, bytes]:
    """Return what a Parquet file of ours carries about its making."""
    return {METADATA_KEY: json.dumps(made_by, sort_keys=True).encode()}


@contextmanager
def write_scores(path: Path, made_by: dict[str, Any]) -> Iterator[pq.ParquetWriter]:
    """Open a table for writing, block by block; it appears under its name only when all of it is there."""
    schema = schema_of(made_by)
    # Hardly two scores are equal: looking for a dictionary of them takes longer than all the rest.
    with (
        whole_file(path) as partial,
        pq.ParquetWriter(partial, schema, compression="zstd", use_dictionary=False) as writer,
    ):
        yield writer


def read_scores(path: str | Path, *, steps: bool = True) -> ScoreTable:
    """Read a scores table, or say why the file is none; without steps, only what is one number a sample."""
    made_by, names = _read_header(Path(path))
    missing = [name for name in SCHEMA.names if name not in names]
    if made_by is None or missing:
        raise DataError(f"{path} is not a table that `grace-store score` made (no {', '.join(missing) or 'spec'}).")
    known = [*SCHEMA.names, *(name for name in INFLUENCE_COLUMNS if name in names)]
    wanted = [name for name in known if steps or name not in (*STEP_SCORES, "influence")]
    try:
        table = pq.read_table(path, columns=wanted)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path} is damaged ({error}). Score again.") from None
    return ScoreTable(
        check_columns(table, _with_columns(INFLUENCE_COLUMNS), STEP_COLUMNS, Path(path)), made_by, Path(path)
    )


def read_made_by(path: str | Path) -> dict[str, Any]:
    """Return what made a scores table, without reading the table."""
    made_by, _ = _read_header(Path(path))
    if made_by is None or made_by.get("kind") != "scores":
        raise DataError(f"{path} is not a table that `grace-store score` made.")
    return made_by


def _read_header(path: Path) -> tuple[dict[str, Any] | None, list[str]]:
    try:
        schema = pq.read_schema(path)
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; `grace-store score` makes such a table.") from None
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path} is not a Parquet file ({error}).") from None
    metadata = (schema.metadata or {}).get(METADATA_KEY)
    return (None if metadata is None else parse_note(metadata, path)), schema.names
