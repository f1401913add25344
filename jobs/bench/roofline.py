"""What extraction could reach on a GPU: operations and bytes of every stage, against what the hardware can do.

    python -m jobs.bench.roofline

Arithmetic, not measurement, but for what the CPU cores do, which was timed. ROOFLINE.md holds the tables and says what
follows from them.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from jobs.bench.findings import markdown, shown


@dataclass(frozen=True, slots=True)
class Model:
    """Qwen3-VL-2B: the language model and the tower that sees."""

    hidden: int = 2048
    layers: int = 28
    heads: int = 16
    kv_heads: int = 8
    head_size: int = 128
    intermediate: int = 6144
    vocabulary: int = 151_936
    vision_hidden: int = 1024
    vision_layers: int = 24
    vision_intermediate: int = 4096
    num_mergers: int = 4
    """One at the end, three for layers in between."""
    merged_patches: int = 4
    """Patches that become one token."""

    @property
    def layer_parameters(self) -> int:
        queries, keys = self.heads * self.head_size, self.kv_heads * self.head_size
        return 2 * self.hidden * (queries + keys) + 3 * self.hidden * self.intermediate

    @property
    def vision_layer_parameters(self) -> int:
        return 4 * self.vision_hidden**2 + 2 * self.vision_hidden * self.vision_intermediate

    @property
    def merger_parameters(self) -> int:
        wide = self.merged_patches * self.vision_hidden
        return wide * (wide + self.hidden)

    @property
    def vision_parameters(self) -> int:
        return self.vision_layers * self.vision_layer_parameters + self.num_mergers * self.merger_parameters


@dataclass(frozen=True, slots=True)
class Machine:
    """An A800-80GB (an A100 but for its links to others), and the computer around it."""

    flops: float = 312e12
    """bfloat16, dense, summed in float32."""
    float32_flops: float = 19.5e12
    """Without tensor cores, as float32 products are made unless TF32 is allowed."""
    bandwidth: float = 2.04e12
    to_host: float = 25e9
    disk: float = 3e9
    num_gpus: int = 8
    compute_share: float = 0.5
    """Of its peak that a product of this size usually reaches."""
    bandwidth_share: float = 0.8


@dataclass(frozen=True, slots=True)
class Sample:
    """A trace with an image of 640 x 480."""

    num_patches: int = 1200
    num_prompt_tokens: int = 100
    num_response_tokens: int = 350
    num_segments: int = 10

    def num_tokens(self, model: Model) -> int:
        return self.num_patches // model.merged_patches + self.num_prompt_tokens + self.num_response_tokens


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage for one sample on the GPU."""

    name: str
    flops: float
    num_bytes: float
    in_float32: bool = False

    @property
    def intensity(self) -> float:
        return self.flops / self.num_bytes

    def peak_seconds(self, machine: Machine) -> float:
        return max(self.flops / self._peak(machine), self.num_bytes / machine.bandwidth)

    def seconds(self, machine: Machine) -> float:
        """Return what it takes at the shares of peak that are usual."""
        return max(
            self.flops / (self._peak(machine) * machine.compute_share),
            self.num_bytes / (machine.bandwidth * machine.bandwidth_share),
        )

    def bound(self, machine: Machine) -> str:
        by_flops = self.flops / (self._peak(machine) * machine.compute_share)
        by_bytes = self.num_bytes / (machine.bandwidth * machine.bandwidth_share)
        return "compute" if by_flops >= by_bytes else "bandwidth"

    def _peak(self, machine: Machine) -> float:
        return machine.float32_flops if self.in_float32 else machine.flops


MODEL, MACHINE, SAMPLE = Model(), Machine(), Sample()
TEXT_SAMPLE = Sample(num_patches=0, num_prompt_tokens=700)
"""Without an image, the prompt twice as long as the response."""
TRACES = (1, 2, 4, 8, 16)
"""Of one question, all in one unit."""
BATCH_TOKENS = 16_384
HEAD_TOKENS = 512
LOGIT_PASSES = 9
"""Reads and writes of a block's float32 logits after they are made: maximum (1), shift (2), exponential (2), entropy
(2), sum (1), averaging (1)."""

IMAGE = "image of 640 x 480: open, resize, cut into patches"
CPU_MILLISECONDS = {
    IMAGE: 30.5,
    "read the record, render, tokenise, find segments": 1.9,
    "Gram, int8, zstd, digests, write, sync": 2.4,
}
"""Of one core, for one sample: what the family "host" of the benchmark measured, as RESULTS.md has it."""


def stages(model: Model = MODEL, sample: Sample = SAMPLE, traces: int = 1) -> list[Stage]:
    """Return what the GPU does for a sample that shares its prompt with others, so many traces in all.

    Weights are read once a batch, the head's once a block.
    """
    tokens = sample.num_tokens(model)
    samples_a_batch = BATCH_TOKENS / tokens
    return [
        *([_once_for(traces, _vision(model, sample, samples_a_batch))] if sample.num_patches else []),
        _language(model, tokens, samples_a_batch)
        if traces == 1
        else _shared_language(model, sample, samples_a_batch, traces),
        *_head(model, sample, samples_a_batch),
    ]


