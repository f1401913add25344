"""Options that decide how records become samples and samples become signals, and how fast."""

from __future__ import annotations

import click

from grace_store.base.settings import SPARSE_ENTRIES, DataSpec, ExtractSpec, GradientSpec, RunOptions
from grace_store.cli.options import device_option, setting, stacked, wish
from grace_store.data.formats import FORMATS

model_option = click.option(
    "--model",
    type=click.Path(),
    help="Model: a folder with safetensors, or a .gguf file. [default: the one that was begun with]",
)

data_options = stacked(
    wish(
        DataSpec,
        "--format",
        f"Format of the records: {', '.join(FORMATS)}; `grace-store plan --help` describes them.",
        default="recognised from the records",
    ),
    wish(
        DataSpec,
        "--splitter",
        "Where steps begin: as the format has it (format), at lines, at paragraphs, or at lines that match a regular "
        r"expression (marker:REGEX, such as 'marker:^Step \d+:').",
    ),
    wish(
        DataSpec,
        "--answer",
        r"Where the answer begins: as the format has it (format), at the last step (last), at the last \boxed{} "
        "(boxed), or at the last match of a regular expression (marker:REGEX, such as 'marker:^Final answer:').",
    ),
    wish(DataSpec, "--min-steps", "Set traces with fewer steps aside."),
    wish(DataSpec, "--max-steps", "Set traces with more steps aside."),
    click.option(
        "--unit-samples",
        type=click.IntRange(1),
        help="Samples in a unit, the piece of work that is done or not done; a power of two. "
        "[default: what makes about 1000 units, at least 16]",
    ),
)
"""How records become samples; frozen in the plan."""

reading_options = stacked(
    wish(
        ExtractSpec,
        "--rendering",
        "How a conversation becomes text: the chat template with the response in it, the template's prompt followed "
        "by the response as it stands (verbatim), or plain text.",
        default="template if the model has one, else plain",
    ),
    wish(ExtractSpec, "--system", "System prompt for samples that have none.", default="no prompt"),
    wish(
        ExtractSpec,
        "--text-only",
        "Leave images out and use the text alone; without this, a text model sets samples with images aside.",
    ),
    wish(ExtractSpec, "--min-pixels", "Enlarge images with fewer pixels.", default="the processor's"),
    wish(ExtractSpec, "--max-pixels", "Shrink images with more pixels.", default="the processor's"),
    wish(ExtractSpec, "--attention", "Attention kernel of the model."),
)
"""How the model reads a sample; frozen in what is made with it."""

spec_options = stacked(
    reading_options,
    wish(ExtractSpec, "--max-length", "Set conversations with more tokens aside."),
    wish(ExtractSpec, "--include-eos", "Count the end-of-turn token as part of the answer."),
    wish(ExtractSpec, "--dtype", "Number format that the model runs in."),
    wish(ExtractSpec, "--storage", "How vectors are stored; scores are exact in all of these."),
)
"""What changes the numbers; frozen in the signal."""

gradient_options = stacked(
    wish(
        ExtractSpec,
        "--kind",
        "What vectors are: GRACE's proxy, or projected gradients over the adapter's parameters.",
    ),
    wish(GradientSpec, "--per", "With --kind gradient, take one gradient for each of these."),
    wish(
        GradientSpec,
        "--preconditioner",
        "Store plain gradients (none), or the steps that Adam would take from the checkpoint's moments.",
    ),
    wish(GradientSpec, "--bias-correction", "With --preconditioner adam, correct the moments' bias; LESS does not."),
    wish(
        GradientSpec,
        "--projection",
        f"Random projection of gradients: signs everywhere, or {SPARSE_ENTRIES} a parameter (sparse), which is faster.",
    ),
    wish(GradientSpec, "--dimension", "Length of a projected gradient."),
    wish(GradientSpec, "--seed", "Seed of the random projection."),
    wish(
        GradientSpec,
        "--normalise",
        "Scale every projected gradient to length 1.",
        default="normalise with --per sample, else no-normalise",
    ),
)
"""What changes the numbers of projected gradients; frozen in the signal."""

speed_options = stacked(
    wish(
        RunOptions,
        "--batch-tokens",
        "Tokens in one forward pass, padding included.",
        default="16384; for gradients 2048",
    ),
    setting(RunOptions, "--head-tokens", "Tokens whose logits are held in memory at a time."),
    setting(
        RunOptions, "--packing", "Run samples end to end without padding; faster with --attention flash_attention_2."
    ),
    device_option,
    wish(RunOptions, "--threads", "CPU threads of each worker.", default="one a core, at most 8"),
    setting(RunOptions, "--loader-threads", "Threads that read and tokenise samples ahead of the model."),
)
"""What changes only the speed; may differ from run to run."""
