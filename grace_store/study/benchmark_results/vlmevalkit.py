"""The output folder of VLMEvalKit: the tables that count, and the cells of each benchmark.

    outputs/MODEL/T20260801-120000/MODEL_MMStar_acc.csv       a table for each benchmark; T20260801_G1a2b3c4d before
    outputs/MODEL/MODEL_MMStar_acc.csv                        a link to the newest
    outputs/MODEL/MODEL_MathVista_MINI_gpt-4o_score.csv       with the judge's name, if one took part

MODEL is a run. Tables in other places, such as those of ms-swift, belong to the folder that was given.
"""

import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from grace_store.base.errors import DataError
from grace_store.study.benchmark_results.run_results import Entry, Results, listed, parse_count, parse_score, read_rows

KNOWN = (
    "HallusionBench, ScienceQA, MMBench, MME, MMT-Bench, MathVista, MathVision, MMStar, AI2D, MMMU, MathVerse, "
    "LogicVista, DynaMath, WeMath, MMVet, OCRBench, POPE, ChartQA, TextVQA, DocVQA, InfoVQA, OCRVQA, GQA, VizWiz, "
    "RealWorldQA, BLINK, CCBench, A-OKVQA, SEEDBench"
)
"""The common names of the benchmarks below."""
RUN_FOLDER = re.compile(r"T(?P<date>\d{8})(?:-(?P<time>\d{6})|_G[0-9a-fA-F]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """The names of a benchmark's tables, and the cells that count."""

    datasets: str
    """A pattern of names of datasets."""
    name: str | None = None
    """The name of the entry; None for the name of the dataset."""
    ending: str = "acc"
    is_judged: bool = False
    """Whether the name of a judge may follow the name of the dataset."""
    columns: tuple[str, ...] = ("Overall",)
    """The score is the mean of the cells in these columns."""
    label: str = "split"
    """The column with the names of rows."""
    row: str | None = None
    """The name of the row that counts; None if there is only one row."""
    all_rows: bool = False
    """Whether the mean of all rows counts: parts with equal numbers of questions."""
    scale: float = 1.0
    items: str | None = None
    """The column with the number of questions."""


def _shares(datasets: str, name: str | None = None, row: str | None = None) -> Benchmark:
    """Return a benchmark of multiple choice: shares of 1, with a row for each split."""
    return Benchmark(datasets=datasets, name=name, row=row, scale=100.0)


def _hits(datasets: str, label: str, name: str | None = None) -> Benchmark:
    """Return a benchmark with a judge: percentages and numbers of questions, with a row for each kind."""
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
    """A file of results, and the parts of its name."""

    path: Path
    home: Path
    """The folder of the model, or else the folder of the file."""
    dataset: str
    benchmarks: tuple[Benchmark, ...]
    """Empty if the dataset is unknown."""

    @property
    def run_time(self) -> tuple[str, str] | None:
        """Date and time of the run by the name of its folder; None for a table outside the folders of runs."""
        found = RUN_FOLDER.fullmatch(self.path.parent.name)
        return found and (found["date"], found["time"] or "")


def read_vlmevalkit(folder: Path) -> list[Results]:
    """Return a run for each model's folder below a folder, and one for all other tables; empty without tables."""
    tables: dict[Path, list[_Table]] = defaultdict(list)
    folder = folder.resolve()
    endings = tuple(f"_{ending}{suffix}" for ending in ("acc", "score") for suffix in (".csv", ".json"))
    for path in sorted(path for path in folder.rglob("*") if path.name.endswith(endings) and path.is_file()):
        table = _table(path)
        tables[table.home if table.path.name.startswith(f"{table.home.name}_") else folder].append(table)
    found = [_read_run(owner, mine) for owner, mine in tables.items()]
    return [run for run in found if run.entries]


def is_known_table(path: Path) -> bool:
    """Return whether a file has the name of a table of a known benchmark."""
    return bool(_table(path).dataset)


def run_name(folder: Path) -> str:
    """Return the name of the run of a folder; for a folder that VLMEvalKit named by time, the name of its model."""
    place = folder.resolve()
    return (place.parent if RUN_FOLDER.fullmatch(place.name) else place).name


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
    """Return the dataset in a file name; without the name of the model, any prefix is accepted."""
    judge = "(?:_.+)?" if benchmark.is_judged else ""
    start = f"{re.escape(model)}_" if model else "(?:.*_)?"
    found = re.fullmatch(f"{start}(?P<dataset>{benchmark.datasets}){judge}", stem, re.IGNORECASE)
    return found and found["dataset"]


def _read_run(owner: Path, tables: list[_Table]) -> Results:
    known: dict[str, list[_Table]] = defaultdict(list)
    for table in tables:
        if table.dataset:
            known[table.path.name].append(table)
    kept = [table for mine in known.values() for table in _newest(mine)]
    resolved = {table.path.resolve() for table in kept}
    dropped = [each for mine in known.values() for each in mine if each.path.resolve() not in resolved]
    older = sorted({str(each.path.relative_to(owner)) for each in dropped})
    unknown = sorted({table.path.name for table in tables if not table.dataset})
    remarks = (f"older results are not used: {listed(older)}",) if older else ()
    return Results(run_name(owner), _entries(owner, kept), tuple(unknown), remarks)


def _newest(tables: list[_Table]) -> list[_Table]:
    """Return the table outside the folders of runs (a link to the newest table), or else the newest table.

    Several tables are returned if none is the newest; a file is never returned twice.
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
            if len(mine) > 1:
                paths = ", ".join(str(table.path.relative_to(owner)) for table in mine)
                raise DataError(f"{owner} has several results of {name}: {paths}. Keep only one of these files.")
            found[name] = _entry(benchmark, mine[0])
    return found


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
