"""Options that several commands share, and the commands of studies, which are made from such options."""

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
    STORE,
    TEXT,
    As,
    Decorator,
    any_given,
    as_table,
    command,
    flag,
    given_once,
    option,
    options_of,
    parsed,
    said,
    stacked,
)
from grace_store.cli.progress import ProgressDisplay
from grace_store.data.formats import FORMATS
from grace_store.data.mapping import ANY_PARTS, TRACE_PARTS
from grace_store.likeness.points import DEFAULT_DESCRIPTOR, DESCRIPTORS, PROJECTED_SIZE
from grace_store.pool.pool import Pool
from grace_store.pool.walk import Threads
from grace_store.run.engines import ENGINES, LOCAL_ENGINES
from grace_store.study import STUDIES
from grace_store.values.methods.method import ScoreSpec

# ---------------------------------------------------------------- stores, data, models, results

store = click.argument("store", type=STORE)
optional_store = click.argument("store", type=STORE, required=False)

moved_data = option("--data", PLACE, "Dataset file or folder, if it has moved. [default: the files planned]", many=True)
images = option(
    "--images",
    click.Path(file_okay=False),
    "Folder that relative image paths start from; no image outside of it is opened. [default: the folder that the "
    "signal was begun with, or else the one that holds all files of the dataset]",
)
model = option("--model", PLACE, "Model: a folder with safetensors, or a .gguf file. [default: that of the first run]")
partial = flag("--partial", "Accept an unfinished signal and use the units that are done.")
threads = option("--threads", COUNT, f"Threads that read STORE. [default: one a core, at most {MAX_DEFAULT_THREADS}]")
ratio = option("--ratio", TEXT, "Share of the samples that is chosen.", default="0.2")

out_finding = option(
    "--out", OUT_JSON, "JSON file for the finding, as `report --finding` takes it. [default: not written]"
)


def where(knows: str = "") -> Decorator:
    """Return --where; knows are the names that it has beside id, row and num_steps."""
    names = f"id, row, num_steps{knows}"
    return option(
        "--where",
        "CONDITION",
        f"Use only the samples that meet a condition in SQL over {names} and the fields of their records: is_correct "
        "and source in ('a', 'b'). A field inside another is \"meta.level\". Shares, as of --ratio, are shares of the "
        "samples that are kept. [default: all samples]",
    )


group_by = option(
    "--group-by",
    "FIELD",
    "Field of the records that says which question a trace answers; traces of one question are compared with each "
    "other. [default: the same prompt and images]",
)

KNOWN_BY_SCORES = ", num_tokens, value, flags"
"""Names that --where also has with a table of scores."""


def scores(help: str) -> Decorator:
    """Return --scores for one table; a second one is refused."""
    return option("--scores", FILE, help, many=True, callback=given_once)


# ---------------------------------------------------------------- how a store is written

data_spec = stacked(
    options_of(
        DataSpec,
        but=("map", "ignore_key"),
        differing={
            "format": As(
                help=f"Format of the records: {', '.join(FORMATS)}; `grace-store plan --help` describes them.",
                default="recognised from the records",
            ),
            "group_by": As(
                help="With --gather, the field of the records whose value makes traces those of one question.",
                default="what has the same prompt and images",
            ),
        },
    ),
    option(
        "--map",
        "PART=FIELD",
        f"Field that holds a part of a record, if none of the formats fits: {', '.join(TRACE_PARTS)}; with any format: "
        f"{', '.join(ANY_PARTS)}. FIELD may be a path such as meta.question or choices.0.text. May be repeated; "
        "a table [map] in a --config. [default: the format's own fields]",
        many=True,
        callback=as_table,
    ),
    option(
        "--ignore-key",
        click.Choice(list(UNREAD_KEYS)),
        "Key of a conversation that no reader understands yet: read records without it. May be repeated. [default: "
        "records with such a key are set aside]",
        many=True,
        callback=any_given,
    ),
    option(
        "--unit-samples",
        COUNT,
        "Samples in a unit, the piece of work that is done or not done; a power of two. [default: what makes about "
        "1000 units, at least 16]",
    ),
)
"""How records become samples; frozen in the plan."""

reading = {
    "rendering": As(default="template if the model has one, else plain"),
    "system": As(default="no prompt"),
    "min_pixels": As(default="the processor's"),
    "max_pixels": As(default="the processor's"),
}
"""Defaults in words, of how a model reads a sample."""
batching = {
    "batch_tokens": As(
        default=f"{ExtractSpec.model_fields['batch_tokens'].default} for gradients {GRADIENT_BATCH_TOKENS}"
    ),
    "share_prompts": As(default="share-prompts"),
}
"""The same of how a unit is cut into passes."""
extract_spec = options_of(ExtractSpec, but=("kind", "gradient"), differing=reading | batching)
"""What changes the numbers; frozen in the signal."""
gradient_spec = stacked(
    options_of(ExtractSpec, only=["kind"]),
    options_of(
        GradientSpec,
        differing={"normalise": As(default="normalise with --per sample, else no-normalise")},
    ),
)
"""What changes the numbers of projected gradients; frozen in the signal."""

