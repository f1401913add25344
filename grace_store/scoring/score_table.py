"""The table of scores: a Parquet file with one row for each sample, and a note in its metadata."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from grace_store.base.arrays import (
    Array,
    BoolArray,
    FlagArray,
    Float32Array,
    FloatArray,
    Int32Array,
    IntArray,
    ascend,
    find_rows,
    offsets_of,
    sum_by_sample,
)
from grace_store.base.documents import document_metadata
from grace_store.base.errors import SettingError
from grace_store.base.states import ABOUT, HYGIENE_FLAGS
from grace_store.base.text import counted
from grace_store.pool.arrow_arrays import (
    arrow_flags,
    arrow_floats,
    arrow_lists,
    arrow_numbers,
    arrow_texts,
    flag_lists,
    numpy_numbers,
)
from grace_store.scoring.notes import ScoresNote
from grace_store.scoring.parquet_columns import NotedTable, not_made_by, read_columns, read_note, write_blocks
from grace_store.store.opened import Store
from grace_store.values.measures import MEASURES
from grace_store.values.methods.method import ScoreSpec
from grace_store.values.ranking import Length, balanced_order, comparable, lengths_of, rank

if TYPE_CHECKING:
    from grace_store.pool.walk import SampleBlock, SignalReader

COLUMNS = {
    "sample_id": pa.string(),
    "row": pa.int64(),
    "num_steps": pa.int32(),
    "num_tokens": pa.int64(),
    "value": pa.float64(),
    "step_score": pa.list_(pa.float64()),
    "answer_alignment": pa.list_(pa.float64()),
    "history_alignment": pa.list_(pa.float64()),
    "step_num_tokens": pa.list_(pa.int32()),
    "flags": pa.list_(pa.string()),
    "question": pa.int64(),
}
"""Columns of every table."""
NEVER_NULL = ("sample_id", "row", "num_steps", "flags", "question", "influence", "group")
"""Columns without nulls, in the tables that have these columns."""
STEP_SCORES = ("step_score", "answer_alignment", "history_alignment")
STEP_COLUMNS = (*STEP_SCORES, "step_num_tokens")
GROUP_COLUMNS = {"group": pa.int64(), "plain_value": pa.float64()}
"""Columns of a table with groups: the number of the question, and the value before the comparison."""
METHOD_TYPES = {"int32": pa.int32(), "float64": pa.float64(), "list<float32>": pa.list_(pa.float32())}
"""The types of columns that methods add."""


@dataclass(frozen=True, slots=True, repr=False)
class ScoreTable(NotedTable[ScoresNote]):
    """A table of scores in memory: its columns as Arrow or NumPy, and its note."""

    def __repr__(self) -> str:
        place = f", {self.path}" if self.path else ""
        return f"<ScoreTable: {counted(len(self), 'sample')} by {self.method}{place}>"

    @property
    def value(self) -> FloatArray:
        """V of every sample; NaN for a sample without a value."""
        return np.asarray(numpy_numbers(self.table["value"]), dtype=np.float64)

    @property
    def num_steps(self) -> IntArray:
        return self._ints("num_steps")

    @property
    def num_tokens(self) -> IntArray:
        """Tokens in every sample's response; 0 where only the plan was scored, which knows no tokens."""
        return np.zeros(len(self), np.int64) if self.table["num_tokens"].null_count else self._ints("num_tokens")

    @property
    def sample_id(self) -> list[str]:
        ids: list[str] = self.table["sample_id"].to_pylist()
        return ids

    @property
    def lengths(self) -> dict[Length, FloatArray]:
        """The lengths of samples: all three, or two if the tokens of steps are not known."""
        if self.table["num_tokens"].null_count:
            return {"num_steps": self.num_steps.astype(np.float64)}
        if self.table["step_num_tokens"].null_count:
            return lengths_of(self.num_steps, self.num_tokens, None)
        totals = sum_by_sample(self.num_steps, self.flat("step_num_tokens"))
        return lengths_of(self.num_steps, self.num_tokens, totals)

    @property
    def capability(self) -> IntArray | None:
        """The capability of each sample, -1 for no capability; None if the method has no capabilities."""
        if "capability" not in self.table.column_names:
            return None
        return np.asarray(numpy_numbers(self.table["capability"].fill_null(-1)), dtype=np.int64)

    @property
    def group(self) -> IntArray | None:
        """The number of each sample's question; None for a table without groups."""
        return None if self.note.groups is None else self._ints("group")

    @property
    def question(self) -> IntArray:
        """The number of each sample's question, for intervals."""
        return self._ints("question")

    @property
    def influence(self) -> Float32Array:
        """Influence of each sample on every subtask or capability, (n, J); NaN for a sample without a value."""
        return np.asarray(self.flat("influence"), dtype=np.float32).reshape(-1, len(self.note.influence_of or ()))

    @property
    def known_flags(self) -> tuple[str, ...]:
        """The flags that scoring looked for: same_direction only if a measure reads Grams, and all others."""
        spec = self.note.spec  # for a learned value, reads_grams is False, and yet its scoring finds the flags of Grams
        has_grams = isinstance(spec, ScoreSpec) and any("gram" in MEASURES[name].reads for name in spec.names)
        return tuple(name for name in ABOUT if name != "same_direction" or has_grams)

    @property
    def known_trace_flags(self) -> list[str]:
        """The flags of traces that scoring looked for."""
        return [name for name in HYGIENE_FLAGS if name in self.known_flags]

    @property
    def flag_counts(self) -> dict[str, int]:
        """Number of samples with each flag; flags of no sample are left out."""
        counts = Counter(self.table["flags"].combine_chunks().flatten().to_pylist())
        return {name: counts[name] for name in ABOUT if counts[name]}

    def is_flagged(self, names: Sequence[str]) -> BoolArray:
        """Return which samples have at least one of these flags."""
        lists = self.table["flags"].combine_chunks()
        hits = pc.is_in(lists.flatten(), arrow_texts(names))
        found = np.zeros(len(self), dtype=np.bool_)
        found[numpy_numbers(pa.chunked_array([pc.list_parent_indices(lists).filter(hits)]))] = True
        return found

    def num_flagged(self, rows: IntArray) -> int:
        """Return how many of some rows of the table have a flag of the trace."""
        return int(self.is_flagged(self.known_trace_flags)[rows].sum())

    @property
    def method(self) -> str:
        return self.note.title

    @property
    def plan_sha256(self) -> str:
        return self.note.plan_sha256

    @property
    def has_step_scores(self) -> bool:
        """Whether steps have scores; a measure of whole traces and several measures together give none."""
        return "step_score" in self.table.column_names and self.table["step_score"].null_count == 0

    @property
    def step_columns(self) -> tuple[str, ...]:
        """The columns with scores of steps: alignments only if the measure reads Grams."""
        return STEP_SCORES if self.note.spec.reads_grams else STEP_SCORES[:1]

    @property
    def offsets(self) -> IntArray:
        """(n + 1,) index of each sample's first step in a flat column, and the number of all steps."""
        return offsets_of(self.num_steps)

    @property
    def number_columns(self) -> list[str]:
        """The columns with one number for each sample that say something of the sample: the value comes first."""
        more = [each for each in self.table.schema if each.name not in COLUMNS and each.name != "group"]
        return ["value", *(each.name for each in more if not pa.types.is_list(each.type))]

    def values_of(self, row: IntArray, name: str = "value") -> FloatArray:
        """Return the number of each of these dataset rows in a column; NaN for a row that the table lacks."""
        found = np.full(len(row), np.nan)
        place, here = find_rows(self.row, row)
        found[here] = np.asarray(numpy_numbers(self.table[name].cast(pa.float64())), dtype=np.float64)[place[here]]
        return found

    def with_steps(self) -> ScoreTable:
        """Return the table with its step scores; they are read if they were left out."""
        if self.path is None or "step_score" in self.table.column_names:
            return self
        whole = read_scores(self.path)
        return whole if len(whole) == len(self) else whole.among(self.row)

    def by_row(self) -> ScoreTable:
        """Return the table in the order of the dataset; a store that gathers questions has another order."""
        return self if ascend(self.row) else replace(self, table=self.table.take(np.argsort(self.row)))

    def among(self, rows: IntArray) -> ScoreTable:
        """Return the samples that are among some rows of the dataset."""
        return replace(self, table=self.table.filter(arrow_flags(np.isin(self.row, rows))))

    def comparable(self, value: FloatArray | None = None) -> FloatArray:
        """Return the values of the table, or other values of its rows, without noise, for comparisons."""
        if value is None and self.note.groups is not None:
            plain = np.asarray(numpy_numbers(self.table["plain_value"]), dtype=np.float64)
            return comparable(self.value, self.question, self.row, plain)
        return comparable(self.value if value is None else value, self.question, self.row)

    def ranked(self, value: FloatArray | None = None) -> IntArray:
        """Return the rows that have a value, the best first; capabilities, if there are any, take turns."""
        order = rank(self.comparable(value), self.row)
        if self.capability is None:
            return order
        # Number capabilities again from 0: a table of another program may have any numbers.
        return order[balanced_order(np.unique(self.capability[order], return_inverse=True)[1], "equal")]

    def signal_named(self, signal: str | None = None) -> str:
        """Return the signal to read vectors from: the named one, or the one that was scored."""
        if signal is not None:
            return signal
        if len(scored := self.note.signals) > 1:
            place = self.path.name if self.path else "the table"
            raise SettingError(f"{place} was scored from {', '.join(scored)}: name one signal with --signal")
        return self.note.signal

    def flat(self, name: str) -> Array:
        """Return a column of lists as one array; sample i owns offsets[i]..offsets[i + 1]."""
        chunks = [chunk.flatten() for chunk in self.table[name].chunks]
        return numpy_numbers(pa.chunked_array(chunks, self.table.schema.field(name).type.value_type))

    def _ints(self, name: str) -> IntArray:
        return np.asarray(numpy_numbers(self.table[name]), dtype=np.int64)

    def to_pandas(self, fields: Sequence[str] = (), data: Sequence[str] | None = None) -> Any:
        """Return a pandas DataFrame, with fields of the records as further columns; pandas must be installed.

        data gives the new paths of the dataset, if it moved.
        """
        from grace_store.pool.records import columns_of_rows  # the dataset's modules, which only fields need

        frame = NotedTable.to_pandas(self)
        more = columns_of_rows(Store.open(self.note.store), self.row, fields, data) if fields else {}
        return frame.assign(**more)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRows:
    """Some rows of a table as arrays."""

    sample_id: Array
    row: IntArray
    num_steps: IntArray
    num_tokens: IntArray
    value: FloatArray
    flags: FlagArray
    """Flags that scoring found."""
    text_flags: Array
    """Flags of the texts, as bits of Flag."""
    steps: tuple[FloatArray, ...] | None = None
    """step_score, answer_alignment and history_alignment, flat; alignments only from Grams. None without scores."""
    step_tokens: Int32Array | None = None
    """Tokens of steps, flat; None if only the tokens of whole responses are known."""
    more: Mapping[str, Array] = field(default_factory=dict)
    """Columns of the method; influences are (n, J)."""

    @classmethod
    def of(
        cls, reader: SignalReader, block: SampleBlock, value: FloatArray, flags: FlagArray, **more: Any
    ) -> ScoreRows:
        """Return the rows of a block's samples; more are fields that only some methods have."""
        return cls(
            sample_id=reader.ids(block),
            row=block.row,
            num_steps=block.num_steps,
            num_tokens=block.num_tokens,
            value=value,
            flags=flags,
            text_flags=reader.text_flags(block),
            **more,
        )

    @property
    def all_flags(self) -> Array:
        """The bits of Flag of every sample."""
        return self.flags.astype(np.uint32) | self.text_flags

    def to_table(self, note: ScoresNote) -> pa.Table:
        """Return the rows as a table of the note's method."""
        offsets = offsets_of(self.num_steps)
        columns = {
            "sample_id": arrow_texts(self.sample_id.tolist()),
            "row": arrow_numbers(self.row, pa.int64()),
            "num_steps": arrow_numbers(self.num_steps, pa.int32()),
            "num_tokens": arrow_numbers(self.num_tokens, pa.int64(), self.num_tokens == 0),
            "value": arrow_floats(self.value, pa.float64()),
            "question": arrow_numbers(self.row, pa.int64()),  # each its own, until scoring names the questions
            "flags": flag_lists(self.all_flags),
        }
        for name, values in zip(STEP_SCORES, self.steps or (), strict=False):
            columns[name] = arrow_lists(offsets, arrow_floats(values, pa.float64()))
        if self.step_tokens is not None:
            columns["step_num_tokens"] = arrow_lists(offsets, arrow_numbers(self.step_tokens, pa.int32()))
        for name, kind in note.spec.columns.items():
            columns[name] = self._method_column(self.more[name], METHOD_TYPES[kind])
        schema = scores_schema(note)
        return pa.table(
            [columns[each.name] if each.name in columns else pa.nulls(len(self.row), each.type) for each in schema],
            schema=schema.remove_metadata(),
        )

    def _method_column(self, values: Array, kind: pa.DataType) -> pa.Array:
        if pa.types.is_list(kind):
            offsets = np.arange(len(values) + 1) * values.shape[1]
            return arrow_lists(offsets, arrow_floats(values.ravel(), kind.value_type))
        if pa.types.is_floating(kind):
            return arrow_floats(values, kind)
        return arrow_numbers(values, kind, np.isnan(self.value))


