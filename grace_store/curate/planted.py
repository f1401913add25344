"""What was found of flaws that were planted: by flags, by the search for duplicates, by signals, and in subsets."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from grace_store.artifacts.duplicate_table import read_duplicates
from grace_store.artifacts.judgement import JudgedMeasure, Judgement
from grace_store.artifacts.made_from import open_store_of
from grace_store.artifacts.score_table import read_scores
from grace_store.artifacts.subset_file import read_subset
from grace_store.base.documents import read_document
from grace_store.base.flags import HYGIENE_FLAGS
from grace_store.base.settings import Frozen
from grace_store.base.text import counted
from grace_store.curate.judge import FEWEST_LABELS
from grace_store.curate.verdict import FEWEST_PAIRS, GRACE, SURE, shown_area
from grace_store.read.records import read_fields
from grace_store.values.roc import CHANCE, Area


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedRequest:
    """What commands wrote about the dataset, and the fields of its records that know the truth."""

    scores: Path
    judgement: Path
    subset: Path
    unflagged: Path
    """A subset chosen in the same way with --exclude-flagged."""
    duplicates: Path | None = None
    kind: str = "quality"
    """The field that names the flaw."""
    clean: str = "clean"
    """What it says of a trace without one."""
    copy_of: str = "copy_of"
    """The field with the id of the sample that a copy repeats."""


class PlantedKind(Frozen):
    """The traces of one kind of flaw, or the clean ones."""

    kind: str
    is_flaw: bool
    num_traces: int
    num_flagged: int
    num_chosen: int
    """In the subset."""
    num_chosen_unflagged: int
    """In the subset without flagged traces."""
    num_steps: int
    """Steps with the flaw; it may be in the answer instead."""
    seen_by: dict[str, Area]
    """Measures of a signal that score these steps below right ones, the largest area first."""
    mistaken_by: dict[str, Area]
    """Measures that score them above right ones."""

    @property
    def has_enough_steps(self) -> bool:
        return self.num_steps >= FEWEST_LABELS


class PlantedFindings(Frozen):
    """All that was found, and a conclusion."""

    kinds: tuple[PlantedKind, ...]
    """The clean ones first."""
    num_copies: int
    num_copies_found: int | None
    """None if duplicates were not looked for."""
    num_other_groups: int
    """Groups of duplicates without a planted copy."""
    value: Area
    """How well GRACE's value tells flawed traces from clean ones."""

    @property
    def flaws(self) -> list[PlantedKind]:
        return [each for each in self.kinds if each.is_flaw]

    @property
    def conclusion(self) -> str:
        return "\n".join(self.sentences())

    def sentences(self) -> list[str]:
        """Return what was found and what was not, a paragraph for each part."""
        return [_of_flags(self), *_of_copies(self), _of_values(self), _of_signals(self), _of_subsets(self)]


def find_planted(request: PlantedRequest) -> PlantedFindings:
    """Hold what commands found against what was planted."""
    scores = read_scores(request.scores, steps=False)
    store = open_store_of(scores, None)
    fields = read_fields(store, [request.kind, request.copy_of], positions=store.positions_of(scores.row))
    kind = [str(each) for each in fields[request.kind]]
    flagged = np.flatnonzero(scores.is_flagged(HYGIENE_FLAGS))
    chosen, unflagged = (read_subset(path).chosen for path in (request.subset, request.unflagged))
    counts = [Counter(kind[place] for place in places) for places in (range(len(kind)), flagged, chosen, unflagged)]
    kinds = sorted(counts[0], key=lambda name: (name != request.clean, -counts[1][name] / counts[0][name], name))
    judgement = read_document(request.judgement, Judgement)
    seen = _Seen(judgement)
    originals = dict(zip(scores.sample_id, fields[request.copy_of], strict=True))
    copies = {sample: str(first) for sample, first in originals.items() if first is not None}
    num_found, num_others = _copies_found(request.duplicates, copies)
    return PlantedFindings(
        kinds=tuple(
            _kind(name, [each[name] for each in counts], seen, is_flaw=name != request.clean) for name in kinds
        ),
        num_copies=len(copies),
        num_copies_found=num_found,
        num_other_groups=num_others,
        value=_value_area(judgement),
    )


def _kind(name: str, counts: Sequence[int], seen: "_Seen", *, is_flaw: bool) -> PlantedKind:
    return PlantedKind(
        kind=name,
        is_flaw=is_flaw,
        num_traces=counts[0],
        num_flagged=counts[1],
        num_chosen=counts[2],
        num_chosen_unflagged=counts[3],
        num_steps=seen.num_steps(name),
        seen_by=seen.by(name, lambda area: area.low > CHANCE),
        mistaken_by=seen.by(name, lambda area: area.high < CHANCE),
    )


