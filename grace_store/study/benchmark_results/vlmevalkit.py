"""VLMEvalKit's output folder: which of its tables count, and which cells of each benchmark's.

    outputs/MODEL/T20260801-120000/MODEL_MMStar_acc.csv       a table for each benchmark; T20260801_G1a2b3c4d before
    outputs/MODEL/MODEL_MMStar_acc.csv                        a link to the newest
    outputs/MODEL/MODEL_MathVista_MINI_gpt-4o_score.csv       with the judge's name, if one took part

MODEL is a run. Tables that lie about otherwise, as ms-swift's do, are those of the folder that was given.
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from grace_store.base.errors import DataError
from grace_store.study.benchmark_results.run_results import Entry, Results, listed, parse_count, parse_score, read_rows

KNOWN = (
    "HallusionBench, ScienceQA, MMBench, MME, MMT-Bench, MathVista, MathVision, MMStar, AI2D, MMMU, MathVerse, "
    "LogicVista, DynaMath, WeMath, MMVet, OCRBench, POPE, ChartQA, TextVQA, DocVQA, InfoVQA, OCRVQA, GQA, VizWiz, "
    "RealWorldQA, BLINK, CCBench, A-OKVQA, SEEDBench"
)
"""The benchmarks below, as people call them."""
RUN_FOLDER = re.compile(r"T(?P<date>\d{8})(?:-(?P<time>\d{6})|_G[0-9a-fA-F]+)")
TABLE_ENDINGS = ("acc", "score")


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """How the tables of datasets are recognised, and which cells of them count."""

    datasets: str
    """A pattern of names of datasets."""
    name: str | None = None
    """The entry; None where it is named as the dataset."""
    ending: str = "acc"
    is_judged: bool = False
    """Whether a judge's name may stand behind the dataset's."""
    columns: tuple[str, ...] = ("Overall",)
    """The cells whose mean is the score."""
    label: str = "split"
    """The column that names rows."""
    row: str | None = None
    """The label of the row that counts; None where there is only one."""
    all_rows: bool = False
    """Whether the mean of all rows counts instead: parts with as many questions each."""
    scale: float = 1.0
    items: str | None = None
    """The cell that holds the number of questions."""


def _shares(datasets: str, name: str | None = None, row: str | None = None) -> Benchmark:
    """Return benchmarks of multiple choice: shares of 1 in a row for each split."""
    return Benchmark(datasets=datasets, name=name, row=row, scale=100.0)


def _hits(datasets: str, label: str, name: str | None = None) -> Benchmark:
    """Return benchmarks whose answers a judge reads: percentages and numbers of questions in a row for each kind."""
    return Benchmark(
        datasets=datasets,
        name=name,
        ending="score",
        is_judged=True,
        label=label,
        row="Overall",
        columns=("acc",),
        items="tot",
    )


BENCHMARKS = (
    Benchmark(datasets="HallusionBench", ending="score", row="Overall", columns=("aAcc", "fAcc", "qAcc")),
    _shares("ScienceQA(?:_[A-Z]+)?", "ScienceQA"),
    _shares("MMBench(?:_[A-Z0-9]+)*", "MMBench"),
    Benchmark(name="MME-P", datasets="MME", ending="score", columns=("perception",)),
    Benchmark(name="MME-C", datasets="MME", ending="score", columns=("reasoning",)),
    _shares("MMT-Bench(?:_(?:ALL|VAL))?_MI", "MMT-MI", row="ALL"),
    _shares("MMT-Bench(?:_(?:ALL|VAL))?", "MMT-SI", row="ALL"),
    _hits("MathVista(?:_MINI)?", "Task&Skill", "MathVista"),
    _hits("MathVision_MINI", "Subject", "MathVision-MINI"),
    _hits("MathVision(?!_MINI)", "Subject", "MathVision"),
    _shares("MMStar(?:_[A-Z]+)?"),
    _shares("AI2D(?:_(?:TEST|TEST_NO_MASK|MINI))?"),
    _shares("MMMU_DEV_VAL", row="validation"),
    _shares("MMMU_Pro_(?:10c|V)(?:_COT)?"),
    Benchmark(
        datasets="MathVerse_MINI(?:_(?:Vision|Text)_(?:Only|Dominant|Intensive|Lite)(?:_cot)?)?",
        ending="score",
        is_judged=True,
        all_rows=True,  # a version of the same problems each; already percentages
    ),
    _hits("LogicVista", "Task&Skill"),
    Benchmark(datasets="DynaMath", ending="score", is_judged=True, label="Setting", row="Average", scale=100.0),
    Benchmark(datasets="WeMath(?:_COT)?", ending="score", is_judged=True, columns=("Score (Strict)",)),
    Benchmark(
        datasets="MMVet(?:_Hard)?", ending="score", is_judged=True, label="Category", row="Overall", columns=("acc",)
    ),
    Benchmark(datasets="OCRBench", ending="score", columns=("Final Score Norm",)),
    Benchmark(datasets="POPE", ending="score", row="Overall"),
    Benchmark(datasets="(?:ChartQA|TextVQA|DocVQA|InfoVQA|OCRVQA)_[A-Z]+|GQA_TestDev_Balanced|VizWiz"),
    _shares("RealWorldQA|BLINK|CCBench|A-OKVQA|SEEDBench_IMG|SEEDBench2|SEEDBench2_Plus"),
)


@dataclass(frozen=True, slots=True)
class _Table:
    """A file of results and what its name says."""

    path: Path
    home: Path
    """The folder of the model, or the one the file lies in."""
    dataset: str
    benchmarks: tuple[Benchmark, ...]
    """None where the dataset is not known here."""

    @property
    def is_of_home(self) -> bool:
        return self.path.name.startswith(f"{self.home.name}_")

    @property
    def run_time(self) -> tuple[str, str] | None:
        """When its run began, as far as the name of the folder says it; None beside the runs' folders."""
        found = RUN_FOLDER.fullmatch(self.path.parent.name)
        return found and (found["date"], found["time"] or "")


