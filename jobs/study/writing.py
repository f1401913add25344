"""A finished study as files: tables as Markdown, costs beside them, and one page with figures."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from grace_store.base.files import write_text
from grace_store.pages.findings import finding_section
from grace_store.pages.page_files import write_page
from grace_store.pages.sections import Section
from jobs.study import findings
from jobs.study.drawings import curve_plot, interval_plot, stacked_plot
from jobs.study.estimates import Comparison
from jobs.study.folders import Folders
from jobs.study.methods import BASE, label
from jobs.study.runs import NONE
from jobs.study.study import Study
from jobs.study.tables import Table


def write_findings(study: Study) -> list[Path]:
    """Write tables.md, cost.md and page.html, and return where they are.

    A second run gives the same tables.md to the byte; only cost.md has times in it.
    """
    comparison = Comparison(study.runs, study.settings.evaluation.draws)
    tables = _tables(study, comparison)
    costs = findings.cost_table(study.settings, study.folders)
    out = study.folders.out
    head = f"# The study's tables\n\nSettings {study.settings.digest()}; see README.md for what they mean.\n"
    texts = {
        out / "tables.md": "\n".join([head, *(table.markdown() for table in tables)]),
        out / "cost.md": costs.markdown(),
    }
    for path, text in texts.items():
        write_text(path, text)
    write_page(out / "page.html", "Training study", _sections(study, comparison, [*tables, costs]))
    return [*texts, out / "page.html"]


def _tables(study: Study, comparison: Comparison) -> list[Table]:
    settings, first = study.settings, study.settings.seeds[0]
    main = settings.score.main_ratio
    every = (*settings.score.methods, *settings.score.ablations)
    smallest = min(settings.score.ratios, key=float)
    made_of = {main: every} | ({smallest: settings.score.methods} if smallest != main else {})
    return [
        findings.main_table(settings, comparison),
        *([findings.ratio_table(settings, comparison)] if smallest != main else []),
        findings.ablation_table(settings, comparison),
        *(
            findings.composition_table(
                f"What the subsets of {findings.percent(ratio)} are made of",
                study.pool,
                {method: study.subsets[method, ratio, first] for method in methods},
            )
            for ratio, methods in made_of.items()
        ),
        findings.separation_table(study.pool, study.values),
        findings.stability_table(study.stability),
        findings.fidelity_table(study.fidelity),
    ]


def _sections(study: Study, comparison: Comparison, tables: list[Table]) -> list[Section]:
    settings = study.settings
    main, methods = settings.score.main_ratio, settings.score.methods
    at_main = {label(BASE): comparison.result(BASE, NONE).relative}
    at_main |= {label(name): comparison.result(name, main).relative for name in (*methods, *settings.score.ablations)}
    shares = [float(ratio) for ratio in settings.score.ratios]
    curves = {
        label(name): [comparison.result(name, ratio).relative for ratio in settings.score.ratios] for name in methods
    }
    results, about = Section("results", "Results"), Section("settings", "Settings and environment")
    share = findings.percent(main)
    results.figure("relative", f"Rel. Avg. at {share}", interval_plot(at_main), wide=True)
    if len(shares) > 1:
        results.figure("curves", "Rel. Avg. by share of the pool", curve_plot(shares, curves), wide=True)
    results.figure("qualities", f"Subsets of {share} by quality", stacked_plot(_qualities(study, main)), wide=True)
    for table in tables:
        results.table(table.title, table.columns, table.rows, table.note)
    for name, value in json.loads(study.folders.settings.read_text(encoding="utf-8")).items():
        facts = value.items() if isinstance(value, dict) else [(name, value)]
        about.facts(name, [(key, each if isinstance(each, str) else json.dumps(each)) for key, each in facts])
    return [results, finding_section(study.fidelity), about]


def _qualities(study: Study, ratio: str) -> dict[str, dict[str, float]]:
    quality = {record["id"]: record["quality"] for record in study.pool}
    subsets = {"Pool": list(quality)}
    every = (*study.settings.score.methods, *study.settings.score.ablations)
    subsets |= {label(name): study.subsets[name, ratio, study.settings.seeds[0]] for name in every}
    parts = {}
    for name, ids in subsets.items():
        counts = Counter(quality[each] for each in ids)
        parts[name] = {each: counts[each] / len(ids) for each in findings.ALL_QUALITIES}
    return parts


def summary(folders: Folders) -> str:
    """Return the first table of a finished study, for the terminal."""
    text = (folders.out / "tables.md").read_text(encoding="utf-8")
    return text.split("\n## ")[1].strip()
