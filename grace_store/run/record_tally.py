"""Count the samples that a dataset's records become, and find settings that would keep more records."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from grace_store.base.settings import DataSpec
from grace_store.base.states import TEXT_FLAGS, UNREAD_KEYS, Reason, SetAside, Unusable, text_mask
from grace_store.base.text import counted, percent
from grace_store.data.mapping import mapped_record
from grace_store.data.parse_records import sample_id
from grace_store.data.record import Record
from grace_store.run.scan import RecordOutcome, SeenIds, Understanding, planned_order, understood
from grace_store.store.plan_writer import PlanWriter

NUM_SHOWN = 3
"""Number of traces to show as examples."""
RECORD_CHARS = 400
"""Number of bytes to show of a record that is set aside."""
NUM_TRIED, BYTES_TRIED = 512, 2**23
"""Limits on the first records, which are kept to try other settings on."""
SHARE_WORTH_KEEPING = 0.9
"""The proposed --min-steps keeps this share of all traces."""
OFFERED_STEPS = (1, 2, 3, 4, 6)
"""Values of --min-steps to offer if the default would set aside most records, and the default after them."""

OTHER_WAYS: dict[str, tuple[dict[str, str], ...]] = {
    Reason.NO_ANSWER: ({"answer": "boxed"}, {"answer": "last"}, {"answer": "last", "splitter": "lines"}),
    Reason.NO_STEPS: ({"splitter": "paragraphs"}, {"splitter": "lines"}, {"splitter": "lines", "answer": "last"}),
    Reason.TOO_FEW_STEPS: ({"splitter": "lines"},),
}
"""Settings to try, by the most frequent reason for setting records aside."""


@dataclass(slots=True)
class RecordTally:
    """Counts of a dataset's records, planned or set aside, with examples: the result of `gs.preview`."""

    understanding: Understanding
    num_records: int = 0
    num_planned: int = 0
    num_images_missing: int = 0
    num_questions: int | None = None
    """Number of questions whose traces are gathered; None without --gather."""
    set_aside: Counter[str] = field(default_factory=Counter)
    """Number of records that are set aside for each reason."""
    num_steps: Counter[int] = field(default_factory=Counter)
    """Number of traces with each number of steps, also of traces with too few or too many steps."""
    flags: Counter[int] = field(default_factory=Counter)
    """Number of planned samples with each combination of text flags."""
    unread_keys: Counter[str] = field(default_factory=Counter)
    """Number of records with each key that no reader understands."""
    others: Counter[str] = field(default_factory=Counter)
    """Number of records with several responses, of which one is read, by the options that read the others."""
    examples: dict[str, tuple[Record, SetAside]] = field(default_factory=dict)
    """The first record that is set aside for each reason."""
    shown: list[Record] = field(default_factory=list)
    """The first few planned records."""
    spare: list[Record] = field(default_factory=list)
    """The first few records that are set aside only for their number of steps."""
    tried: list[Record] = field(default_factory=list)
    """The first records, to try other settings on."""
    num_bytes_tried: int = 0

    def take(self, record: Record, outcome: RecordOutcome) -> None:
        """Count one record."""
        self.num_records += 1
        if len(self.tried) < NUM_TRIED and self.num_bytes_tried < BYTES_TRIED:
            self.tried.append(record)
            self.num_bytes_tried += len(record.raw)
        if isinstance(outcome, SetAside):
            self.set_aside[outcome.reason.value] += 1
            self.unread_keys.update(outcome.keys)
            self.examples.setdefault(outcome.reason.value, (record, outcome))
            num_steps, kept = outcome.num_steps, self.spare
        else:
            sample, num_images_missing, _, others = outcome
            self.others.update([] if others is None else [others])
            self.num_planned += 1
            self.num_images_missing += num_images_missing
            self.flags[sample.flags] += 1
            num_steps, kept = sample.num_steps, self.shown
        if num_steps is not None:
            self.num_steps[num_steps] += 1
            if len(kept) < NUM_SHOWN:
                kept.append(record)

    @property
    def settings(self) -> DataSpec:
        """The settings by which the records are read."""
        return self.understanding.spec

    @property
    def num_set_aside(self) -> int:
        return self.set_aside.total()

    @property
    def flagged(self) -> dict[str, int]:
        """Number of planned samples with each flag."""
        masks = {name: text_mask(name) for name in TEXT_FLAGS}
        return {name: sum(num for flags, num in self.flags.items() if flags & mask) for name, mask in masks.items()}

    @property
    def loses_most(self) -> bool:
        """Whether more than half of the records are set aside."""
        return 2 * self.num_set_aside > self.num_records

    @property
    def needs_min_steps(self) -> bool:
        """Whether --min-steps was not given and its default sets aside more than half of the records."""
        is_given = "min_steps" in self.settings.model_fields_set
        return not is_given and 2 * self.set_aside[Reason.TOO_FEW_STEPS] > self.num_records

    def num_kept(self, min_steps: int, max_steps: int) -> int:
        """Return the number of traces that have between min_steps and max_steps steps."""
        return sum(count for steps, count in self.num_steps.items() if min_steps <= steps <= max_steps)

    def kept_by(self) -> Iterator[tuple[int, int]]:
        """Yield each --min-steps that would keep a trace, and the number of traces that it would keep."""
        most = min(max([self.settings.min_steps, *self.num_steps]), self.settings.max_steps)
        return ((min_steps, self.num_kept(min_steps, self.settings.max_steps)) for min_steps in range(1, most + 1))

    def first_set_aside(self) -> Iterator[dict[str, Any]]:
        """Yield the first record that is set aside for each reason; its place is FILE:NUMBER, from 0."""
        for reason, count in self.set_aside.most_common():
            record, why = self.examples[reason]
            try:
                own_id = sample_id(mapped_record(record.parse(), self.settings), "", 0)
            except Unusable:
                own_id = ":0"
            yield {
                "reason": reason,
                "count": count,
                "row": record.row,
                "place": f"{self.understanding.names[record.file]}:{record.row_in_file}",
                "sample_id": None if own_id == ":0" else own_id,  # which stands for a record without an id
                "detail": why.detail,
                "record": record.raw[:RECORD_CHARS].decode(errors="replace"),
            }

    def first_traces(self) -> Iterator[dict[str, Any]]:
        """Yield the first few planned traces, split into steps; if there are too few, traces of other lengths, too."""
        any_steps = {"min_steps": 1, "max_steps": max([1, *self.num_steps])}
        lenient = replace(self.understanding, spec=self.settings.model_copy(update=any_steps))
        chosen = [*((record, True) for record in self.shown), *((record, False) for record in self.spare)]
        for record, is_planned in chosen[:NUM_SHOWN]:
            sample = lenient.sample(record)
            *steps, answer = sample.segments
            prompt = "\n".join(turn.text for turn in sample.turns)
            known = {"sample_id": sample.sample_id, "row": record.row, "prompt": prompt}
            yield {**known, "steps": steps, "answer": answer, "is_planned": is_planned}

    def several_in_words(self) -> Iterator[str]:
        """Yield a sentence on records with several responses for each way to read the others."""
        for options, count in self.others.most_common():
            how = "reads each response as a trace" if "--expand" in options else "reads another response"
            yield f"Only one response is read of {counted(count, 'record')} with several responses. `{options}` {how}."

    def to_json(self) -> dict[str, Any]:
        """Return the counts, the examples, and the settings that would keep more records if most are set aside."""
        advice = advise(self) if self.loses_most else None
        counts = ("num_records", "num_planned", "num_set_aside", "num_images_missing", "num_questions", "flagged")
        return {
            "settings": self.settings.model_dump(mode="json"),
            **{name: getattr(self, name) for name in counts},
            "set_aside": dict(sorted(self.set_aside.items())),
            "several_responses": dict(self.others.most_common()),
            "unread_keys": dict(self.unread_keys.most_common()),
            "num_steps": {str(steps): count for steps, count in sorted(self.num_steps.items())},
            "kept_by": [
                {"min_steps": min_steps, "num_kept": kept, "share": kept / max(self.num_records, 1)}
                for min_steps, kept in self.kept_by()
            ],
            "examples": list(self.first_set_aside()),
            "traces": list(self.first_traces()),
            "advice": None if advice is None else str(advice),
        }