def scores_schema(note: ScoresNote) -> pa.Schema:
    """Return the columns of a table with this note, and the note in the metadata."""
    more = {name: METHOD_TYPES[kind] for name, kind in note.spec.columns.items()}
    columns = COLUMNS | more | ({} if note.groups is None else GROUP_COLUMNS)
    return pa.schema(list(columns.items()), metadata=document_metadata(note))


def write_scores(path: Path, note: ScoresNote) -> AbstractContextManager[pq.ParquetWriter]:
    """Open a table for writing block by block."""
    return write_blocks(path, scores_schema(note), note)


def read_scores(path: str | Path, *, steps: bool = True, ids: bool = True) -> ScoreTable:
    """Read a table of scores; raise DataError if the file is not such a table, for example of another program.

    Without steps, columns of lists of scores and influences are left out; without ids, the column sample_id.
    """
    path = Path(path)
    note = read_scores_note(path)
    left_out = {*(() if steps else (*STEP_SCORES, "influence")), *(() if ids else ("sample_id",))}
    wanted = {each.name: each.type for each in scores_schema(note) if each.name not in left_out}
    table = read_columns(path, wanted, note.maker)
    # Only the store can tell whether values are right.
    if nulls := [name for name in NEVER_NULL if name in table.column_names and table[name].null_count]:
        raise not_made_by(path, "score", f"{nulls[0]} is empty in some rows")
    for name in ("row", "num_steps", "num_tokens"):
        if (pc.min(table[name]).as_py() or 0) < 0:
            raise not_made_by(path, "score", f"{name} is negative in some rows")
    lengths = dict.fromkeys(STEP_COLUMNS, (table["num_steps"], "step"))
    lengths["influence"] = (len(note.influence_of or ()), "name in influence_of")
    for name, (length, thing) in lengths.items():
        if name in table.column_names and pc.any(pc.not_equal(pc.list_value_length(table[name]), length)).as_py():
            raise not_made_by(path, "score", f"{name} has lists without exactly one entry for each {thing}")
    return ScoreTable(table, note, path)


def read_scores_note(path: str | Path) -> ScoresNote:
    """Return the note of a table of scores without reading the table."""
    return read_note(Path(path), ScoresNote)


ScoresLike = ScoreTable | str | Path
"""A table of scores, or its path."""
