"""The page's parts on trust: what `judge`, `stability`, `fidelity` and `trial` found, if run. Computes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from grace_store.artifacts.judgement import JudgedItems, Judgement
from grace_store.artifacts.measures import FidelityDocument, StabilityDocument
from grace_store.artifacts.notes import WhereNote
from grace_store.artifacts.trial_documents import SubsetPair, Trial, TriedSubset
from grace_store.base.text import counted, one_line
from grace_store.curate.verdict import headline, shown_area
from grace_store.pages.contamination import against_section
from grace_store.pages.figures import NamedInterval, intervals, proxy_scatter, subset_losses
from grace_store.pages.sections import Cell, Section
from grace_store.values.agreement import Agreement, Survival
from grace_store.values.roc import CHANCE

if TYPE_CHECKING:
    from grace_store.pages.report_inputs import ReportInputs

PAIRS = (
    "Below 0 the first trains better models. These comparisons are not part of the error rate that the looks above "
    "keep: their intervals hold 95 % for all pairs together, over the seeds that both have."
)
INTERVALS = "Dots with the intervals that hold 95 % of the draws."
WHOLE = "representation"
"""The set of all parameters below the head."""
COMPARED = {"answer_alignment": "answer alignment", "history_alignment": "history alignment", "value": "value"}


def audit_sections(given: ReportInputs) -> list[Section]:
    """Return a part for each audit that is given."""
    sections = []
    if given.judgement is not None:
        sections.append(judgement_section(given.judgement))
    if given.stability is not None:
        sections.append(stability_section(given.stability))
    if given.fidelity is not None:
        sections.append(fidelity_section(given.fidelity))
    if given.against is not None:
        sections.append(against_section(given.against))
    if given.trial is not None:
        sections.append(trial_section(given.trial))
    return sections


def _opened(section: Section, conclusion: str, where: WhereNote | None = None) -> Section:
    """Open a part with what its document concludes, and with what its samples had to pass."""
    if conclusion:
        section.text(conclusion, kind="conclusion")
    if where is not None:
        kept = f"{where.num_kept:,} of {where.num_samples:,} samples"
        section.text(f"Only samples where {one_line(where.sql)}: {kept}.", kind="note")
    return section


# ---------------------------------------------------------------- judgement


def judgement_section(found: Judgement) -> Section:
    """Return how well each measure tells what labels call right from what they call wrong."""
    section = Section("judgement", "Judgement", f"Do scores agree with the labels in {one_line(found.labels.field)}?")
    _opened(section, found.conclusion, found.where)
    for items in found.judged:
        _judged(section, items)
    if found.skipped:
        section.text(f"Left out, with one vector a sample and no steps: {', '.join(found.skipped)}.")
    return section


def _judged(section: Section, items: JudgedItems) -> None:
    areas = {each.name: headline(items, each) for each in items.measures}
    is_fixed = any(headline(items, each) is not each.across for each in items.measures)
    fixed = ", with position and length held fixed" if is_fixed else ""
    shown = [NamedInterval(name, each.area, each.low, each.high) for name, each in areas.items() if each.is_known]
    of = f"{items.num_right:,} right and {items.num_wrong:,} wrong {items.of}"
    section.figure(
        f"judged-{items.of}",
        f"Right {items.of} above wrong ones",
        intervals(shown, "share of pairs in order", (CHANCE, "chance")),
        f"{of} of {counted(items.num_questions, 'question')}: share of pairs in which the right one scores better"
        f"{fixed}. {INTERVALS}",
        wide=True,
    )
    section.records(f"Areas under the ROC, {items.of}", _area_rows(items), _about_areas(items))
    kinds = list(items.measures[0].kinds) if items.measures else []
    if kinds:
        columns = [f"{one_line(kind)} ({items.measures[0].kinds[kind].num_wrong})" for kind in kinds]
        rows = [[each.name, *(shown_area(each.kinds[kind]) for kind in kinds)] for each in items.measures]
        section.table(f"By kind of error, {items.of}", ["measure", *columns], rows, "Position and length held fixed.")


def _area_rows(items: JudgedItems) -> list[dict[str, Cell]]:
    rows: list[dict[str, Cell]] = []
    for each in items.measures:
        row: dict[str, Cell] = {
            "measure": each.name,
            "better is": each.better,
            "all pairs": shown_area(each.across),
            "same question": shown_area(each.within),
            "held fixed": shown_area(each.across_fixed),
            "both": shown_area(each.within_fixed),
        }
        if items.chance_of_first_errors is not None:
            first = each.first_errors
            row["F1"] = None if first is None else f"{first.f1:.2f} ({first.low:.2f} to {first.high:.2f})"
        rows.append(row)
    return rows


def _about_areas(items: JudgedItems) -> str:
    about = (
        "Share of pairs, one right and one wrong, in which the right one scores better; 0.50 is chance. Same question: "
        "only pairs of one question. Held fixed: only pairs of the same position (of traces: number of steps) and "
        "similar length. A dash: too few pairs."
    )
    if items.chance_of_first_errors is None:
        return about
    return f"{about} F1: finding the first wrong step; {items.chance_of_first_errors:.2f} is chance."


# ---------------------------------------------------------------- stability


def stability_section(found: StabilityDocument) -> Section:
    """Return how much of the choice survives each change."""
    section = Section("stability", "Stability", "How much of the subset would another run choose again?")
    _opened(section, found.conclusion, found.where)
    rows = [(f"signal {name}", each) for name, each in found.signals.items()]
    rows += [(f"vectors as {name}", each) for name, each in found.storages.items()]
    rows += [("steps drawn again", found.steps)] if found.steps is not None else []
    section.figure(
        "stability",
        "What survives",
        intervals([_survived(name, each) for name, each in rows], "Jaccard index", (found.by_chance, "chance")),
        f"The best {found.num_chosen:,} of {found.num_samples:,} samples by signal {found.signal}, against the best "
        f"after each change: 1 is the same subset, {found.by_chance:.3f} what two random ones share. {INTERVALS}",
        wide=True,
    )
    section.records("Shared after each change", [_survival_row(name, each) for name, each in rows])
    if found.skipped:
        section.text(f"Left out, with one vector a sample and no steps: {', '.join(found.skipped)}.")
    return section


def _survived(name: str, each: Survival) -> NamedInterval:
    return NamedInterval(name, each.jaccard, each.low, each.high)


def _survival_row(name: str, each: Survival) -> dict[str, Cell]:
    return {"change": name, "Jaccard": each.jaccard, "95 %": _span(each), "samples": each.num_samples}


def _span(each: Survival | Agreement) -> str | None:
    return f"{each.low:.3f} to {each.high:.3f}" if each.low == each.low else None


# ---------------------------------------------------------------- fidelity


def fidelity_section(found: FidelityDocument) -> Section:
    """Return how far the proxy's scores agree with those of whole gradients."""
    section = Section("fidelity", "Fidelity", "Does the proxy follow the gradient?")
    _opened(section, found.conclusion)
    rows: list[dict[str, Cell]] = []
    for space, each in sorted(found.spaces.items(), key=lambda item: item[0] != WHOLE):
        agreed: dict[str, Agreement] = {words: getattr(each, name) for name, words in COMPARED.items()}
        rows += [_agreement_row(space, words, agreement) for words, agreement in agreed.items()]
        drawn = [NamedInterval(words, one.correlation, one.low, one.high) for words, one in agreed.items()]
        section.figure(
            f"fidelity-{len(section.figures) + 1}",
            f"Proxy and gradients: {space}",
            intervals(drawn, "rank correlation", (0.0, "no relation")),
            f"{found.num_samples:,} samples, {found.num_steps:,} steps. {INTERVALS} The two choices of the best "
            f"{found.ratio} share {each.chosen.jaccard:.3f} (Jaccard index; two random ones {found.by_chance:.3f}).",
        )
    _values(section, found)
    section.records("Rank correlations", rows)
    return section


