"""Options that several commands share, each written once. Those that decide how a store is written: extract_options."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, get_args, get_origin

import click
from annotated_types import Ge
from click.core import ParameterSource
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from grace_store.base.settings import MAX_DEFAULT_THREADS
from grace_store.likeness.points import DEFAULT_DESCRIPTOR, DESCRIPTORS, PROJECTED_SIZE
from grace_store.run.engines import ENGINES, LOCAL_ENGINES
from grace_store.values.score_spec import ScoreSpec

if TYPE_CHECKING:
    from grace_store.base.events import Listener
    from grace_store.read.parallel import Threads

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


class Decorator(Protocol):
    """What an option is to a command's function."""

    def __call__(self, function: FunctionT, /) -> FunctionT: ...


FILE = click.Path(dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)


class LocalPath(click.Path):
    """A path on this machine, where all results but stores go."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if "://" in str(value):
            self.fail(f"{value} is in a bucket, and only stores can be there. Give a local path.", param, ctx)
        return super().convert(value, param, ctx)


OUT_FILE = LocalPath(dir_okay=False, path_type=Path)
OUT_FOLDER = LocalPath(file_okay=False, path_type=Path)


# ---------------------------------------------------------------- making options


def choice(literal: Any) -> click.Choice[str]:
    """Return the values of a Literal type of the library as a choice."""
    return click.Choice(get_args(literal))


def wish(
    model: type[BaseModel], option: str, help: str, *, field: str | None = None, default: str | None = None
) -> Decorator:
    """Return an option that leaves a field of a model to the library unless it is given.

    Its type, its choices and the default that its help names are the field's; default says it in other words.
    """
    name, found = _field(model, option, field)
    if found.annotation is bool:
        flag = option.removeprefix("--")
        shown = default or (flag if found.default else f"no-{flag}")
        return click.option(f"{option}/--no-{flag}", name, default=None, help=f"{help} [default: {shown}]")
    shown = default or (f"{found.default:g}" if isinstance(found.default, float) else str(found.default))
    return click.option(option, name, type=_type(found), help=f"{help} [default: {shown}]")


def setting(model: type[BaseModel], option: str, help: str) -> Decorator:
    """Return an option for a field of a model that has the field's default."""
    name, found = _field(model, option, None)
    option = f"{option}/--no-{option.removeprefix('--')}" if found.annotation is bool else option
    return click.option(option, name, type=_type(found), default=found.default, show_default=True, help=help)


def _field(model: type[BaseModel], option: str, field: str | None) -> tuple[str, FieldInfo]:
    name = field or option.removeprefix("--").replace("-", "_")
    return name, model.model_fields[name]


def _type(field: FieldInfo) -> Any:
    kind = next((each for each in get_args(field.annotation) if each in (int, float, str)), field.annotation)
    if get_origin(kind) is Literal:
        return choice(kind)
    least = next((int(str(each.ge)) for each in field.metadata if isinstance(each, Ge)), None)
    return click.IntRange(least) if kind is int else kind


def stacked(*options: Decorator) -> Decorator:
    """Return one decorator for several options, shown in the order given."""

    def apply(function: FunctionT) -> FunctionT:
        for option in reversed(options):
            function = option(function)
        return function

    return apply


# ---------------------------------------------------------------- reading what was given


def given_once(context: click.Context, parameter: click.Parameter, values: tuple[Any, ...]) -> Any:
    """Return the only value of an option declared as multiple; of one that is not, click silently takes the last."""
    if len(values) > 1:
        raise click.UsageError(f"{parameter.opts[0]} is given {len(values)} times and takes one value.", context)
    return values[0] if values else None


def given(*, but: Collection[str] = ()) -> list[str]:
    """Return the arguments and options that the user gave to the command under way, as written in its help."""
    context = click.get_current_context()
    unsaid = (ParameterSource.DEFAULT, None)
    return [
        parameter.human_readable_name if isinstance(parameter, click.Argument) else parameter.opts[0]
        for parameter in context.command.params
        if parameter.name not in but and context.get_parameter_source(str(parameter.name)) not in unsaid
    ]