def _once_for(traces: int, stage: Stage) -> Stage:
    return Stage(stage.name, stage.flops / traces, stage.num_bytes / traces, stage.in_float32)


def _shared_language(model: Model, sample: Sample, samples_a_batch: float, traces: int) -> Stage:
    """Return the prompt's pass, once for all traces, and the response's, which looks back at all of the prompt."""
    response = sample.num_response_tokens
    prompt = sample.num_tokens(model) - response
    queries, keys = model.heads * model.head_size, model.kv_heads * model.head_size
    of_prompt = _once_for(traces, _language(model, prompt, samples_a_batch))
    of_response = _language(model, response, samples_a_batch)
    # Every query of the response with every key of the prompt: two products of two operations each.
    looking_back = 4 * response * prompt * queries * model.layers
    # Keys and values of the prompt are read, written before those of the response, and read by the attention.
    copied = 2 * 3 * 2 * prompt * keys * model.layers
    return Stage(
        of_prompt.name,
        of_prompt.flops + of_response.flops + looking_back,
        of_prompt.num_bytes + of_response.num_bytes + copied,
    )


def _vision(model: Model, sample: Sample, samples_a_batch: float) -> Stage:
    patches, hidden, layers = sample.num_patches, model.vision_hidden, model.vision_layers
    layer_weights = layers * model.vision_layer_parameters
    merger_weights = model.num_mergers * model.merger_parameters
    attention = 4 * patches**2 * hidden * layers
    flops = 2 * patches * layer_weights + attention + 2 * patches // model.merged_patches * merger_weights
    values = 25 * hidden + 4 * model.vision_intermediate
    num_bytes = 2 * patches * layers * values + 2 * (layer_weights + merger_weights) / samples_a_batch
    return Stage("vision tower", flops, num_bytes)


def _language(model: Model, tokens: int, samples_a_batch: float) -> Stage:
    queries, keys = model.heads * model.head_size, model.kv_heads * model.head_size
    weights = model.layers * model.layer_parameters
    # Causal: half of all pairs, two products of two operations each.
    flops = 2 * tokens * weights + 2 * tokens**2 * queries * model.layers
    # Values that the layer's kernels read and write: norms, projections, rotation, attention, gate, residuals.
    values = 15 * model.hidden + 6 * queries + 6 * keys + 6 * model.intermediate
    return Stage("language model", flops, 2 * tokens * model.layers * values + 2 * weights / samples_a_batch)


def _head(model: Model, sample: Sample, samples_a_batch: float) -> list[Stage]:
    tokens, weights = sample.num_response_tokens, model.hidden * model.vocabulary
    logits = tokens * model.vocabulary
    blocks = tokens / HEAD_TOKENS
    means = sample.num_segments * model.vocabulary
    return [
        Stage("logits of response tokens", 2 * tokens * weights, 4 * logits + 2 * weights * blocks),
        Stage("softmax, residual, averaging", 12 * logits, 4 * (LOGIT_PASSES * logits + 3 * means)),
        # The weights are turned to float32 in slices: read as two bytes, written and read as four.
        Stage(
            "W' (p - y), one product a segment",
            2 * sample.num_segments * weights,
            10 * weights / samples_a_batch + 4 * means,
            in_float32=True,
        ),
    ]


def gpu_seconds(*, at_peak: bool = False, traces: int = 1, sample: Sample = SAMPLE) -> float:
    several = stages(sample=sample, traces=traces)
    return sum(stage.peak_seconds(MACHINE) if at_peak else stage.seconds(MACHINE) for stage in several)


def shape_table() -> str:
    tokens = SAMPLE.num_tokens(MODEL)
    rows = [
        [
            "language model",
            f"{MODEL.layers} layers, hidden size {MODEL.hidden}, intermediate {MODEL.intermediate}, "
            f"{MODEL.heads} heads and {MODEL.kv_heads} of keys, of {MODEL.head_size}; "
            f"{MODEL.layers * MODEL.layer_parameters / 1e9:.2f} G weights",
        ],
        [
            "head",
            f"{MODEL.vocabulary:,} tokens, {MODEL.hidden * MODEL.vocabulary / 1e9:.2f} G weights, shared with the "
            "embeddings",
        ],
        [
            "vision tower",
            f"{MODEL.vision_layers} layers, hidden size {MODEL.vision_hidden}, intermediate "
            f"{MODEL.vision_intermediate}; {MODEL.num_mergers} mergers; "
            f"{MODEL.vision_parameters / 1e9:.2f} G weights",
        ],
        [
            "sample",
            f"{SAMPLE.num_patches:,} patches as {SAMPLE.num_patches // MODEL.merged_patches} tokens, "
            f"{SAMPLE.num_prompt_tokens} of the prompt, {SAMPLE.num_response_tokens} of the response in "
            f"{SAMPLE.num_segments} segments: {tokens} tokens",
        ],
        [
            "GPU",
            f"{MACHINE.flops / 1e12:.0f} TFLOP/s bfloat16, {MACHINE.float32_flops / 1e12:.1f} float32, "
            f"{MACHINE.bandwidth / 1e12:.2f} TB/s: balance at {MACHINE.flops / MACHINE.bandwidth:.0f} "
            "operations a byte",
        ],
        [
            "usual",
            f"{MACHINE.compute_share:.0%} of the peak of products, {MACHINE.bandwidth_share:.0%} of the bandwidth",
        ],
    ]
    return markdown(("what", "numbers"), rows)


