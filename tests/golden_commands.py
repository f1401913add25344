"""What every command prints with --json, kept in golden/commands, on a few small stores that are always the same.

``python -m tests.golden_commands [CASE ...]`` writes the files again, all of them or those named.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pyarrow.parquet as pq

from tests.commands import run
from tests.golden_world import MAKERS

GOLDEN = Path(__file__).parent / "golden" / "commands"
REFRESH = "python -m tests.golden_commands"
DIGITS = 6
TOLERANCE = 2e-6
"""How far two numbers of so many digits may be apart, as a share of the larger one."""
MODEL_TOLERANCE = 1e-3
"""The same for numbers that a model has computed: linear algebra differs in its last digits from machine to machine."""
SMALLEST = 1e-9
"""Numbers closer than this are equal."""
MODEL_SMALLEST = 1e-5


@dataclass(frozen=True)
class Case:
    """A command. Words in braces are places: {out} is its own folder, the others are of MAKERS or of other cases."""

    words: str
    code: int = 0
    reads: tuple[str, ...] = ()
    """Results below {out} that are kept, too: the lines of a text, or the values of a table."""
    uses_model: bool = False
    varying: tuple[str, ...] = ()
    """Keys whose values say something of the machine or the moment: only their types are kept."""


VARYING = (
    "version",
    "format_version",
    "created_by",
    "made_by",
    "num_bytes",
    "seconds",
    "update_seconds",
    "run_seconds",
)
"""Keys of this kind that several commands have."""

SCORE = "score {store} --signal base --out {out}/scores.parquet"
SELECT = "select {score}/scores.parquet --as ids --out {out}/ids.txt"
TABLE, IDS = ("scores.parquet",), ("ids.txt",)
CPU = "--device cpu --threads 1"
TRIAL = f"--held-out 8 --learning-rate 0.01 --updates 8 --random 2 --seeds 2 --rank 2 --batch-size 4 {CPU}"
INFLUENCE = "score {influence}/pool.zarr --targets {influence}/targets.zarr"

PREPARE = {
    "plan": Case("plan {out}/plan.zarr {data} --min-steps 2 --unit-samples 16"),
    "plan-gather": Case("plan {out}/plan.zarr {data} --min-steps 2 --gather --group-by meta.problem"),
    "plan-dry-run": Case("plan {out}/plan.zarr {data} --dry-run --min-steps 2"),
    "doctor": Case(
        f"doctor {{out}}/new.zarr --model {{model}} --data {{short}} --min-steps 2 {CPU}",
        uses_model=True,
        varying=("text", "brief", "figures"),
    ),
    "warmup": Case(
        "warmup --model {model} --data {short} --out {out}/warmup --min-steps 2 --ratio 0.5 --batch-size 4 --heldout 4 "
        f"--learning-rate 0.005 --checkpoints 0.5,1 {CPU}",
        uses_model=True,
    ),
}
EXTRACT = {
    "extract": Case(
        f"extract {{out}}/store.zarr --model {{model}} --data {{short}} --min-steps 2 --unit-samples 4 {CPU}",
        uses_model=True,
        varying=("sharing",),
    ),
    "extract-adapters": Case(
        "extract {out}/store.zarr --model {model} --data {short} --min-steps 2 --unit-samples 4 "
        f"--adapter {{warmup}}/warmup {CPU}",
        uses_model=True,
        varying=("sharing",),
    ),
    "extract-gradients": Case(
        "extract {out}/store.zarr --model {model} --data {short} --min-steps 2 --kind gradient --dimension 16 "
        f"--adapter {{warmup}}/warmup/checkpoint-3 {CPU}",
        uses_model=True,
    ),
    "status": Case("status {store} --list"),
    "status-planned": Case("status {plan}/plan.zarr"),
    "status-unfinished": Case("status {unfinished}"),
    "verify": Case("verify {store} --deep"),
    "verify-unfinished": Case("verify {unfinished}"),
    "verify-damaged": Case("verify {damaged} --deep", code=1),
    "verify-again": Case(f"verify {{extract}}/store.zarr --signal base --model {{model}} {CPU}", uses_model=True),
    "verify-repair": Case(f"verify {{broken}} --repair {CPU}", uses_model=True),
    "status-gradients": Case("status {extract-gradients}/store.zarr", uses_model=True),
    "inspect": Case("inspect {store} q6-1 --signal base"),
    "inspect-row": Case("inspect {store} #31 --signal late"),
    "inspect-planned": Case("inspect {plan}/plan.zarr q6-1"),
    "support": Case("support {store}", varying=("versions", "machine", "devices", "environment", "runs")),
}
CHOOSE = {
    "score": Case(SCORE, reads=TABLE),
    "score-signals": Case(
        "score {store} --signal base=1 --signal late=3 --alpha 0.3 --history ema:0.8 --out {out}/scores.parquet",
        reads=TABLE,
    ),
    "score-without-answer": Case(f"{SCORE} --without-answer", reads=TABLE),
    "score-target": Case(f"{SCORE} --target suffix --aggregation length_weighted --history window:2", reads=TABLE),
    "score-longest": Case(f"{SCORE} --measure tokens", reads=TABLE),
    "score-loss": Case(f"{SCORE} --measure loss:highest", reads=TABLE),
    "score-random": Case(f"{SCORE} --measure random", reads=TABLE),
    "score-where": Case(f"{SCORE} --where is_correct", reads=TABLE),
    "score-within": Case(f"{SCORE} --within group --within-as standardised", reads=TABLE),
    "score-within-field": Case(f"{SCORE} --within meta.problem", reads=TABLE),
    "score-target-group": Case(f"{SCORE} --target group", reads=TABLE),
    "score-partial": Case("score {unfinished} --partial --out {out}/scores.parquet", reads=TABLE),
    "score-replay": Case("score --replay {score-signals}/scores.parquet --out {out}/scores.parquet", reads=TABLE),
    "score-less": Case(
        f"{INFLUENCE} --signal ck1 --signal ck2 --method less --out {{out}}/scores.parquet", reads=TABLE
    ),
    "score-icons": Case(
        f"{INFLUENCE} --signal ck3 --method icons --subtasks about.subject --out {{out}}/scores.parquet", reads=TABLE
    ),
    "score-cadc": Case(
        f"{INFLUENCE} --signal ck1 --signal ck2 --method cadc --out {{out}}/scores.parquet", reads=TABLE
    ),
    "sweep": Case(
        "sweep {store} --out {out}/sweep --signal base --signal base,late=2 --alpha 0.3,0.7 --history uniform,ema:0.8 "
        "--ratio 0.1 --ratio 0.3"
    ),
    "sweep-where": Case("sweep {store} --out {out}/sweep --signal each --where level>1 --aggregation mean,min"),
    "audit": Case("audit {score}/scores.parquet --by source,level --ratio 0.3"),
    "audit-where": Case("audit {score}/scores.parquet --where is_correct"),
    "select": Case(f"{SELECT} --ratio 0.2", reads=IDS),
    "select-sizes": Case(
        "select {score}/scores.parquet --as ids --out {out}/ids-{{ratio}}.txt --ratio 0.1 --ratio 0.5",
        reads=("ids-0.1.txt", "ids-0.5.txt"),
    ),
    "select-count": Case(f"{SELECT} --count 7", reads=IDS),
    "select-threshold": Case(f"{SELECT} --threshold 0", reads=IDS),
    "select-where": Case(f"{SELECT} --where is_correct", reads=IDS),
    "select-by": Case(f"{SELECT} --by source,level --ratio 0.3", reads=IDS),
    "select-control": Case(f"{SELECT} --by num_steps --control length", reads=IDS),
    "select-unflagged": Case(f"{SELECT} --exclude-flagged --ratio 0.3", reads=IDS),
    "select-unflagged-names": Case(f"{SELECT} --exclude-flagged repeated_steps,cut_off --ratio 0.3", reads=IDS),
    "select-uncontaminated": Case(
        f"{SELECT} --exclude-contaminated {{contamination}}/against.parquet --ratio 0.3", reads=IDS
    ),
    "select-per-group": Case(f"{SELECT} --per-group 1", reads=IDS),
    "select-per-group-share": Case(f"{SELECT} --per-group 0.5 --group-by meta.problem --ratio 0.3", reads=IDS),
    "select-dedup": Case(f"{SELECT} --diversity dedup --ratio 0.3", reads=IDS),
    "select-dedup-table": Case(
        f"{SELECT} --diversity dedup --duplicates {{duplicates}}/duplicates.parquet --ratio 0.3", reads=IDS
    ),
    "select-clusters": Case(f"{SELECT} --diversity clusters --clusters 5 --balance sqrt", reads=IDS),
    "select-facility": Case(f"{SELECT} --diversity facility", reads=IDS),
    "select-mmr": Case(f"{SELECT} --diversity mmr --weight 0.6 --signal late", reads=IDS),
    **{
        f"select-as-{name}": Case(f"select {{score}}/scores.parquet --as {name} --out {{out}}/chosen")
        for name in ("source", "ms-swift", "llama-factory", "trl", "axolotl", "datasets", "steps")
    },
    **{
        f"select-as-{name}": Case(
            f"select {{score}}/scores.parquet --as {name} --group-by meta.problem --out {{out}}/chosen"
        )
        for name in ("ms-swift-pairs", "llama-factory-pairs")
    },
    "select-as-trl-pairs": Case(
        "select {score}/scores.parquet --as trl-pairs --margin 0.1 --out {out}/pairs.jsonl", reads=("pairs.jsonl",)
    ),
    "select-right": Case(
        "select {score}/scores.parquet --as trl-pairs --labels {labels} --right verdict='good' --out {out}/pairs.jsonl",
        reads=("pairs.jsonl",),
    ),
    "select-weights": Case(
        "select {score}/scores.parquet --as ms-swift --weights {weights}/weights.parquet --out {out}/train.jsonl",
        reads=("train.jsonl",),
    ),
    "weights": Case("weights {store} --signal base --out {out}/weights.parquet", reads=("weights.parquet",)),
    "weights-drop": Case(
        "weights {store} --signal base --signal late=2 --method drop --drop-share 0.4 --where is_correct "
        "--out {out}/weights.parquet",
        reads=("weights.parquet",),
    ),
    "weights-scores": Case(
        "weights {store} --signal late --method scores --alpha 0.5 --answer-weight 2 --out {out}/weights.parquet",
        reads=("weights.parquet",),
    ),
    "compare": Case("compare {score}/scores.parquet {score-signals}/scores.parquet --ratio 0.3"),
    "compare-subsets": Case("compare {select}/ids.txt {select-by}/ids.txt"),
    "compare-control": Case("compare {select}/ids.txt {select-control}/ids.txt --show 3"),
}
LOOK = {
    "duplicates": Case(
        "duplicates {store} --signal base --out {out}/duplicates.parquet", reads=("duplicates.parquet",)
    ),
    "duplicates-steps": Case(
        "duplicates {store} --signal late --descriptor steps --threshold 0.5 --floor 0.4 "
        "--scores {score}/scores.parquet --keep value --out {out}/duplicates.parquet",
        reads=("duplicates.parquet",),
    ),
    "duplicates-from": Case(
        "duplicates --from {duplicates-steps}/duplicates.parquet --threshold 0.45 --keep shortest "
        "--out {out}/again.parquet"
    ),
    "contamination": Case("contamination {store} --against {items} --out {out}/against.parquet"),
    "contamination-store": Case(
        "contamination {store} --against {benchmark} --signal base --out {out}/against.parquet"
    ),
    "inspect-neighbours": Case("inspect {store} q6-1 --signal base --neighbours 4"),
    "inspect-least": Case(
        "inspect {store} #20 --signal late --neighbours 10 --descriptor steps --least --where is_correct"
    ),
    "diversity": Case(
        "diversity {store} --signal base --subset {select}/ids.txt --scores {score}/scores.parquet --ratio 0.1 "
        "--ratio 0.3 --clusters 6 --random 20 --out {out}/diversity.json"
    ),
    "diversity-curve": Case(
        "diversity {store} --signal base --scores {score}/scores.parquet --ratio 0.3 --clusters 6 --random 5 "
        "--curve --method mmr --method clusters --weight 0.5"
    ),
    "stability": Case("stability {store} --signal base --draws 20 --out {out}/stability.json"),
    "stability-where": Case("stability {store} --signal late --against base --ratio 0.4 --where level>1 --draws 5"),
    "fidelity": Case(
        f"fidelity {{extract}}/store.zarr --signal base --samples 8 {CPU} --out {{out}}/fidelity.json", uses_model=True
    ),
    "fidelity-adapter": Case(
        f"fidelity {{extract-adapters}}/store.zarr --signal checkpoint-3 --samples 8 --layers 1 {CPU}", uses_model=True
    ),
    "judge": Case("judge {store} --right is_correct"),
    "judge-labels": Case("judge {store} --labels {labels} --right verdict='good'"),
    "judge-steps": Case(
        "judge {store} --first-wrong first_wrong --kind kind --question meta.problem --signal base "
        "--out {out}/judgement.json"
    ),
    "report": Case("report {store} --signal base --out {out}/report.html"),
    "report-fidelity": Case(
        "report {extract}/store.zarr --finding {fidelity}/fidelity.json --out {out}/report.html", uses_model=True
    ),
    "report-of-results": Case(
        "report {store} --out {out}/report.html --scores {score}/scores.parquet "
        "--scores {score-longest}/scores.parquet --subset {select}/ids.txt --subset {select-by}/ids.txt "
        "--sweep {sweep}/sweep --duplicates {duplicates}/duplicates.parquet --finding {diversity}/diversity.json "
        "--finding {judge-steps}/judgement.json --finding {stability}/stability.json "
        "--against {contamination}/against.parquet --finding {trial}/trial/trial.json --by source --max-traces 20",
        uses_model=True,
    ),
}
AFTERWARDS = {
    "trial": Case(
        f"trial {{store}} {{select-unflagged}}/ids.txt --model {{model}} --out {{out}}/trial {TRIAL}", uses_model=True
    ),
    "trial-dry-run": Case(
        f"trial {{store}} {{select-by}}/ids.txt --weighted {{select}}/ids.txt {{weights}}/weights.parquet "
        f"--model {{model}} --out {{out}}/trial --dry-run {TRIAL}",
        uses_model=True,
        varying=("conclusion",),
    ),
    "evaluate": Case("evaluate {paper} --full Full --items MathVision-MINI=304"),
    "demo": Case("demo --out {out}/demo --model {model}", uses_model=True),
}
CASES = {**PREPARE, **EXTRACT, **CHOOSE, **LOOK, **AFTERWARDS}


# ---------------------------------------------------------------- running them


class World:
    """A folder in which cases run, each once, after the cases and places that its words name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._results: dict[str, Any] = {}
        self._places: dict[str, str] = {}

    def __getitem__(self, name: str) -> str:
        """Return a place by its name, made now if it is not there."""
        if name in CASES:
            self.result(name)
            return str(self.folder / name)
        if name not in self._places:
            folder = self.folder / "made" / name
            folder.mkdir(parents=True, exist_ok=True)
            self._places[name] = str(MAKERS[name](folder))
        return self._places[name]

    def result(self, name: str) -> Any:
        """Return what a case prints, and what it writes where that is kept, without what varies."""
        if name not in self._results:
            case, out = CASES[name], self.folder / name
            out.mkdir(exist_ok=True)
            places = _Places(self, str(out))
            words = [word.format_map(places) for word in case.words.split()]
            found = {"json": json.loads(run(*words, "--json", code=case.code).stdout)}
            found |= {each: read(out / each) for each in case.reads}
            self._results[name] = normalised(found, str(self.folder), {*VARYING, *case.varying})
        return self._results[name]