def _agreement_row(space: str, words: str, each: Agreement) -> dict[str, Cell]:
    return {
        "parameters": space,
        "of": words,
        "rank correlation": each.correlation,
        "95 %": _span(each),
        "pairs": each.num_pairs,
    }


def _values(section: Section, found: FidelityDocument) -> None:
    """Draw the values of all samples by the proxy against those by all parameters, if the document has them."""
    samples = [each for each in found.samples or () if {"proxy", WHOLE} <= set(each.scores)]
    if not samples:
        return
    proxy, true = (np.array([each.scores[name].value for each in samples]) for name in ("proxy", WHOLE))
    picture = proxy_scatter(proxy, true, [each.sample_id for each in samples])
    section.figure("fidelity-values", "Values of samples", picture, "Each point is a trace; dashed: both are equal.")


# ---------------------------------------------------------------- trial


def trial_section(found: Trial) -> Section:
    """Return how models trained on each subset differ from those trained on random ones."""
    section = Section("trial", "Trial", "Do these subsets train better models than random ones?")
    _opened(section, found.conclusion)
    spec = found.spec
    drawn = [_differing(each) for each in found.subsets]
    section.figure(
        "trial",
        "Held-out loss against random subsets",
        intervals(drawn, "difference in held-out loss per token", (0.0, "as random subsets")),
        f"{found.num_runs} trainings of {spec.num_updates} updates, {found.num_items:,} held-out items. Left of 0 the "
        "subset trains better models. The intervals hold 95 % for all subsets and looks together, over items, seeds "
        "and random draws.",
        wide=True,
    )
    section.figure(
        "trial-losses",
        "Held-out loss of every subset",
        subset_losses({each.name: (each.heldout_loss, each.random_losses) for each in found.subsets}),
        "Mean over seeds and over the tokens of all held-out responses: the subset, and each random one beside it.",
        wide=True,
    )
    section.records("Against random subsets", [_trial_row(each) for each in found.subsets])
    section.records("Subsets against each other", [_pair_row(each) for each in found.pairs or ()], PAIRS)
    return section


def _differing(each: TriedSubset) -> NamedInterval:
    return NamedInterval(each.name, each.difference.difference, each.difference.low, each.difference.high)


def _trial_row(each: TriedSubset) -> dict[str, Cell]:
    row: dict[str, Cell] = {
        "subset": each.name,
        "trained on": each.num_trained,
        "questions": each.num_questions,
        "seeds": each.num_rounds,
        "held-out loss": each.heldout_loss,
        "random subsets": float(np.mean(each.random_losses)),
        "difference, 95 %": str(each.difference),
        "found in 4 of 5 trials": each.difference.detectable,
    }
    if each.right_difference is not None:
        row |= {"right answers": each.share_right, "difference": str(each.right_difference)}
    return row


def _pair_row(each: SubsetPair) -> dict[str, Cell]:
    return {
        "subset": each.first,
        "against": each.second,
        "seeds": each.num_rounds,
        "difference, 95 %": str(each.difference),
    }
