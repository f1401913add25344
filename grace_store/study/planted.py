"""The demo's finding: the share of flawed traces in the pool and in each choice, and the flaws that flags find."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from grace_store.base.finding import Column, Finding, Table, make_columns
from grace_store.base.states import HYGIENE_FLAGS
from grace_store.base.text import counted
from grace_store.choose.duplicate_table import read_duplicates
from grace_store.choose.select import read_subset
from grace_store.pool.records import SampleRecords
from grace_store.scoring.provenance import filter_scores, noted_pool, open_store_of
from grace_store.scoring.score_table import read_scores

FLAW, CLEAN = "quality", "clean"
"""The field of the records that names the flaw, and its value for a trace without a flaw."""
COPY_OF = "copy_of"
"""The field of a copy with the id of the original."""


def find_planted(
    scores: Path,
    judged: Finding,
    choices: Mapping[str, Path],
    chosen_from: str,
    duplicates: Path | None = None,
) -> Finding:
    """Compare the choices of commands with the planted flaws.

    choices are subsets by the words for how they were chosen, all from the samples that meet the filter chosen_from.
    """
    table = read_scores(scores, steps=False)
    store = open_store_of(table, None)
    fields = SampleRecords(store, positions=store.positions_of(table.row)).fields([FLAW, COPY_OF])
    kinds = dict(zip(table.row.tolist(), map(str, fields[FLAW]), strict=True))
    half = filter_scores(table, chosen_from)[0]
    unflagged = half.row[~half.is_flagged(HYGIENE_FLAGS)]
    rows = {"the pool": half.row.tolist(), "its unflagged traces": unflagged.tolist()}
    rows |= {name: read_subset(path).row.tolist() for name, path in choices.items()}
    flawed = {name: sum(kinds[row] != CLEAN for row in each) for name, each in rows.items()}
    of_all = {name: f"{flawed[name]} of {len(each)}" for name, each in rows.items()}
    originals = dict(zip(table.sample_id, fields[COPY_OF], strict=True))
    copies = {sample: str(first) for sample, first in originals.items() if first is not None}
    flagged = Counter(kinds[row] for row in table.row[np.flatnonzero(table.is_flagged(HYGIENE_FLAGS))].tolist())
    told = [of_flags(Counter(kinds.values()), flagged), *_of_copies(duplicates, copies)]
    told.append(f"Judged on one half of the traces: {judged.conclusion}")
    shown = ", ".join(f"{of_all[name]} in {name}" for name in rows)
    told.append(f"Flawed traces of the other half: {shown}.")
    columns = make_columns(choice="in", num_flawed="flawed", num_traces="traces")
    columns["share"] = Column(heading="share flawed", is_share=True)
    return Finding(
        study="planted",
        pool=noted_pool(table.note),
        conclusion="\n".join(told),
        numbers={"num_copies": len(copies), "choose_by": judged.numbers["choose_by"]},
        tables={
            "choices": Table(
                title="Flawed traces in the other half of the pool",
                columns=columns,
                rows=tuple(
                    {"choice": name, "num_flawed": num, "num_traces": len(rows[name]), "share": num / len(rows[name])}
                    for name, num in flawed.items()
                ),
            )
        },
    )


def of_flags(kinds: Counter[str], flagged: Counter[str]) -> str:
    """Return how many flawed and clean traces are flagged, and flaws of which kinds, from counts by kind."""
    flaws = sorted(name for name in kinds if name != CLEAN)
    parts = {
        "All of": [name for name in flaws if flagged[name] == kinds[name]],
        "Some of": [f"{name} ({flagged[name]} of {kinds[name]})" for name in flaws if 0 < flagged[name] < kinds[name]],
        "None of": [name for name in flaws if not flagged[name]],
    }
    listed = " ".join(f"{which} {', '.join(names)}." for which, names in parts.items() if names)
    found, of = (sum(each[name] for name in flaws) for each in (flagged, kinds))
    return f"Flags found {found} of {of} flawed traces, and {flagged[CLEAN]} of {kinds[CLEAN]} clean ones. {listed}"


def _of_copies(path: Path | None, copies: Mapping[str, str]) -> Sequence[str]:
    """Return a sentence about the copies in one group with their originals, and about other groups."""
    if path is None:
        return []
    table = read_duplicates(path)
    group = dict(zip(table.sample_id, table.group.tolist(), strict=True))
    found = {copy: group[copy] for copy, first in copies.items() if group[copy] >= 0 and group[copy] == group[first]}
    others = counted(table.num_groups - len(set(found.values())), "group")
    return [f"The search for duplicates found {len(found)} of {len(copies)} copies, and {others} of other traces."]
