"""A finished study as files: tables as Markdown, costs beside them, and one page with pictures."""

from __future__ import annotations

import json
from collections import Counter
from html import escape
from pathlib import Path

from grace_store.base.files import whole_file
from grace_store.curate.fidelity import fidelity_svg
from jobs.study import findings
from jobs.study.drawings import curve_plot, interval_plot, stacked_plot
from jobs.study.estimates import Comparison
from jobs.study.folders import Folders
from jobs.study.methods import BASE, label
from jobs.study.runs import NONE
from jobs.study.study import Study
from jobs.study.tables import Table

STYLE = (
    "body{font:15px/1.5 sans-serif;max-width:1100px;margin:2em auto;padding:0 1em;color:#222}"
    "table{border-collapse:collapse;font-size:13px;display:block;overflow-x:auto}"
    "td,th{padding:3px 9px;border-bottom:1px solid #ddd;text-align:right}td:first-child,th:first-child{text-align:left}"
    "svg{max-width:100%;height:auto}"
)


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
        out / "page.html": _page(study, comparison, [*tables, costs]),
    }
    for path, text in texts.items():
        with whole_file(path) as partial:
            partial.write_text(text, encoding="utf-8")
    return list(texts)


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
        findings.fidelity_table(study.fidelity.document),
    ]


def _page(study: Study, comparison: Comparison, tables: list[Table]) -> str:
    settings = study.settings
    main, methods = settings.score.main_ratio, settings.score.methods
    at_main = {label(BASE): comparison.result(BASE, NONE).relative}
    at_main |= {label(name): comparison.result(name, main).relative for name in (*methods, *settings.score.ablations)}
    shares = [float(ratio) for ratio in settings.score.ratios]
    curves = {
        label(name): [comparison.result(name, ratio).relative for ratio in settings.score.ratios] for name in methods
    }
    pictures = [
        interval_plot(f"Rel. Avg. at {findings.percent(main)} (dashed: the full pool)", at_main),
        *([curve_plot("Rel. Avg. by share of the pool", shares, curves)] if len(shares) > 1 else []),
        stacked_plot(f"Subsets of {findings.percent(main)} by quality", _qualities(study, main)),
        fidelity_svg(study.fidelity),
    ]
    described = json.loads(study.folders.settings.read_text(encoding="utf-8"))
    about = escape(json.dumps(described, indent=1))
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Training study</title>',
            f"<style>{STYLE}</style></head><body>",
            "<h1>Training study</h1>",
            *pictures,
            *(table.html() for table in tables),
            f"<h2>Settings and environment</h2><details><summary>{escape(described['sha256'])}</summary>"
            f"<pre>{about}</pre></details>",
            "</body></html>",
            "",
        ]
    )


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
