"""The table of benchmark items in samples: Parquet, one row for each match, with a note in the metadata."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from grace_store.base.arrays import IntArray
from grace_store.base.errors import DataError
from grace_store.base.text import counted, enumerated, last_name, percent
from grace_store.scoring.notes import AgainstNote, BenchmarkNote
from grace_store.scoring.parquet_columns import NotedTable, read_columns, read_note, write_whole

TEMPLATE = "template"
"""The kind of match that is no copy: the same words with other numbers."""
COPIES = ("exact", "ngram", "vector")
"""Kinds of matches that make a sample contaminated, the surest first."""
SCHEMA = pa.schema(
    [
        ("sample_id", pa.string()),
        ("row", pa.int64()),
        ("benchmark", pa.string()),
        ("item_id", pa.string()),
        ("item_row", pa.int64()),
        ("kind", pa.string()),
        ("part", pa.string()),
        ("strength", pa.float32()),
        ("where", pa.string()),
        ("passage", pa.string()),
        ("item_text", pa.string()),
    ]
)
NEVER_NULL = ("sample_id", "row", "benchmark", "item_row", "kind", "strength")


@dataclass(frozen=True, slots=True, repr=False)
class AgainstTable(NotedTable[AgainstNote]):
    """Matches of samples with items of benchmarks, in the order of the samples' records."""

    @classmethod
    def of_rows(cls, rows: Sequence[int], note: AgainstNote) -> Self:
        """Return a table that has the dataset rows of contaminated samples and no other columns."""
        kinds = pa.array([COPIES[0]] * len(rows), pa.string())
        return cls(pa.table({"row": pa.array(rows, pa.int64()), "kind": kinds}), note)

    @property
    def contaminated(self) -> IntArray:
        """The rows in the dataset of samples that have a copy of an item, ascending."""
        is_copy = pc.is_in(self.table["kind"], pa.array(COPIES))
        return np.unique(np.asarray(self.table.filter(is_copy)["row"].to_numpy(), dtype=np.int64))

    @property
    def counts(self) -> dict[str, int]:
        """The number of matches of each kind."""
        kinds = self.table["kind"].to_pylist()
        return {kind: kinds.count(kind) for kind in (*COPIES, TEMPLATE)}

    @property
    def conclusion(self) -> str:
        """A few sentences about the number of contaminated samples and their benchmarks."""
        sentences = [_found(self.note), *_templates(self.note)]
        if silent := [each for each in self.note.benchmarks if each.signal is None]:
            remedy = "for vectors, give a store with a signal of it."
            sentences.append(f"Only the text of {_named(silent)} was compared; {remedy}")
        if set_aside := sum(each.num_set_aside for each in self.note.benchmarks):
            sentences.append(f"{counted(set_aside, 'record')} without a question could not be looked for.")
        return " ".join(sentences)

    def worst(self, count: int, benchmark: str | None = None) -> list[dict[str, Any]]:
        """Return the strongest match of each item as rows, copies before templates; at most count rows."""
        table = self.table if benchmark is None else self.table.filter(pc.equal(self.table["benchmark"], benchmark))
        rank = pc.index_in(table["kind"], pa.array((*COPIES, TEMPLATE))).to_numpy()
        benchmarks, items = table["benchmark"].to_pylist(), table["item_row"].to_pylist()
        best: dict[tuple[str, int], int] = {}
        for place in np.lexsort((table["row"].to_numpy(), -table["strength"].to_numpy(), rank)).tolist():
            best.setdefault((benchmarks[place], items[place]), place)
            if len(best) == count:
                break
        return list(table.take(pa.array(list(best.values())[:count], pa.int64())).to_pylist())

    def write(self, path: str | Path) -> None:
        """Write the table; the file gets its name only when it is complete."""
        write_whole(Path(path), self.table, self.note)

    def __repr__(self) -> str:
        contaminated = f"{self.note.num_contaminated} of {counted(self.note.num_samples, 'sample')} contaminated"
        return f"<AgainstTable: {counted(len(self), 'row')}, {contaminated}>"


def read_against(path: str | Path) -> AgainstTable:
    """Read a table of benchmark items in samples; raise DataError if the file is not one."""
    path = Path(path)
    note = read_note(path, AgainstNote)
    table = read_columns(path, dict(zip(SCHEMA.names, SCHEMA.types, strict=True)), AgainstNote.maker)
    if any(table[name].null_count for name in NEVER_NULL):
        raise DataError(f"{path} has rows without a sample or an item. Compare with the benchmarks again.")
    if unknown := set(table["kind"].to_pylist()) - {*COPIES, TEMPLATE}:
        raise DataError(
            f"{path} has matches of the unknown kind {sorted(unknown)[0][:40]!r}. Compare with the benchmarks again."
        )
    found = AgainstTable(table, note, path)
    if len(found.contaminated) != note.num_contaminated:
        raise DataError(
            f"{path} does not hold the {counted(note.num_contaminated, 'contaminated sample')} it was written with. "
            "Compare with the benchmarks again."
        )
    return found


def _found(note: AgainstNote) -> str:
    names = [
        f"{each.num_found} of {counted(each.num_items, 'item')} of {last_name(each.name)}" for each in note.benchmarks
    ]
    of = counted(note.num_samples, "sample")
    if not note.num_contaminated:
        items = sum(each.num_items for each in note.benchmarks)
        return f"None of {of} has one of {counted(items, 'item')} of {_named(note.benchmarks)} in it."
    have = "has an item" if note.num_contaminated == 1 else "have items"
    share = percent(note.num_contaminated / note.num_samples)
    told = f"{note.num_contaminated} of {of} ({share}) {have} of a benchmark in the text or close to it"
    return f"{told}: {enumerated(names)}. `select --exclude-contaminated` never chooses them."


def _templates(note: AgainstNote) -> list[str]:
    number = sum(each.num_templates for each in note.benchmarks)
    have = "sample has" if number == 1 else "samples have"
    more = "more " if note.num_contaminated else ""
    told = (
        f"{number} {more}{have} the words of an item with other numbers, which is another question and does not count."
    )
    return [told] if number else []


def _named(benchmarks: Sequence[BenchmarkNote]) -> str:
    return enumerated([last_name(each.name) for each in benchmarks])


AgainstLike = AgainstTable | str | Path