def said(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that were given; None, False and () stand for those that were not."""
    return {name: value for name, value in settings.items() if value is not None and value is not False and value != ()}


def pick(values: dict[str, Any], model: type[BaseModel]) -> dict[str, Any]:
    """Return the part of a command's parameters that belongs to one model."""
    return {name: values[name] for name in model.model_fields if name in values}


# ---------------------------------------------------------------- stores, data, results

as_json = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on stdout.")

store_argument = click.argument("store", type=click.Path())

moved_data_option = click.option(
    "--data",
    multiple=True,
    type=click.Path(),
    help="Dataset file or folder, if it has moved; may be repeated. [default: the files that were planned]",
)

images_option = click.option(
    "--images",
    type=click.Path(file_okay=False),
    help="Folder that relative image paths start from; no image outside of it is opened. [default: the folder that "
    "the signal was begun with, or else the one that holds all files of the dataset]",
)

partial_option = click.option(
    "--partial", is_flag=True, help="Accept an unfinished signal and use the units that are done."
)

threads_option = click.option(
    "--threads",
    type=click.IntRange(1),
    help=f"Threads that read the store. [default: one a core, at most {MAX_DEFAULT_THREADS}]",
)

device_option = click.option(
    "--device",
    default="auto",
    show_default=True,
    help="Device to compute on: auto (a GPU if there is one), cpu, cuda, cuda:N or mps.",
)

ratio_option = click.option("--ratio", default="0.2", show_default=True, help="Share of the samples that is chosen.")


def scores_option(help: str) -> Decorator:
    """Return --scores for one table; a second one is refused."""
    return click.option("--scores", multiple=True, callback=given_once, type=FILE, help=help)


# ---------------------------------------------------------------- how Grams become values

grace_options = stacked(
    wish(ScoreSpec, "--alpha", "Weight of the alignment with the answer, 0 to 1; history has the rest."),
    wish(
        ScoreSpec,
        "--history",
        "Weights of the earlier steps: uniform, window:W (the last W steps) or ema:B (decaying by B a step).",
    ),
    wish(ScoreSpec, "--target", "What steps are aligned with: the answer, the whole trace, or all after the step."),
    click.option("--without-answer", is_flag=True, default=None, help="Score by the alignment with history alone."),
    wish(
        ScoreSpec,
        "--aggregation",
        "How step scores become a value: mean, min, last, length_weighted or quantile:Q.",
    ),
)


def score_spec(settings: dict[str, Any]) -> ScoreSpec:
    """Return the spec of the grace options, taking them out of the settings."""
    names = [name for name in ScoreSpec.model_fields if name in settings]
    return ScoreSpec.parse(**said({name: settings.pop(name) for name in names}))


# ---------------------------------------------------------------- samples as points

signal_of_vectors_option = click.option(
    "--signal", help="Signal whose vectors are compared. [default: the one scored, or the only one]"
)

descriptor_option = click.option(
    "--descriptor",
    type=click.Choice(DESCRIPTORS),
    help="What stands for a sample when samples are compared: the vector of its answer, the mean of its steps' "
    "vectors, that mean weighted by step scores, or a random projection of answer and steps. "
    f"[default: {DEFAULT_DESCRIPTOR}]",
)

search_options = stacked(
    signal_of_vectors_option,
    descriptor_option,
    click.option(
        "--dimension",
        type=click.IntRange(1),
        help=f"Length of a descriptor, with --descriptor projected. [default: {PROJECTED_SIZE}]",
    ),
    partial_option,
    threads_option,
)

cluster_options = stacked(
    signal_of_vectors_option,
    descriptor_option,
    click.option(
        "--clusters",
        "num_clusters",
        type=click.IntRange(1),
        help="Number of clusters. [default: 2 sqrt(N) for N samples, at least 8 samples each]",
    ),
)


# ---------------------------------------------------------------- where the work is done

LOCAL = "local"
"""That of the LOCAL_ENGINES which the machine's devices call for."""
ENGINE_NAMES = [LOCAL, *(name for name in ENGINES if name not in LOCAL_ENGINES)]

engine_options = stacked(
    click.option(
        "--engine",
        type=click.Choice(ENGINE_NAMES),
        default=LOCAL,
        show_default=True,
        help="Where the work is done: on this machine, or on a Ray cluster (needs grace-store[ray]).",
    ),
    click.option(
        "--address",
        metavar="auto|HOST:PORT",
        help="Address of the Ray cluster. [default: one is started on this machine and ends with the command]",
    ),
)


def is_local(engine: str, address: str | None) -> bool:
    """Return whether the work is for this machine; only a Ray cluster has an address."""
    if address is not None and engine != "ray":
        raise click.UsageError("--address names a Ray cluster: give --engine ray with it.")
    return engine == LOCAL


@contextmanager
def spread(engine: str, address: str | None, threads: int | None, listener: Listener) -> Iterator[Threads]:
    """Yield what works on the blocks of a store: threads of this process, or the tasks of a Ray cluster."""
    if is_local(engine, address):
        yield threads
        return
    from grace_store.run.engines.engine import EngineOptions

    with ENGINES[engine].tasks(EngineOptions(engine, address=address), threads, listener) as tasks:
        yield tasks