class _Places(dict[str, str]):
    def __init__(self, world: World, out: str) -> None:
        super().__init__(out=out)
        self.world = world

    def __missing__(self, name: str) -> str:
        return self.world[name]


def read(path: Path) -> Any:
    """Return what is kept of a file: the lines of a text, or of a table the numbers of each sample."""
    if path.suffix != ".parquet":
        lines = path.read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines] if path.suffix == ".jsonl" else lines
    table = pq.read_table(path)
    kept = [name for name in ("value", "weight", "group", "keep") if name in table.column_names]
    return {"columns": table.column_names, **{name: table[name].to_pylist() for name in kept}}


PATTERNS = (
    (re.compile(r"\b[0-9a-f]{12,}\b"), "DIGEST"),
    (re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.\d]*(Z|[+-]\d\d:?\d\d)?"), "TIME"),
    (re.compile(r"\b\d+\.\d+\.\d+[\w.+]*"), "VERSION"),
)


def normalised(value: Any, folder: str, varying: set[str]) -> Any:
    """Return JSON with the same text for every folder, digest, time and version, and numbers of six digits."""
    if isinstance(value, dict):
        return {
            normalised(key, folder, varying): type(each).__name__
            if key in varying
            else normalised(each, folder, varying)
            for key, each in value.items()
        }
    if isinstance(value, list):
        return [normalised(each, folder, varying) for each in value]
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, str):
        value = value.replace(folder, "HOME")
        for pattern, name in PATTERNS:
            value = pattern.sub(name, value)
    return value