def stage_table() -> str:
    total = gpu_seconds()
    rows = [
        [
            stage.name,
            shown(stage.flops / 1e9),
            shown(stage.num_bytes / 1e6),
            shown(stage.intensity),
            f"{stage.peak_seconds(MACHINE) * 1e3:.2f}",
            f"{stage.seconds(MACHINE) * 1e3:.2f}",
            f"{stage.seconds(MACHINE) / total:.1%}",
            stage.bound(MACHINE),
        ]
        for stage in stages()
    ]
    flops, num_bytes = (sum(getattr(stage, name) for stage in stages()) for name in ("flops", "num_bytes"))
    rows.append(
        [
            "all",
            shown(flops / 1e9),
            shown(num_bytes / 1e6),
            "",
            f"{gpu_seconds(at_peak=True) * 1e3:.2f}",
            f"{total * 1e3:.2f}",
            "100.0%",
            "",
        ]
    )
    headings = ("stage, one sample", "GFLOP", "MB", "FLOP/B", "ms at peak", "ms usual", "share", "bound by")
    return markdown(headings, rows)


def host_table() -> str:
    """Return what leaves the GPU, and what the cores do."""
    values = SAMPLE.num_segments * MODEL.hidden
    stored = values + 4 * SAMPLE.num_segments * (SAMPLE.num_segments + 1) // 2 + 32 * SAMPLE.num_segments
    rows = [
        [
            "copy vectors to main memory",
            f"{4 * values / 1e3:.0f} kB",
            f"{4 * values / MACHINE.to_host * 1e3:.4f}",
            "bus",
        ],
        ["write to disk", f"{stored / 1e3:.0f} kB", f"{stored / MACHINE.disk * 1e3:.4f}", "disk"],
        *([name, "", f"{milliseconds:.1f}", "one core"] for name, milliseconds in CPU_MILLISECONDS.items()),
    ]
    return markdown(("beside the GPU, one sample", "bytes", "ms", "of"), rows)


def node_table() -> str:
    """Return rates, hours and cores for one GPU and for a node."""
    useful = sum(stage.flops for stage in stages())
    core_seconds = sum(CPU_MILLISECONDS.values()) / 1e3
    text_seconds = core_seconds - CPU_MILLISECONDS[IMAGE] / 1e3
    rows = []
    for num_gpus in (1, MACHINE.num_gpus):
        for name, seconds in (("at peak", gpu_seconds(at_peak=True)), ("usual", gpu_seconds())):
            rate = num_gpus / seconds
            rows.append(
                [
                    str(num_gpus),
                    name,
                    f"{rate:.0f}",
                    f"{1e6 / rate / 3600:.1f}",
                    f"{useful / seconds / MACHINE.flops:.0%}",
                    f"{rate * core_seconds:.1f}",
                    f"{rate * text_seconds:.1f}",
                    f"{rate * 21e3 / 1e6:.0f}",
                ]
            )
    headings = (
        "GPUs",
        "",
        "samples/s",
        "hours for 1M",
        "of peak FLOP/s",
        "cores",
        "cores without images",
        "MB/s written",
    )
    return markdown(headings, rows)


def group_table() -> str:
    """Return what several traces of a question save, with an image and of text alone, on a node."""
    rows = []
    for name, sample in (("image of 640 x 480", SAMPLE), ("text, prompt of 700 tokens", TEXT_SAMPLE)):
        alone = gpu_seconds(sample=sample)
        for traces in TRACES:
            seconds = gpu_seconds(sample=sample, traces=traces)
            rate = MACHINE.num_gpus / seconds
            useful = sum(stage.flops for stage in stages(sample=sample, traces=traces))
            rows.append(
                [
                    name,
                    str(traces),
                    shown(useful / 1e9),
                    f"{seconds * 1e3:.2f}",
                    f"{seconds / alone:.2f}",
                    f"{rate:.0f}",
                    f"{1e6 / rate / 3600:.2f}",
                ]
            )
    headings = (
        "prompt",
        "traces a question",
        "GFLOP",
        "ms usual",
        "of those alone",
        "samples/s, 8 GPUs",
        "hours for 1M",
    )
    return markdown(headings, rows)


def tables() -> dict[str, str]:
    return {
        "Shapes": shape_table(),
        "GPU": stage_table(),
        "Host": host_table(),
        "Nodes": node_table(),
        "Groups": group_table(),
    }


def main() -> None:
    """Print all tables."""
    for name, table in tables().items():
        sys.stdout.write(f"{name}\n\n{table}\n\n")


if __name__ == "__main__":
    main()