cores = As(default=f"one a core, at most {MAX_DEFAULT_THREADS}")
speed = options_of(RunOptions, has_defaults=True, differing={"threads": cores})
"""What changes only the speed; may differ from run to run."""
device = options_of(RunOptions, only=["device"], has_defaults=True)


# ---------------------------------------------------------------- how Grams become values

grace = options_of(ScoreSpec, but=["method"], differing={"without_answer": As(is_flag=True)})


# ---------------------------------------------------------------- samples as points

_points = stacked(
    option("--signal", TEXT, "Signal whose vectors are compared. [default: the one scored, or the only one]"),
    option(
        "--descriptor",
        click.Choice(DESCRIPTORS),
        "What stands for a sample when samples are compared: the vector of its answer, the mean of its steps' vectors, "
        "that mean weighted by step scores, or a random projection of answer and steps. "
        f"[default: {DEFAULT_DESCRIPTOR}]",
    ),
)
search = stacked(
    _points,
    option("--dimension", COUNT, f"Length of a descriptor, with --descriptor projected. [default: {PROJECTED_SIZE}]"),
    partial,
    threads,
)
clusters = stacked(
    _points,
    option("--clusters", COUNT, "Number of clusters. [default: 2 sqrt(N), of at least 8 samples each]", "num_clusters"),
)


def take_pool(store: str, settings: dict[str, Any], threads: Threads) -> Pool:
    """Return the pool that --signal, --where, --data and --partial mean, taking them out of the settings."""
    named = said({name: settings.pop(name, None) for name in ("where", "data", "partial")})
    return Pool.of(store, signals=settings.pop("signal"), threads=threads, **named)


# ---------------------------------------------------------------- where the work is done

LOCAL = "local"
"""Stands for the one of LOCAL_ENGINES that suits the machine's devices."""
ENGINE_NAMES = [LOCAL, *(name for name in ENGINES if name not in LOCAL_ENGINES)]

engine = stacked(
    option(
        "--engine",
        click.Choice(ENGINE_NAMES),
        "Where to work: on this machine or a Ray cluster (extra `ray`).",
        default=LOCAL,
    ),
    option("--address", "auto|HOST:PORT", "Address of the Ray cluster. [default: one is started for the command]"),
)


def is_local(engine: str, address: str | None) -> bool:
    """Return whether the work is for this machine; only a Ray cluster has an address."""
    if address is not None and engine != "ray":
        raise click.UsageError("--address names a Ray cluster: give --engine ray with it.")
    return engine == LOCAL


@contextmanager
def spread(settings: dict[str, Any], listener: Listener) -> Iterator[Threads]:
    """Yield the workers for the blocks of a store: threads of this process, or tasks of a Ray cluster.

    Takes --engine, --address and --threads out of the settings.
    """
    engine, address, threads = (settings.pop(name) for name in ("engine", "address", "threads"))
    if is_local(engine, address):
        yield threads
        return
    from grace_store.run.engines.engine import EngineOptions

    with ENGINES[engine].tasks(EngineOptions(engine, address=address), threads, listener) as tasks:
        yield tasks


# ---------------------------------------------------------------- the commands of studies


def study_command(name: str) -> click.Command:
    """Return the command of a study: options for the pool, for each of the study's settings, and --out."""
    study = STUDIES[name]
    options = stacked(
        store,
        option("--signal", TEXT, study.signal, "signals", many=study.has_many_signals),
        options_of(study.settings, differing={"without_answer": As(is_flag=True)}),
        where(),
        moved_data,
        partial,
        threads,
        out_finding,
    )

    def run(store: str, out: Path | None, *, as_json: bool, **given: Any) -> None:
        from grace_store.scoring.provenance import check_results

        check_results(store, [out])
        settings = parsed(study.settings, given)
        pool = Pool.of(store, **{each: value or None for each, value in given.items() if each != "partial"})
        with ProgressDisplay(quiet=as_json) as display:
            found = study.find(Pool.of(pool, partial=given["partial"]), settings, listener=display)
        show(found, out, as_json=as_json)

    run.__doc__ = inspect.getdoc(study.settings)
    run.__name__ = name
    return command(*study.examples)(options(run))
