"""What becomes of records, counted for people, and the setting that would keep more of them. Writes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from grace_store.base.settings import DataSpec
from grace_store.base.states import TEXT_FLAGS, UNREAD_KEYS, Reason, SetAside, text_mask
from grace_store.base.text import counted, percent
from grace_store.data.record import Record
from grace_store.run.scan import RecordOutcome, SeenIds, Understanding, planned_order, understood
from grace_store.store.layout import PlannedSample

NUM_SHOWN = 3
"""Traces kept to be shown."""
NUM_TRIED = 512
BYTES_TRIED = 2**23
"""The first records, kept to try other settings on."""
SHARE_WORTH_KEEPING = 0.9
"""A lower --min-steps is proposed that keeps this share of all traces."""

OTHER_WAYS: dict[str, tuple[dict[str, str], ...]] = {
    Reason.NO_ANSWER: ({"answer": "boxed"}, {"answer": "last"}, {"answer": "last", "splitter": "lines"}),
    Reason.NO_STEPS: ({"splitter": "paragraphs"}, {"splitter": "lines"}, {"splitter": "lines", "answer": "last"}),
    Reason.TOO_FEW_STEPS: ({"splitter": "lines"},),
}
"""Settings that are tried when most records are set aside for a reason."""


@dataclass(slots=True)
class RecordTally:
    """What becomes of a dataset's records: counts, and examples to show of each kind."""

    understanding: Understanding
    """How the records are read."""
    num_records: int = 0
    num_planned: int = 0
    num_images_missing: int = 0
    num_questions: int | None = None
    """Those whose traces were gathered; None if none were."""
    set_aside: Counter[str] = field(default_factory=Counter)
    num_steps: Counter[int] = field(default_factory=Counter)
    """How many traces have each number of steps, those with too few or too many included."""
    flags: Counter[int] = field(default_factory=Counter)
    """How many planned samples have each combination of the flags of their texts."""
    unread_keys: Counter[str] = field(default_factory=Counter)
    """How many records have each key for which records are set aside."""
    examples: dict[str, tuple[Record, SetAside]] = field(default_factory=dict)
    """The first record that was set aside for each reason."""
    shown: list[Record] = field(default_factory=list)
    """The first few that are planned."""
    spare: list[Record] = field(default_factory=list)
    """The first few whose number of steps alone is wrong."""
    tried: list[Record] = field(default_factory=list)
    num_bytes_tried: int = 0

    def take(self, record: Record, outcome: RecordOutcome) -> None:
        """Count one record."""
        self.num_records += 1
        if len(self.tried) < NUM_TRIED and self.num_bytes_tried < BYTES_TRIED:
            self.tried.append(record)
            self.num_bytes_tried += len(record.raw)
        if isinstance(outcome, SetAside):
            self._take_set_aside(record, outcome)
            return
        sample, num_images_missing, _ = outcome
        self.num_planned += 1
        self.num_images_missing += num_images_missing
        self.num_steps[sample.num_steps] += 1
        self.flags[sample.flags] += 1
        if len(self.shown) < NUM_SHOWN:
            self.shown.append(record)

    def _take_set_aside(self, record: Record, why: SetAside) -> None:
        self.set_aside[why.reason.value] += 1
        self.unread_keys.update(why.keys)
        self.examples.setdefault(why.reason.value, (record, why))
        if why.num_steps is not None:
            self.num_steps[why.num_steps] += 1
            if len(self.spare) < NUM_SHOWN:
                self.spare.append(record)

    @property
    def num_set_aside(self) -> int:
        return self.set_aside.total()

    @property
    def flagged(self) -> dict[str, int]:
        """How many planned samples have each flag."""
        masks = {name: text_mask(name) for name in TEXT_FLAGS}
        return {name: sum(num for flags, num in self.flags.items() if flags & mask) for name, mask in masks.items()}

    @property
    def loses_most(self) -> bool:
        """Whether more than half of the records are set aside."""
        return 2 * self.num_set_aside > self.num_records

    @property
    def reasons(self) -> str:
        """The reasons with their counts, the commonest first."""
        return ", ".join(f"{count} {reason}" for reason, count in self.set_aside.most_common())

    def num_kept(self, min_steps: int, max_steps: int) -> int:
        """Return how many traces have a number of steps within bounds."""
        return sum(count for steps, count in self.num_steps.items() if min_steps <= steps <= max_steps)


class SampleSink(Protocol):
    """Takes what becomes of every record, as a plan's writer does."""

    def add(self, sample: PlannedSample) -> None: ...

    def add_set_aside(self, row: int, reason: Reason, detail: str) -> None: ...


def tally_records(
    records: Iterable[Record], understanding: Understanding, num_processes: int, writer: SampleSink | None
) -> RecordTally:
    """Decide what becomes of every record, write it down if there is a writer, and count."""
    tally, seen = RecordTally(understanding), SeenIds()
    with planned_order(understanding.spec, None if writer is None else writer.add) as order:
        for block, outcomes in understood(records, understanding, num_processes):
            for record, outcome in zip(block, _without_repeats(outcomes, seen), strict=True):
                tally.take(record, outcome)
                if not isinstance(outcome, SetAside):
                    sample, _, group = outcome
                    order.add(sample, group)
                elif writer is not None:
                    writer.add_set_aside(record.row, outcome.reason, outcome.detail)
    tally.num_questions = order.num_questions
    return tally