def read_vlmevalkit(folder: Path) -> list[Results]:
    """Return a run for each model's folder below a folder, and one for tables that lie in none; none without tables."""
    tables: dict[Path, list[_Table]] = defaultdict(list)
    folder = folder.resolve()
    for table in _tables(folder):
        tables[table.home if table.is_of_home else folder].append(table)
    found = [_read_run(owner, mine) for owner, mine in tables.items()]
    return [run for run in found if run.entries]


def is_known_table(path: Path) -> bool:
    """Return whether a file is named like a table of a benchmark."""
    return bool(_table(path).dataset)


def run_name(folder: Path) -> str:
    """Return what the run of a folder is called: a run's folder that VLMEvalKit named is its model's."""
    place = folder.resolve()
    return (place.parent if RUN_FOLDER.fullmatch(place.name) else place).name


def _tables(folder: Path) -> list[_Table]:
    endings = tuple(f"_{ending}{suffix}" for ending in TABLE_ENDINGS for suffix in (".csv", ".json"))
    return [_table(path) for path in sorted(folder.rglob("*")) if path.name.endswith(endings) and path.is_file()]


def _table(path: Path) -> _Table:
    parent = path.absolute().parent
    home = parent.parent if RUN_FOLDER.fullmatch(parent.name) else parent
    stem, _, ending = path.stem.rpartition("_")
    is_named = stem.startswith(f"{home.name}_")
    dataset, mine = "", []
    for benchmark in BENCHMARKS:
        if benchmark.ending == ending and (name := _dataset(benchmark, stem, home.name if is_named else None)):
            dataset = name
            mine.append(benchmark)
    return _Table(path, home, dataset, tuple(mine))


def _dataset(benchmark: Benchmark, stem: str, model: str | None) -> str | None:
    """Return the dataset that a name is of. Where the model's name is not known, it may be anything."""
    judge = "(?:_.+)?" if benchmark.is_judged else ""
    start = f"{re.escape(model)}_" if model else "(?:.*_)?"
    found = re.fullmatch(f"{start}(?P<dataset>{benchmark.datasets}){judge}", stem, re.IGNORECASE)
    return found and found["dataset"]


def _read_run(owner: Path, tables: list[_Table]) -> Results:
    known: dict[str, list[_Table]] = defaultdict(list)
    for table in tables:
        if table.dataset:
            known[table.path.name].append(table)
    chosen = {name: _newest(mine) for name, mine in known.items()}
    kept = [table for mine in chosen.values() for table in mine]
    resolved = {table.path.resolve() for table in kept}
    dropped = [each for mine in known.values() for each in mine if each.path.resolve() not in resolved]
    older = sorted({str(each.path.relative_to(owner)) for each in dropped})
    unknown = sorted({table.path.name for table in tables if not table.dataset})
    remarks = (f"older results are not used: {listed(older)}",) if older else ()
    return Results(run_name(owner), _entries(owner, kept), tuple(unknown), remarks)


def _newest(tables: list[_Table]) -> list[_Table]:
    """Return one of the tables of a name: the one beside the runs' folders, a link to the newest, or the newest.

    Several are returned if there is nothing to choose by; the same file is never there twice.
    """
    top = [table for table in tables if table.run_time is None]
    last = max((table.run_time or ("", "") for table in tables), default=("", ""))
    best = top or [table for table in tables if table.run_time == last]
    return list({table.path.resolve(): table for table in best}.values())


def _entries(owner: Path, tables: list[_Table]) -> dict[str, Entry]:
    found: dict[str, Entry] = {}
    for benchmark in BENCHMARKS:
        by_dataset: dict[str, list[_Table]] = defaultdict(list)
        for table in tables:
            if benchmark in table.benchmarks:
                by_dataset[table.dataset].append(table)
        for dataset, mine in by_dataset.items():
            name = benchmark.name if benchmark.name and len(by_dataset) == 1 else dataset
            found[name] = _entry(benchmark, _only(owner, name, mine))
    return found


def _only(owner: Path, name: str, tables: Iterable[_Table]) -> _Table:
    first, *others = tables
    if others:
        paths = ", ".join(str(table.path.relative_to(owner)) for table in (first, *others))
        raise DataError(f"{owner} has several results of {name}: {paths}. Keep only the one that counts.")
    return first


def _entry(benchmark: Benchmark, table: _Table) -> Entry:
    path, (_, rows) = table.path, read_rows(table.path)
    if benchmark.row is not None:
        rows = [row for row in rows if row.get(benchmark.label) == benchmark.row]
    if not rows or (len(rows) > 1 and not benchmark.all_rows):
        which = f"with {benchmark.label} {benchmark.row}" if benchmark.row else "of results"
        raise DataError(f"{path} has {len(rows)} rows {which}; {table.dataset} is read from exactly one.")
    cells = [parse_score(row, column, path) for row in rows for column in benchmark.columns]
    count = parse_count(rows[0], benchmark.items, path) if benchmark.items and rows[0].get(benchmark.items) else None
    return Entry(benchmark.scale * sum(cells) / len(cells), count, asked=table.dataset)