def tally_records(
    records: Iterable[Record], understanding: Understanding, num_processes: int, writer: PlanWriter | None
) -> RecordTally:
    """Plan every record or set it aside, and count both; with a writer, write them too.

    Of the records with the same id, only the first becomes a sample.
    """
    tally, seen = RecordTally(understanding), SeenIds()
    with planned_order(understanding.spec, None if writer is None else writer.add) as order:
        for block, outcomes in understood(records, understanding, num_processes):
            ids = [outcome[0].sample_id for outcome in outcomes if not isinstance(outcome, SetAside)]
            were_seen = iter(seen.add(ids).tolist())
            for record, outcome in zip(block, outcomes, strict=True):
                if not isinstance(outcome, SetAside) and next(were_seen):
                    outcome = SetAside(Reason.DUPLICATE_ID, f"id {outcome[0].sample_id!r} was used before")
                tally.take(record, outcome)
                if not isinstance(outcome, SetAside):
                    order.add(outcome[0], outcome[2])
                elif writer is not None:
                    writer.add_set_aside(record.row, outcome.reason, outcome.detail)
    tally.num_questions = order.num_questions
    return tally


@dataclass(frozen=True, slots=True)
class Advice:
    """Settings that would keep more records than the given settings do."""

    settings: Mapping[str, Any]
    share: float
    """Share of the records that these settings keep."""
    num_tried: int | None = None
    """Number of records that the share was measured on; None for all."""

    def __str__(self) -> str:
        values = {name: value if isinstance(value, tuple) else (value,) for name, value in self.settings.items()}
        options = " ".join(f"--{name.replace('_', '-')} {value}" for name, each in values.items() for value in each)
        tried = "" if self.num_tried is None else f" of the first {counted(self.num_tried, 'record')}"
        lost = f", without their {', '.join(keys)}" if (keys := self.settings.get("ignore_key")) else ""
        return f"`{options}` would keep {percent(self.share)}{tried}{lost}"


