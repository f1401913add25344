"""Options that several commands share, the objects made from these options, and the commands of studies."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from grace_store.base.events import Listener
from grace_store.base.settings import (
    GRADIENT_BATCH_TOKENS,
    MAX_DEFAULT_THREADS,
    DataSpec,
    ExtractSpec,
    GradientSpec,
    RunOptions,
)
from grace_store.base.states import UNREAD_KEYS
from grace_store.cli.console import show
from grace_store.cli.options import (
    COUNT,
    FILE,
    OUT_JSON,
    PLACE,
    SCORES,
    STORE,
    TEXT,
    As,
    Decorator,
    as_table,
    command,
    flag,
    only_given,
    option,
    options_of,
    parsed,
    pick,
    stacked,
)
from grace_store.cli.progress import ProgressDisplay
from grace_store.data.mapping import ANY_PARTS, TRACE_PARTS
from grace_store.likeness.points import DEFAULT_DESCRIPTOR, DESCRIPTORS, PROJECTED_SIZE
from grace_store.pool.pool import Pool
from grace_store.pool.walk import Threads
from grace_store.run.engines import ENGINES, LOCAL_ENGINES
from grace_store.run.engines.engine import EngineOptions, ExtractJob
from grace_store.study import STUDIES
from grace_store.values.methods.method import ScoreSpec

store = click.argument("store", type=STORE)
optional_store = click.argument("store", type=STORE, required=False)

moved_data = option(
    "--data", PLACE, "Dataset file or folder, if the dataset has moved. [default: the planned files]", many=True
)
images = option(
    "--images",
    click.Path(file_okay=False),
    "Folder that relative image paths start from. No image outside this folder is opened. [default: the folder that "
    "the signal's first run used, or else the folder that holds all files of the dataset]",
)
model = option(
    "--model", PLACE, "Model: a folder with safetensors, or a .gguf file. [default: the model of the first run]"
)
partial = flag("--partial", "Accept an unfinished signal and use the units that are done.")
cores = As(default=f"OMP_NUM_THREADS, or one per core, at most {MAX_DEFAULT_THREADS}")
threads = option("--threads", COUNT, f"Number of threads that read STORE. [default: {cores.default}]")
out_finding = option(
    "--out", OUT_JSON, "JSON file for the finding. `report --finding` can show the file. [default: not written]"
)

labels = option(
    "--labels",
    FILE,
    "File with labels of samples: CSV, TSV, JSON lines or Parquet, with the samples' ids in a column id. Options that "
    "name fields of the records can name its other columns, too. [default: none]",
)
right = option(
    "--right",
    "CONDITION",
    "Condition in SQL that right traces meet, such as is_correct, score >= 0.5 or verdict = 'good'. Traces for which "
    "the condition is NULL have no label and are left out. [default: none]",
)


def where(knows: str = "") -> Decorator:
    """Return --where and --labels.

    knows lists the names that a condition can use besides id, row, num_steps, fields and labels.
    """
    names = f"id, row, num_steps{knows}"
    condition = option(
        "--where",
        "CONDITION",
        f"Use only the samples that meet this condition in SQL. The condition can use {names} and the fields of the "
        "records, for example: is_correct and source in ('a', 'b'). Write a nested field as \"meta.level\". Shares are "
        "shares of the samples that meet the condition. [default: all samples]",
    )
    return stacked(condition, labels)


group_by = option(
    "--group-by",
    "FIELD",
    "Field of the records that names the question of a trace. Traces of one question are compared with each other. "
    "[default: traces with the same prompt and images have the same question]",
)

KNOWN_BY_SCORES = ", num_tokens, value, flags"
"""Names that --where can also use with a table of scores."""


def scores(help: str) -> Decorator:
    return option("--scores", SCORES, help)


data_spec = stacked(
    options_of(
        DataSpec,
        but=("map", "ignore_key"),
        differing={
            "format": As(
                help="Format of the records, such as gsm8k or messages. `grace-store plan --help` lists all formats.",
                default="recognised from the records",
            ),
            "expand": As(default="a record is one trace"),
            "group_by": As(
                help="With --gather, field of the records that names the question of a trace.",
                default="traces with the same prompt and images have the same question",
            ),
        },
    ),
    option(
        "--map",
        "PART=FIELD",
        f"Field that holds a part of a record. To read records without a format, PART can be {', '.join(TRACE_PARTS)}. "
        f"With any format, PART can be {', '.join(ANY_PARTS)}. FIELD can be a path such as meta.question or "
        "choices.0.text. You can give this option several times. A --config file has a table [map] instead. "
        "[default: the format's own fields]",
        many=True,
        callback=as_table,
    ),
    option(
        "--ignore-key",
        click.Choice(list(UNREAD_KEYS)),
        "Key of a conversation that grace-store cannot interpret yet. Records are read as if they did not have this "
        "key. [default: records with such a key are set aside]",
        many=True,
    ),
    option(
        "--unit-samples",
        COUNT,
        "Number of samples in a unit, a power of two. A unit is written completely or not at all. [default: a number "
        "that makes about 1000 units, at least 16]",
    ),
)
"""Options that define how records become samples; frozen in the plan."""

input_defaults = {
    "rendering": As(default="template if the model has one, else plain"),
    "system": As(default="no prompt"),
    "min_pixels": As(default="the limit of the processor"),
    "max_pixels": As(default="the limit of the processor"),
}
"""Texts for the defaults of the options that prepare a model's input."""
batch_defaults = {
    "batch_tokens": As(
        default=f"{ExtractSpec.model_fields['batch_tokens'].default}, for gradients {GRADIENT_BATCH_TOKENS}"
    ),
    "share_prompts": As(default="share-prompts"),
}
"""Texts for the defaults of the options that divide a unit into forward passes."""
extract_spec = options_of(ExtractSpec, but=("kind", "gradient"), differing=input_defaults | batch_defaults)
"""Options that change the numbers; frozen in the signal."""
gradient_spec = stacked(
    options_of(ExtractSpec, only=["kind"]),
    options_of(GradientSpec, differing={"normalise": As(default="normalise with --per sample, else no-normalise")}),
)
"""Options that change the numbers of projected gradients; frozen in the signal."""