@dataclass(frozen=True, slots=True)
class _Seen:
    """Which measures of signals see the steps of a kind of flaw."""

    judgement: Judgement

    def num_steps(self, kind: str) -> int:
        return max((area.num_wrong for area in self._areas(kind).values()), default=0)

    def by(self, kind: str, is_sure: Callable[[Area], bool]) -> dict[str, Area]:
        areas = {name: area for name, area in self._areas(kind).items() if area.num_pairs >= FEWEST_PAIRS}
        if self.num_steps(kind) < FEWEST_LABELS:
            return {}
        # The best of several is looked for: each has to be that much surer.
        found = {name: area for name, area in areas.items() if is_sure(area) and area.p_value * len(areas) <= SURE}
        return dict(sorted(found.items(), key=lambda item: -abs(item[1].area - CHANCE)))

    def _areas(self, kind: str) -> dict[str, Area]:
        measures = next(items.measures for items in self.judgement.judged if items.of == "steps")
        return {self._name(each): each.kinds[kind] for each in measures if each.signal and kind in each.kinds}

    def _name(self, measure: JudgedMeasure) -> str:
        return measure.measure if len(self.judgement.signals) == 1 else measure.name


def _value_area(judgement: Judgement) -> Area:
    traces = next(items for items in judgement.judged if items.of == "traces")
    return next(each for each in traces.measures if each.measure == GRACE).across


def _copies_found(path: Path | None, copies: dict[str, str]) -> tuple[int | None, int]:
    """Return how many copies are in one group with what they repeat, and how many groups have no copy."""
    if path is None:
        return None, 0
    table = read_duplicates(path)
    group = dict(zip(table.sample_id, table.group.tolist(), strict=True))
    found = {copy: group[copy] for copy, first in copies.items() if group[copy] >= 0 and group[copy] == group[first]}
    return len(found), table.num_groups - len(set(found.values()))


# ---------------------------------------------------------------- in words


def _of_flags(found: PlantedFindings) -> str:
    clean = [each for each in found.kinds if not each.is_flaw]
    whole = [each.kind for each in found.flaws if each.num_flagged == each.num_traces]
    partly = [each for each in found.flaws if 0 < each.num_flagged < each.num_traces]
    shares = [f"{each.kind} ({each.num_flagged} of {each.num_traces})" for each in partly]
    missed = [each.kind for each in found.flaws if not each.num_flagged]
    parts = {"All of": whole, "Some of": shares, "None of": missed}
    listed = " ".join(f"{which} {', '.join(names)}." for which, names in parts.items() if names)
    return (
        f"Flags found {_sum(found.flaws, 'num_flagged')} of {_sum(found.flaws, 'num_traces')} flawed traces, and "
        f"{_sum(clean, 'num_flagged')} of {_sum(clean, 'num_traces')} clean ones. {listed}"
    )


def _sum(kinds: Iterable[PlantedKind], name: str) -> int:
    return sum(getattr(each, name) for each in kinds)


def _of_copies(found: PlantedFindings) -> list[str]:
    if found.num_copies_found is None:
        return []
    others = counted(found.num_other_groups, "group")
    told = f"The search for duplicates found {found.num_copies_found} of {found.num_copies} copies"
    return [f"{told}, and {others} of traces that nobody copied."]


def _of_values(found: PlantedFindings) -> str:
    value = found.value
    shown = f"a clean trace has the higher value than a flawed one in {shown_area(value)} of all pairs; 0.50 is chance"
    if value.low > CHANCE:
        return f"GRACE's values tell flawed traces from clean ones: {shown}."
    if value.high < CHANCE:
        return f"GRACE's values put flawed traces above clean ones: {shown}. Do not choose by them alone here."
    return f"GRACE's values do not tell flawed traces from clean ones here: {shown}."


def _of_signals(found: PlantedFindings) -> str:
    firsts = [(each.kind, name, each.seen_by[name]) for each in found.flaws for name in list(each.seen_by)[:1]]
    best = [f"{kind} by {name} {shown_area(area)}" for kind, name, area in firsts]
    parts = {
        "Steps that a stored signal sees": best,
        "Steps that no stored signal sees": [
            each.kind for each in found.flaws if each.has_enough_steps and not each.seen_by
        ],
        "Steps that GRACE takes for good ones": [each.kind for each in found.flaws if GRACE in each.mistaken_by],
        "Too few flawed steps to say": [each.kind for each in found.flaws if not each.has_enough_steps],
    }
    return " ".join(f"{what}: {', '.join(named)}." for what, named in parts.items() if named)


def _of_subsets(found: PlantedFindings) -> str:
    before, after = (
        f"{_sum(found.flaws, name)} of {_sum(found.kinds, name)}" for name in ("num_chosen", "num_chosen_unflagged")
    )
    left = [each.kind for each in found.flaws if each.num_chosen_unflagged]
    rest = f" Those left are of kinds that flags miss: {', '.join(left)}." if left else ""
    return f"Chosen by value, {before} traces are flawed; with --exclude-flagged, {after}.{rest}"
