"""The study's tables: the analogue of the paper's Tables 1 to 4, what each subset is made of, and the audits."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from grace_store.base.finding import Finding
from jobs.study.estimates import Comparison, GroupResult, separation
from jobs.study.folders import Folders
from jobs.study.methods import BASE, FULL, label
from jobs.study.problems import KINDS
from jobs.study.runs import NONE, WHOLE, whole_lines
from jobs.study.settings import Settings
from jobs.study.tables import Table
from jobs.study.traces import DUPLICATED, QUALITIES, Record

ALL_QUALITIES = (*QUALITIES, DUPLICATED)


def percent(ratio: str) -> str:
    return f"{float(ratio) * 100:g} %"


def main_table(settings: Settings, runs: Comparison) -> Table:
    """Accuracy by kind at the main ratio, as the paper's Table 1."""
    ratio = settings.score.main_ratio
    found = [runs.result(BASE, NONE), runs.result(FULL, WHOLE)]
    found += [runs.result(method, ratio) for method in settings.score.methods]
    found += [runs.result("grace", each) for each in settings.score.ratios if each != ratio]
    items = ", ".join(f"{kind} {found[0].num_items[kind]}" for kind in KINDS)
    left_out = [kind for kind in KINDS if kind not in runs.counted]
    about = f" Without {', '.join(left_out)}, which the full pool does not teach." if left_out else ""
    return Table(
        f"Table 1: methods at {percent(ratio)} of the pool",
        ("Method", "Data", *KINDS, "Rel. Avg. (95 %)", "against Random (95 %)"),
        tuple(_row(each, with_ratio=True) for each in found),
        f"Right answers to held-out problems in percent, mean over {len(settings.seeds)} seeds ({items} problems). "
        f"Rel. Avg. is relative to the full pool; its interval is over seeds and problems.{about}",
    )


def _row(result: GroupResult, *, with_ratio: bool) -> tuple[str, ...]:
    against = "" if result.against_random is None else result.against_random.text(1)
    entries = (f"{result.accuracy[kind]:.1f}" for kind in KINDS)
    ratio = (percent(result.ratio),) if with_ratio else ()
    return (label(result.method), *ratio, *entries, result.relative.text(1), against)


def ratio_table(settings: Settings, runs: Comparison) -> Table:
    """Relative averages over ratios, as the paper's Table 2."""
    methods = settings.score.methods
    rows = [
        (percent(ratio), *(runs.result(method, ratio).relative.text(1) for method in methods))
        for ratio in settings.score.ratios
    ]
    return Table(
        "Table 2: Rel. Avg. by ratio",
        ("Data", *map(label, methods)),
        tuple(rows),
        "Every model, the full pool's too, is trained for the same number of updates of the same batch size.",
    )


def ablation_table(settings: Settings, runs: Comparison) -> Table:
    """GRACE without its parts, as the paper's Table 3."""
    ratio = settings.score.main_ratio
    found = [runs.result(method, ratio) for method in ("grace", *settings.score.ablations)]
    return Table(
        f"Table 3: ablations at {percent(ratio)}",
        ("Variant", *KINDS, "Rel. Avg. (95 %)", "against Random (95 %)"),
        tuple(_row(each, with_ratio=False) for each in found),
    )


FORMULAS = {
    "proxy": ("GRACE gradient proxy", "M N_train forward", "M N_train (K + 1) d"),
    "adam": (
        "LESS, CADC: Adam gradient of every sample",
        "M (N_train + N_target) (forward + backward)",
        "M (N_train + N_target) d_proj",
    ),
    "plain": (
        "ICONS: gradient of every sample",
        "(N_train + N_target) (forward + backward)",
        "(N_train + N_target) d_proj",
    ),
    "segments": (
        "Projected gradient of every segment",
        "N_train forward + N_train (K + 1) backward",
        "N_train (K + 1) d_proj",
    ),
    "targets": ("gradients of the target set, in addition", "", ""),
    "warm-up": ("warm-up of the scoring model, for all of them", "", ""),
}