speed = options_of(RunOptions, has_defaults=True, differing={"threads": cores})
"""Options that change only the speed; they may differ from run to run."""


def extract_job(store: str, wishes: dict[str, Any], **rest: Any) -> ExtractJob:
    """Return the extraction that the options of a command describe."""
    places = {name: wishes[name] for name in ("model", "data", "images")}
    data, request = DataSpec(**pick(wishes, DataSpec)), ExtractSpec(**pick(wishes, ExtractSpec))
    options = RunOptions(**pick(wishes, RunOptions))
    return ExtractJob(store, **places, data_request=data, request=request, options=options, **rest)


def _check_once(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    if len(values) > 1:
        raise click.UsageError(f"{parameter.opts[0]} is given {len(values)} times: give it once.", context)
    return values


def own_score(measure: str, *, many: bool = False) -> dict[str, As]:
    """Return how options of a score differ in a command that reads no other traces, with the help of --measure.

    Without many, the command takes one measure.
    """
    target = "answer: the answer. trace: all tokens of steps and answer. suffix: the tokens after the step."
    return {
        "measure": As(help=measure, callback=None if many else _check_once),
        "target": As(
            help=f"Target that steps are aligned with. {target}", kind=click.Choice(["answer", "trace", "suffix"])
        ),
        "without_answer": As(is_flag=True),
    }


grace = options_of(ScoreSpec, but=["method"], differing={"without_answer": As(is_flag=True), "learn": As(is_flag=True)})

_points = stacked(
    option("--signal", TEXT, "Signal whose vectors are compared. [default: the scored signal, or the only signal]"),
    option(
        "--descriptor",
        click.Choice(DESCRIPTORS),
        "Vector that represents a sample in comparisons. answer: the vector of the answer. steps: the mean of the "
        "steps' vectors. weighted: the mean weighted by step scores. projected: a random projection of answer and "
        f"steps. [default: {DEFAULT_DESCRIPTOR}]",
    ),
)
search = stacked(
    _points,
    option("--dimension", COUNT, f"With --descriptor projected, length of a descriptor. [default: {PROJECTED_SIZE}]"),
    partial,
    threads,
)
clusters = stacked(
    _points,
    option(
        "--clusters", COUNT, "Number of clusters. [default: 2 sqrt(N), with at least 8 samples in each]", "num_clusters"
    ),
)


def take_pool(store: str, settings: dict[str, Any], threads: Threads) -> Pool:
    """Remove --signal, --where, --labels, --data and --partial from the settings, and return the pool they describe."""
    named = only_given({name: settings.pop(name, None) for name in ("where", "labels", "data", "partial")})
    return Pool.of(store, signals=settings.pop("signal", None) or None, threads=threads, **named)


LOCAL = "local"
"""Name for the one of LOCAL_ENGINES that suits the machine's devices."""

engine = stacked(
    option(
        "--engine",
        click.Choice([LOCAL, *(name for name in ENGINES if name not in LOCAL_ENGINES)]),
        "Where to compute: on this machine, or on a Ray cluster. The Ray cluster needs the extra `ray`.",
        default=LOCAL,
    ),
    option("--address", "auto|HOST:PORT", "Address of the Ray cluster. [default: the command starts a cluster]"),
)


def is_local(engine: str, address: str | None) -> bool:
    """Return whether the work runs on this machine. Refuse an address without a Ray cluster."""
    if address is not None and engine != "ray":
        raise click.UsageError("--address needs --engine ray: give --engine ray, too.")
    return engine == LOCAL


@contextmanager
def open_workers(settings: dict[str, Any], listener: Listener) -> Iterator[Threads]:
    """Remove --engine, --address and --threads from the settings, and yield the workers that read a store.

    The workers are threads of this process, or tasks of a Ray cluster.
    """
    engine, address, threads = (settings.pop(name) for name in ("engine", "address", "threads"))
    if is_local(engine, address):
        yield threads
        return
    with ENGINES[engine].tasks(EngineOptions(engine, address=address), threads, listener) as tasks:
        yield tasks


def study_command(name: str) -> click.Command:
    """Return the command of a study, with options for the pool, for each of the study's settings, and --out."""
    study = STUDIES[name]
    options = stacked(
        store,
        option("--signal", TEXT, study.signal, "signals", many=study.has_many_signals),
        options_of(study.settings, differing=own_score(study.measure, many=study.has_many_measures)),
        where(),
        moved_data,
        partial,
        threads,
        out_finding,
    )

    def run(store: str, out: Path | None, *, as_json: bool, **given: Any) -> None:
        from grace_store.scoring.provenance import check_results  # imports pyarrow, which `status` does without

        check_results(store, [out], [given["labels"]])
        settings = parsed(study.settings, given)
        pool = Pool.of(store, **{each: value or None for each, value in given.items() if each != "partial"})
        with ProgressDisplay(quiet=as_json) as display:
            found = study.find(Pool.of(pool, partial=given["partial"]), settings, listener=display)
        show(found, out, as_json=as_json)

    run.__doc__ = inspect.getdoc(study.settings)
    run.__name__ = name
    return command(*study.examples)(options(run))