def _without_repeats(outcomes: Sequence[RecordOutcome], seen: SeenIds) -> Iterable[RecordOutcome]:
    """Yield what becomes of records if only the first with an id is a sample."""
    ids = [outcome[0].sample_id for outcome in outcomes if not isinstance(outcome, SetAside)]
    were_seen = iter(seen.add(ids).tolist())
    for outcome in outcomes:
        if not isinstance(outcome, SetAside) and next(were_seen):
            outcome = SetAside(Reason.DUPLICATE_ID, f"id {outcome[0].sample_id!r} was used before")
        yield outcome


# ---------------------------------------------------------------- what would keep more


@dataclass(frozen=True, slots=True)
class Advice:
    """Settings that would keep more records than those given."""

    settings: Mapping[str, Any]
    share: float
    """Of the records that are kept with them."""
    num_tried: int | None = None
    """Records that this was tried on; None if it is known of all."""

    @property
    def condition(self) -> str:
        return "If that may be lost, plan" if "ignore_key" in self.settings else "Plan"

    def __str__(self) -> str:
        said = ((name, each) for name, value in self.settings.items() for each in _each(value))
        options = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in said)
        tried = "" if self.num_tried is None else f" of the first {counted(self.num_tried, 'record')}"
        lost = f", without their {', '.join(keys)}" if (keys := self.settings.get("ignore_key")) else ""
        return f"`{options}` would keep {percent(self.share)}{tried}{lost}"


def _each(value: Any) -> tuple[Any, ...]:
    """Return the values with which an option is given, one after the other."""
    return value if isinstance(value, tuple) else (value,)


def advise(tally: RecordTally) -> Advice | None:
    """Return the settings that would keep most records, as few of them as do; None if none was found."""
    if not tally.num_records or not tally.set_aside:
        return None
    by_steps = _within_other_bounds(tally)
    if by_steps is not None and by_steps.share > 0.5:
        return by_steps
    reason = tally.set_aside.most_common(1)[0][0]
    ways: Sequence[Mapping[str, Any]] = OTHER_WAYS.get(reason, ())
    if reason in UNREAD_KEYS.values():
        ways = [{"ignore_key": tuple(sorted({*tally.understanding.spec.ignore_key, *tally.unread_keys}))}]
    found = [by_steps, *(_tried(tally, way) for way in ways)]
    kept_now = tally.num_planned / tally.num_records
    better = [each for each in found if each is not None and each.share > kept_now]
    return max(
        better, key=lambda each: (each.share, "min_steps" not in each.settings, -len(each.settings)), default=None
    )


def loss_in_words(tally: RecordTally) -> str:
    """Return the sentences that say that most records are set aside, why, and what would keep them."""
    lost = f"{tally.num_set_aside} of {counted(tally.num_records, 'record')}"
    advice = advise(tally)
    again = "" if advice is None else f" {advice.condition} again with that before anything is extracted."
    return f"Most records are set aside: {lost} ({tally.reasons}). {remedy(tally, advice)}{again}"


def remedy(tally: RecordTally, advice: Advice | None) -> str:
    """Return the sentence that says which settings decide: those that would keep more, if any were found."""
    if advice is not None:
        return f"{advice}."
    reason = tally.set_aside.most_common(1)[0][0] if tally.set_aside else ""
    if reason == Reason.UNKNOWN_RECORD:
        return "Name the fields that hold prompt and response with --map, or another --format."
    if reason in UNREAD_KEYS.values():
        keys = ", ".join(tally.unread_keys)
        return f"No reader understands these keys yet: {keys}. What is left of most records without them is no trace."
    if reason == Reason.DUPLICATE_ID:
        return "Name a field whose values differ with --map id=FIELD."
    return "Name another --format, --splitter or --answer, or lower --min-steps."


def _within_other_bounds(tally: RecordTally) -> Advice | None:
    spec = tally.understanding.spec
    settings = _bounds(tally.num_steps, spec)
    if not settings:
        return None
    bounds = {"min_steps": spec.min_steps, "max_steps": spec.max_steps} | settings
    return Advice(settings, tally.num_kept(**bounds) / tally.num_records)


def _bounds(num_steps: Counter[int], spec: DataSpec) -> dict[str, int]:
    """Return the bounds to change so that traces with these numbers of steps are kept; {} if most are kept as it is."""
    total = num_steps.total()
    too_few = sum(count for steps, count in num_steps.items() if steps < spec.min_steps)
    too_many = sum(count for steps, count in num_steps.items() if steps > spec.max_steps)
    if 2 * (too_few + too_many) <= total:
        return {}
    if too_many > too_few:
        return {"max_steps": max(num_steps)}
    kept = total
    for steps in range(1, spec.min_steps):
        kept -= num_steps[steps]
        # A single step has no history, so two are proposed even if they keep somewhat less.
        if kept < (0.5 if steps == 1 else SHARE_WORTH_KEEPING) * total:
            return {"min_steps": steps}
    return {}


def _tried(tally: RecordTally, way: Mapping[str, Any]) -> Advice | None:
    """Return what another way of splitting would keep of the first records, with other bounds if need be."""
    understanding, records = tally.understanding, tally.tried
    if "answer" in way and "answer" in understanding.spec.map:
        return None
    spec = understanding.spec.model_copy(update=way)
    again = RecordTally(replace(understanding, spec=spec, images=None))
    for record, outcome in zip(records, again.understanding(records), strict=True):
        again.take(record, outcome)
    bounds = _bounds(again.num_steps, spec)
    kept = again.num_kept(**({"min_steps": spec.min_steps, "max_steps": spec.max_steps} | bounds))
    return Advice({**way, **bounds}, kept / len(records), len(records))