def advise(tally: RecordTally) -> Advice | None:
    """Return the settings that would keep most records, with as few changes as possible; None if none keep more."""
    if not tally.num_records or not tally.set_aside:
        return None
    found: list[Advice | None] = []
    if bounds := _bounds(tally.num_steps, tally.settings):
        by_steps = Advice(bounds, _num_within(tally, bounds) / tally.num_records)
        if by_steps.share > 0.5:
            return by_steps
        found = [by_steps]
    reason = tally.set_aside.most_common(1)[0][0]
    ways: Sequence[Mapping[str, Any]] = OTHER_WAYS.get(reason, ())
    if reason in UNREAD_KEYS.values():
        ways = [{"ignore_key": tuple(sorted({*tally.settings.ignore_key, *tally.unread_keys}))}]
    found += [_tried(tally, way) for way in ways]
    more = [each for each in found if each is not None and each.share > tally.num_planned / tally.num_records]
    return max(more, key=lambda each: (each.share, "min_steps" not in each.settings, -len(each.settings)), default=None)


def ask_for_min_steps(tally: RecordTally) -> str:
    """Return a request to give --min-steps, with the number of records that each value would keep."""
    default = tally.settings.min_steps
    lost = f"{tally.set_aside[Reason.TOO_FEW_STEPS]} of {counted(tally.num_records, 'record')}"
    kept = {steps: tally.num_kept(steps, tally.settings.max_steps) for steps in (*OFFERED_STEPS, default)}
    each = ", ".join(f"{steps} keeps {num} ({percent(num / tally.num_records)})" for steps, num in kept.items())
    return (
        f"--min-steps was not given, and its default of {default} (as in the paper) would set aside {lost} for too few "
        f"steps. Choose a value and give it with --min-steps: {each}."
    )


def loss_in_words(tally: RecordTally) -> str:
    """Return a warning that most records are set aside, with the reasons and a remedy."""
    lost = f"{tally.num_set_aside} of {counted(tally.num_records, 'record')}"
    reasons = ", ".join(f"{count} {reason}" for reason, count in tally.set_aside.most_common())
    advice, again = advise(tally), ""
    if advice is not None:
        plan = "If you can do without these keys, plan" if "ignore_key" in advice.settings else "Plan"
        again = f" {plan} again with this option before you run `extract`."
    return f"Most records are set aside: {lost} ({reasons}). {remedy(tally, advice)}{again}"


def remedy(tally: RecordTally, advice: Advice | None) -> str:
    """Return a sentence with the settings to change: the advised settings, or the settings that matter here."""
    if advice is not None:
        return f"{advice}."
    reason = tally.set_aside.most_common(1)[0][0] if tally.set_aside else ""
    if reason == Reason.UNKNOWN_RECORD:
        return "Name the fields that hold prompt and response with --map, or give another --format."
    if reason in UNREAD_KEYS.values():
        keys = ", ".join(tally.unread_keys)
        return f"No reader understands these keys yet: {keys}. Without these keys, most records are not traces."
    if reason == Reason.DUPLICATE_ID:
        return "Name a field whose values differ with --map id=FIELD."
    return "Give another --format, --splitter or --answer, or lower --min-steps."


def _bounds(num_steps: Counter[int], spec: DataSpec) -> dict[str, int]:
    """Return the bound on the number of steps to change so that more traces are kept; {} if most are kept already."""
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
        # A single step has no history, so propose two steps even if that keeps somewhat fewer traces.
        if kept < (0.5 if steps == 1 else SHARE_WORTH_KEEPING) * total:
            return {"min_steps": steps}
    return {}


def _num_within(tally: RecordTally, bounds: dict[str, int]) -> int:
    spec = tally.settings
    return tally.num_kept(**({"min_steps": spec.min_steps, "max_steps": spec.max_steps} | bounds))


def _tried(tally: RecordTally, way: Mapping[str, Any]) -> Advice | None:
    """Read the first records with other settings, and with other bounds if needed; None if the settings do not fit."""
    if "answer" in way and "answer" in tally.settings.map:
        return None
    spec = tally.settings.model_copy(update=way)
    again = RecordTally(replace(tally.understanding, spec=spec, images=None))
    for record, outcome in zip(tally.tried, again.understanding(tally.tried), strict=True):
        again.take(record, outcome)
    bounds = _bounds(again.num_steps, spec)
    return Advice({**way, **bounds}, _num_within(again, bounds) / len(tally.tried), len(tally.tried))