# ---------------------------------------------------------------- comparing and keeping them


def differences(expected: Any, found: Any, tolerance: float, smallest: float, key: str = "") -> Iterator[str]:
    """Yield a sentence for every key at which two results differ."""
    if isinstance(expected, dict) and isinstance(found, dict):
        for name in [*expected, *(name for name in found if name not in expected)]:
            inner = f"{key}.{name}".removeprefix(".")
            if name not in found:
                yield f"{inner}: the key is missing"
            elif name not in expected:
                yield f"{inner}: the key is new, with {found[name]!r:.200}"
            else:
                yield from differences(expected[name], found[name], tolerance, smallest, inner)
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for i, (a, b) in enumerate(zip(expected, found, strict=True)):
            yield from differences(a, b, tolerance, smallest, f"{key}[{i}]")
    elif not _is_equal(expected, found, tolerance, smallest):
        yield f"{key}: expected {expected!r:.200}, found {found!r:.200}"


def _is_equal(expected: Any, found: Any, tolerance: float, smallest: float) -> bool:
    if type(expected) is float and type(found) is float:
        return math.isclose(expected, found, rel_tol=tolerance, abs_tol=smallest)
    return type(expected) is type(found) and bool(expected == found)


def changes(name: str, found: Any) -> list[str]:
    """Return in what a case's result differs from its golden file."""
    bounds = (MODEL_TOLERANCE, MODEL_SMALLEST) if CASES[name].uses_model else (TOLERANCE, SMALLEST)
    expected = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
    return list(differences(expected, found, *bounds))


def main(names: list[str]) -> None:
    """Write the golden files of some cases again, or of all, and delete files that belong to no case."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        os.environ["GRACE_STORE_CACHE"] = f"{folder}/cache"
        world = World(Path(folder) / "world")
        world.folder.mkdir()
        found = {name: world.result(name) for name in names or CASES}
    GOLDEN.mkdir(exist_ok=True)
    for path in GOLDEN.glob("*.json"):
        if path.stem not in CASES:
            path.unlink()
    for name, result in found.items():
        path = GOLDEN / f"{name}.json"
        differing = changes(name, result) if path.exists() else ["the file is new"]
        if differing:
            path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            click.echo("\n  ".join([f"{name} is written again:", *differing]))


if __name__ == "__main__":
    main(sys.argv[1:])