def cost_table(settings: Settings, folders: Folders) -> Table:
    """What collecting signals costs, as the paper's Table 4, with what was measured here."""
    seconds: Counter[str] = Counter()
    num_bytes: Counter[str] = Counter()
    signals: dict[str, set[str]] = {}
    for line in whole_lines(folders.costs):
        entry = json.loads(line)
        kind = _cost_kind(entry["what"])
        seconds[kind] += entry["seconds"]
        if entry["what"] not in signals.setdefault(kind, set()):
            num_bytes[kind] += entry["num_bytes"]
        signals[kind].add(entry["what"])
    rows = tuple(
        (
            name,
            time,
            storage,
            str(len(signals[kind])),
            f"{seconds[kind] / len(signals[kind]):.1f} s",
            f"{num_bytes[kind] / len(signals[kind]) / 1e6:.2f} MB",
        )
        for kind, (name, time, storage) in FORMULAS.items()
        if kind in signals
    )
    return Table(
        "Table 4: cost of collecting signals",
        ("Signal", "Time", "Storage", "signals here", "seconds for one", "bytes of one"),
        rows,
        f"N_train {settings.data.num_pool}, N_target {settings.data.num_targets * len(KINDS)}, d "
        f"{settings.model.hidden_size}, d_proj {settings.score.projection_dimension}, {settings.threads} threads. "
        "Seconds include loading the model and are of one run on one machine: only their proportions mean anything.",
    )


def _cost_kind(what: str) -> str:
    first, _, signal = what.partition(" ")
    if first != "pool":
        return first
    return next((kind for kind in ("adam", "plain", "segments") if signal.startswith(f"{kind}-")), "proxy")


def composition_table(title: str, pool: Sequence[Record], subsets: Mapping[str, Sequence[str]]) -> Table:
    """What subsets are made of, by quality and by kind, in percent."""
    known = {record["id"]: record for record in pool}

    def shares(ids: Sequence[str]) -> tuple[str, ...]:
        qualities = Counter(known[each]["quality"] for each in ids)
        kinds = Counter(known[each]["kind"] for each in ids)
        counts = [*(qualities[name] for name in ALL_QUALITIES), *(kinds[name] for name in KINDS)]
        steps = np.mean([len(known[each]["steps"]) for each in ids])
        distinct = len({(known[each]["prompt"], *known[each]["steps"]) for each in ids})
        return (*(f"{100 * count / len(ids):.1f}" for count in counts), f"{steps:.1f}", str(distinct))

    rows = [("Pool", *shares(list(known))), *((label(name), *shares(ids)) for name, ids in subsets.items())]
    columns = ("Subset", *ALL_QUALITIES, *KINDS, "steps", "different traces")
    return Table(
        title,
        columns,
        tuple(rows),
        "In percent of the subset: by quality, then by kind; then the mean number of "
        "steps and how many traces differ. No method saw the qualities.",
    )


def separation_table(pool: Sequence[Record], values: Mapping[str, Mapping[str, float]]) -> Table:
    """How well each method's values tell clean traces from flawed ones."""
    quality = {record["id"]: record["quality"] for record in pool}
    flaws = [name for name in ALL_QUALITIES if name not in ("clean", DUPLICATED)]
    rows = []
    for method, by_id in values.items():
        groups: dict[str, list[float]] = {}
        for name, value in by_id.items():
            if np.isfinite(value):
                groups.setdefault(quality[name], []).append(value)
        cells = (separation(groups["clean"], groups[flaw], draws=200).text(2) for flaw in flaws)
        rows.append((label(method), *cells))
    return Table(
        "Does the value tell clean traces from flawed ones?",
        ("Method", *flaws),
        tuple(rows),
        "The chance that a clean trace has a larger value than a flawed one (area under the ROC, 95 %): 1 always, "
        "0.5 no better than chance, 0 never.",
    )


def stability_table(found: Finding) -> Table:
    table, numbers = found.tables["changes"], found.numbers
    return Table(
        f"Stability of GRACE's best {numbers['num_chosen']} of {numbers['num_samples']}",
        ("Chosen again by", "Jaccard (95 %)"),
        tuple((str(row["change"]), table.cell_text(row, "jaccard")) for row in table.rows),
    )


def fidelity_table(found: Finding) -> Table:
    headings, *rows = found.tables["spaces"].texts()
    numbers = found.numbers
    return Table(
        "Fidelity of the proxy",
        tuple(headings),
        tuple(map(tuple, rows)),
        "Rank correlations of the proxy's alignments with those of whole gradients, "
        f"{numbers['num_samples']} samples, {numbers['num_steps']} steps (95 %). "
        f"Random choices would share {numbers['by_chance']:.2f}.",
    )
