"""Options that several commands share, each written once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from grace_store.cli.config_files import config_option as config_option
from grace_store.run.engines import ENGINES, LOCAL_ENGINES

if TYPE_CHECKING:
    from grace_store.base.events import Listener
    from grace_store.read.blocks import Threads

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

as_json = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on stdout.")

store_argument = click.argument("store", type=click.Path())


class LocalPath(click.Path):
    """A path of this machine, where results other than stores go."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if "://" in str(value):
            self.fail(f"{value} is in a bucket, and only stores can be there. Give a local path.", param, ctx)
        return super().convert(value, param, ctx)


DESCRIPTORS = ("answer", "steps", "weighted", "projected")
"""Those of the library, which no command line waits for to be imported."""
descriptor_option = click.option(
    "--descriptor", type=click.Choice(DESCRIPTORS), help="What of a sample is compared. [default: steps]"
)


def stacked(*options: Callable[[FunctionT], FunctionT]) -> Callable[[FunctionT], FunctionT]:
    """Return one decorator for several options, shown in the order given."""

    def apply(function: FunctionT) -> FunctionT:
        for option in reversed(options):
            function = option(function)
        return function

    return apply


def given_once(context: click.Context, parameter: click.Parameter, values: tuple[Any, ...]) -> Any:
    """Return the only value of an option declared as multiple, which click would else silently take the last of."""
    if len(values) > 1:
        raise click.UsageError(f"{parameter.opts[0]} is given {len(values)} times and takes one value.", context)
    return values[0] if values else None


def data_options(function: FunctionT, *, formats: str = "see `grace-store plan --help`") -> FunctionT:
    """How records become samples; frozen in the plan."""
    return stacked(
        click.option("--format", help=f"Record format ({formats}); found out by itself if left out."),
        click.option("--splitter", help="Steps by: format, lines, paragraphs, or marker:REGEX. [default: format]"),
        click.option("--answer", help="Answer by: format, last, boxed, or marker:REGEX. [default: format]"),
        click.option("--min-steps", type=click.IntRange(1), help="Set aside traces with fewer steps. [default: 8]"),
        click.option("--max-steps", type=click.IntRange(1), help="Set aside traces with more steps. [default: 512]"),
        click.option("--unit-samples", type=click.IntRange(1), help="Samples in a unit, a power of two."),
    )(function)


def spec_options(function: FunctionT) -> FunctionT:
    """What changes the numbers; frozen in the signal."""
    return stacked(
        click.option(
            "--rendering",
            type=click.Choice(["template", "verbatim", "plain"]),
            help="The chat template with the response in it; its prompt and the response as it stands; or plain "
            "text. [default: template if there is one]",
        ),
        click.option("--system", help="System prompt for samples that have none."),
        click.option("--include-eos/--no-include-eos", default=None, help="Count the end-of-turn token as answer."),
        click.option("--max-length", type=click.IntRange(2), help="Set aside longer conversations. [default: 4096]"),
        click.option("--text-only/--no-text-only", default=None, help="Leave images out."),
        click.option("--min-pixels", type=click.IntRange(1), help="Enlarge smaller images. [default: the model's]"),
        click.option("--max-pixels", type=click.IntRange(1), help="Shrink larger images. [default: the model's]"),
        click.option("--dtype", type=click.Choice(["float32", "bfloat16", "float16"]), help="Of the model."),
        click.option("--attention", type=click.Choice(["sdpa", "eager", "flash_attention_2"]), help="Kernel."),
        click.option(
            "--storage",
            type=click.Choice(["float32", "float16", "int8", "int4"]),
            help="How vectors are kept; scores are exact in all. [default: int8]",
        ),
    )(function)


def gradient_options(function: FunctionT) -> FunctionT:
    """What changes the numbers of projected gradients; frozen in the signal."""
    return stacked(
        click.option("--kind", type=click.Choice(["proxy", "gradient"]), help="What vectors are. [default: proxy]"),
        click.option("--per", type=click.Choice(["sample", "segment"]), help="Gradients of what. [default: sample]"),
        click.option(
            "--preconditioner",
            type=click.Choice(["none", "adam"]),
            help="Plain gradients, or Adam's step from the checkpoint's moments. [default: none]",
        ),
        click.option(
            "--bias-correction/--no-bias-correction", default=None, help="Of Adam's moments. [default: no, as LESS]"
        ),
        click.option(
            "--projection",
            type=click.Choice(["rademacher", "sparse"]),
            help="Random signs everywhere, or in 4 places a parameter: fast. [default: rademacher]",
        ),
        click.option("--dimension", type=click.IntRange(1), help="Of the projected gradients. [default: 8192]"),
        click.option("--seed", type=click.IntRange(0), help="Of the projection. [default: 0]"),
        click.option(
            "--normalise/--no-normalise", default=None, help="Divide by the length. [default: yes per sample]"
        ),
    )(function)


def speed_options(function: FunctionT) -> FunctionT:
    """What changes only the speed; may differ from run to run."""
    return stacked(
        click.option(
            "--batch-tokens", type=click.IntRange(1), help="In one pass. [default: 16384; for gradients 2048]"
        ),
        click.option("--head-tokens", type=click.IntRange(1), default=512, show_default=True, help="Logits at once."),
        click.option("--packing/--no-packing", default=False, help="Batches without padding, for flash attention."),
        click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N."),
        click.option("--threads", type=click.IntRange(1), help="CPU threads of each worker. [default: up to 8]"),
        click.option("--loader-threads", type=click.IntRange(1), default=2, show_default=True, help="Reading ahead."),
    )(function)


images_option = click.option(
    "--images",
    type=click.Path(file_okay=False),
    help="Folder that image paths start from, and that none may leave. [default: as the signal was begun, else the "
    "folder of the dataset's files; if they lie in several, the one that holds them all]",
)


LOCAL = "local"
"""That of the LOCAL_ENGINES which the machine's devices call for."""
ENGINE_NAMES = [LOCAL, *(name for name in ENGINES if name not in LOCAL_ENGINES)]

engine_options = stacked(
    click.option(
        "--engine", type=click.Choice(ENGINE_NAMES), default=LOCAL, show_default=True,
        help="This machine, or a Ray cluster (extra ray).",
    ),
    click.option(
        "--address", metavar="auto|HOST:PORT",
        help="The Ray cluster's. [default: one is started on this machine alone, and ends with the command]",
    ),
)  # fmt: skip


def is_local(engine: str, address: str | None) -> bool:
    """Return whether the work is for this machine; only a Ray cluster has an address."""
    if address is not None and engine != "ray":
        raise click.UsageError("--address is that of a Ray cluster: give --engine ray with it.")
    return engine == LOCAL


@contextmanager
def spread(engine: str, address: str | None, threads: int | None, listener: Listener) -> Iterator[Threads]:
    """Yield what the blocks of a store are worked on by: threads of this process, or the tasks of a Ray cluster."""
    if is_local(engine, address):
        yield threads
        return
    from grace_store.run.engines.engine import EngineOptions

    with ENGINES[engine].tasks(EngineOptions(engine, address=address), threads, listener) as tasks:
        yield tasks


def pick(values: dict[str, Any], names: Any) -> dict[str, Any]:
    """Return the part of a command's parameters that belongs to one model."""
    return {name: values[name] for name in names if name in values}
