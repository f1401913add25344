"""grace-store warmup"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from grace_store.base.text import sparkline
from grace_store.cli.console import ProgressDisplay, print_json, stoppable
from grace_store.cli.options import LocalPath, as_json, config_option, data_options, images_option, pick, stacked

EPILOG = """\b
Examples:
  grace-store warmup --store traces.zarr --model ./Qwen3-1.7B --out warmup --checkpoints 0.25,0.5,0.75,1
  grace-store warmup --out warmup                               # go on after any interruption
  torchrun --nproc-per-node 8 -m grace_store warmup ...         # on 8 GPUs
  grace-store extract --store traces.zarr --model ./Qwen3-1.7B --adapter warmup
"""


class FractionsType(click.ParamType[tuple[str, ...]]):
    """Numbers above 0 and at most 1, separated by commas."""

    name = "F,F,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        from grace_store.model.lora.recipe import check_fraction

        if isinstance(value, tuple):
            return value
        given = [str(each).strip() for each in value] if isinstance(value, list) else str(value).split(",")
        try:
            return tuple(check_fraction(each.strip()) for each in given)
        except ValueError as error:
            self.fail(str(error), param, ctx)


recipe_options = stacked(
    click.option("--ratio", help="Share of the planned samples to train on. [default: 0.05]"),
    click.option("--seed", type=click.IntRange(0), help="Which samples, their order, the start. [default: 0]"),
    click.option("--checkpoints", type=FractionsType(), help="Fractions of the steps to keep. [default: 1]"),
    click.option("--heldout", "num_heldout", type=click.IntRange(0), help="Samples to measure on. [default: 32]"),
    click.option("--rank", type=click.IntRange(1), help="Of the adapter. [default: 8]"),
    click.option("--alpha", type=float, help="The adapter's scale times its rank. [default: 32]"),
    click.option("--learning-rate", type=float, help="At its highest. [default: 1e-4]"),
    click.option("--warmup-ratio", type=float, help="Share of steps with rising rate. [default: 0.05]"),
    click.option("--schedule", type=click.Choice(["cosine", "linear", "constant"]), help="[default: cosine]"),
    click.option("--weight-decay", type=float, help="[default: 0.1]"),
    click.option("--beta1", type=float, help="Of AdamW. [default: 0.9]"),
    click.option("--beta2", type=float, help="Of AdamW. [default: 0.95]"),
    click.option("--epsilon", type=float, help="Of AdamW. [default: 1e-8]"),
    click.option("--max-grad-norm", type=float, help="Longer gradients are shortened. [default: 1]"),
    click.option("--batch-size", type=click.IntRange(1), help="Samples in a step, over all devices. [default: 16]"),
    click.option("--epochs", "num_epochs", type=click.IntRange(1), help="[default: 1]"),
    click.option("--rendering", type=click.Choice(["template", "verbatim", "plain"]), help="As for extract."),
    click.option("--system", help="System prompt for samples that have none."),
    click.option("--max-length", type=click.IntRange(2), help="Leave longer conversations out. [default: 4096]"),
    click.option("--text-only/--no-text-only", default=None, help="Leave images out."),
    click.option("--min-pixels", type=click.IntRange(1), help="Enlarge smaller images. [default: the model's]"),
    click.option("--max-pixels", type=click.IntRange(1), help="Shrink larger images. [default: the model's]"),
    click.option("--train-eos/--no-train-eos", default=None, help="Learn the end of the turn too. [default: yes]"),
    click.option("--dtype", type=click.Choice(["float32", "bfloat16"]), help="Of the frozen model."),
    click.option("--attention", type=click.Choice(["sdpa", "eager", "flash_attention_2"]), help="Kernel."),
)
"""What changes the numbers; frozen in the recipe."""

run_options = stacked(
    click.option("--batch-tokens", type=click.IntRange(1), default=8192, show_default=True, help="In one pass."),
    click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N."),
    click.option("--loader-threads", type=click.IntRange(1), default=4, show_default=True, help="Reading ahead."),
    click.option("--threads", type=click.IntRange(1), help="CPU threads of each process. [default: up to 8]"),
    click.option("--gradient-checkpointing/--no-gradient-checkpointing", default=True, show_default=True,
                 help="Less memory for more time."),
    click.option("--save-seconds", type=click.FloatRange(0), default=300.0, show_default=True,
                 help="How much a killed run may lose."),
)  # fmt: skip
"""What changes only the speed; may differ from run to run."""


@click.command(epilog=EPILOG)
@click.option("--out", required=True, type=LocalPath(path_type=Path, file_okay=False), help="Folder of checkpoints.")
@click.option("--model", type=click.Path(), help="Model folder (safetensors) or .gguf file.")
@click.option("--store", type=click.Path(), help="A planned store, whose samples to choose from.")
@click.option("--data", multiple=True, type=click.Path(), help="Dataset, planned in OUT/plan.zarr without --store.")
@images_option
@data_options
@recipe_options
@run_options
@config_option
@as_json
def warmup(
    out: Path, model: str | None, store: str | None, data: tuple[str, ...], unit_samples: int | None, *,
    as_json: bool, **wishes: Any,
) -> None:  # fmt: skip
    """Train a LoRA adapter on a small random subset, keeping checkpoints along the way.

    The subset is chosen from the planned samples by the seed alone and written to OUT/subset.json. Run the same
    command again after any interruption: it goes on, and ends with the same adapter.
    """
    from grace_store.base.settings import DataRequest
    from grace_store.model.lora.loss_log import read_losses
    from grace_store.model.lora.recipe import WarmupOptions, WarmupRequest
    from grace_store.run.engines.choice import current_ranks
    from grace_store.run.warmup import WarmupJob, draw_losses
    from grace_store.run.warmup import warmup as run

    ranks = current_ranks()
    job = WarmupJob(
        out=out,
        model=model,
        store=store,
        data=data,
        data_request=DataRequest(**pick(wishes, DataRequest.model_fields)),
        request=WarmupRequest(**pick(wishes, WarmupRequest.model_fields)),
        options=WarmupOptions(**pick(wishes, WarmupOptions.model_fields)),
        samples_per_unit=unit_samples,
        images=wishes["images"],
        ranks=ranks,
    )
    with ProgressDisplay(quiet=not ranks.is_first) as display, stoppable() as stop:
        done = run(job, display, stop)
    if not ranks.is_first:
        return
    picture = draw_losses(out)
    trained, heldout = read_losses(out)
    if as_json:
        losses = [{"step": step, "heldout_loss": loss} for step, loss in heldout]
        print_json({"out": str(out), **done.model_dump(mode="json"), "heldout": losses})
        return
    click.echo(f"Loss      {sparkline([loss for _, loss in trained])}  {trained[0][1]:.4f} to {trained[-1][1]:.4f}")
    if heldout:
        click.echo(f"Held out  {'  '.join(f'step {step}: {loss:.4f}' for step, loss in heldout)}")
    left_out = f", {done.num_left_out} left out" if done.num_left_out else ""
    click.echo(
        f"{out}: {done.num_steps} steps on {done.num_samples} of {done.num_planned} samples{left_out}; "
        f"{', '.join(done.checkpoints)}; {picture}"
    )
