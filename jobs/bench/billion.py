"""The arithmetic of a billion samples on 64 nodes of 8 GPUs: time, bytes, requests, money. SCALE.md holds its tables.

Nothing is measured here. Layout and numbers of objects come from the code of the format; prices, speeds and the shape
of model and traces are the assumptions below, printed with the results.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from math import ceil

import numpy as np

from grace_store.base.metadata import Plan
from grace_store.base.settings import DataSpec, ExtractSpec, ModelIdentity, Storage
from grace_store.store.layout import SAMPLES_PER_CHUNK, default_samples_per_unit, sample_arrays, signal_arrays
from grace_store.store.storages import num_packed

HOUR = 3600.0
GB = 1e9


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What is taken for granted; MEANING says what each is."""

    num_samples: int = 10**9
    num_steps: int = 9
    hidden_size: int = 2048
    tokens: int = 1500
    response_tokens: int = 500
    body_parameters: float = 1.4e9
    num_layers: int = 28
    vocabulary: int = 151_936
    vision_parameters: float = 0.4e9
    image_patches: int = 1024
    peak_flops: float = 312e12
    utilisation: float = 0.40
    num_nodes: int = 64
    gpus_per_node: int = 8
    record_bytes: int = 4_000
    image_bytes: int = 200_000
    id_bytes: int = 24
    dollars_per_gpu_hour: float = 1.5
    dollars_per_1000_puts: float = 0.005
    dollars_per_1000_gets: float = 0.0004
    dollars_per_gb_month: float = 0.023
    request_seconds: float = 0.03
    requests_at_once: int = 16
    part_bytes: int = 32 << 20
    listing_seconds: float = 0.1
    understand_seconds: float = 100e-6
    plan_serial_seconds: float = 25e-6
    plan_processes: int = 32
    commit_seconds: float = 0.4e-3
    score_seconds: float = 10e-6
    score_threads: int = 32
    traces: int = 8

    @property
    def num_gpus(self) -> int:
        return self.num_nodes * self.gpus_per_node


MEANING = {
    "num_samples": "samples N",
    "num_steps": "steps K of each",
    "hidden_size": "length d of a vector",
    "tokens": "tokens T of a sample, those of its image among them",
    "response_tokens": "tokens Tr of its response",
    "traces": "traces n of a question, where questions have several, all in one unit",
    "body_parameters": "parameters B of Qwen3-VL-2B's text model, embedding aside",
    "num_layers": "its layers L",
    "vocabulary": "its vocabulary V",
    "vision_parameters": "parameters I of its vision tower",
    "image_patches": "patches P of a sample's image",
    "peak_flops": "FLOP/s of an A800 in bfloat16, dense",
    "utilisation": "share of them that is used (0.35 to 0.45)",
    "num_nodes": "nodes",
    "gpus_per_node": "GPUs of a node",
    "record_bytes": "bytes of a record",
    "image_bytes": "bytes of its image",
    "id_bytes": "bytes of its id",
    "dollars_per_gpu_hour": "$ for an hour of a GPU",
    "dollars_per_1000_puts": "$ for 1000 PUT or LIST",
    "dollars_per_1000_gets": "$ for 1000 GET",
    "dollars_per_gb_month": "$ for a GB stored for a month",
    "request_seconds": "seconds of a small request",
    "requests_at_once": "requests under way at a time, of one process",
    "part_bytes": "bytes of a part, in which larger objects go up",
    "listing_seconds": "seconds of a listing of 1000 keys",
    "understand_seconds": "seconds to understand a record, on one core",
    "plan_serial_seconds": "seconds of planning a record that only one process can do",
    "plan_processes": "processes that understand records",
    "commit_seconds": "seconds to parse, check and add up a commit, on one core",
    "score_seconds": "seconds to score a sample, on one core",
    "score_threads": "cores that score",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the arithmetic."""

    what: str
    formula: str
    value: str


@dataclass(frozen=True, slots=True)
class Layout:
    """What a store of so many samples is made of, by the format's own code; every sample has K steps."""

    given: Assumptions

    @property
    def samples_per_unit(self) -> int:
        return default_samples_per_unit(self.given.num_samples)

    @property
    def num_units(self) -> int:
        return ceil(self.given.num_samples / self.samples_per_unit)

    @property
    def num_plan_chunks(self) -> int:
        """Of each array of the plan."""
        return ceil(self.given.num_samples / SAMPLES_PER_CHUNK)

    @property
    def num_plan_arrays(self) -> int:
        return sum(array.dims[0] == "sample" for array in sample_arrays(1, 1))

    @property
    def puts_per_unit(self) -> int:
        """Requests that write a unit: one a chunk and the commit; in parts, one each, one to begin and one to end."""
        parts = [ceil(size / self.given.part_bytes) for size in self.chunk_bytes("int8").values()]
        return 1 + sum(1 if number == 1 else number + 2 for number in parts)

    @property
    def objects_per_unit(self) -> int:
        return len(self.chunk_bytes("int8")) + 1

    def chunk_bytes(self, storage: Storage) -> dict[str, int]:
        """Return the size of a full unit's chunk of every array before compression."""
        given, per_unit = self.given, self.samples_per_unit
        plan = Plan(
            spec=DataSpec(format="explicit"),
            files=(),
            num_records=given.num_samples,
            num_samples=given.num_samples,
            set_aside={},
            samples_per_unit=per_unit,
            num_units=self.num_units,
            rows_per_unit=per_unit * (given.num_steps + 1),
            gram_per_unit=per_unit * int(num_packed(np.array(given.num_steps + 1))),
            tokens_per_unit=per_unit * given.response_tokens,
            samples_sha256="",
            flagged={},
            created_by="",
        )
        model = ModelIdentity(
            architecture="",
            hidden_size=given.hidden_size,
            vocab_size=given.vocabulary,
            config="",
            weights="",
            tokenizer="",
        )
        arrays = signal_arrays(plan, ExtractSpec(model=model, rendering="template", storage=storage))
        return {array.name: array.chunk_bytes for array in arrays if array.is_per_unit}


def report(given: Assumptions | None = None) -> str:
    """Return the assumptions and all that follows from them, as Markdown."""
    given = given or Assumptions()
    parts = [
        "### Assumptions\n",
        _table(("assumption", "value"), [(MEANING[f.name], _amount(getattr(given, f.name))) for f in fields(given)]),
    ]
    for title, rows in (
        ("Computing", _computing(given)),
        ("Bytes", _bytes(given)),
        ("Requests", _requests(given)),
        ("Planning, counting, checking, scoring", _bookkeeping(given)),
        ("The network of a node", _network(given)),
    ):
        body = _table(("what", "formula", "result"), [(row.what, row.formula, row.value) for row in rows])
        parts += [f"### {title}\n", body]
    return "\n".join(parts)


def sample_flops(given: Assumptions) -> dict[str, float]:
    """Return the operations that a sample's pass takes, part by part."""
    head = given.vocabulary * given.hidden_size
    return {
        "body": 2 * given.body_parameters * given.tokens,
        "attention": 2 * given.num_layers * given.hidden_size * given.tokens**2,
        "head": 2 * head * (given.response_tokens + given.num_steps + 1),
        "vision": 2 * given.vision_parameters * given.image_patches,
    }


def shared_flops(given: Assumptions) -> float:
    """Return the same of a sample that shares the pass over its prompt with other traces of the question."""
    prompt, response = given.tokens - given.response_tokens, given.response_tokens
    computed = prompt / given.traces + response
    # Pairs of a query and a key: of the prompt's own once, of the response's with both.
    pairs = prompt**2 / 2 / given.traces + response * prompt + response**2 / 2
    alone = sample_flops(given)
    body = 2 * given.body_parameters * computed
    return body + 4 * given.num_layers * given.hidden_size * pairs + alone["head"] + alone["vision"] / given.traces


def sample_seconds(given: Assumptions) -> float:
    """Return the seconds that one GPU takes for a sample."""
    return sum(sample_flops(given).values()) / (given.peak_flops * given.utilisation)


def _computing(given: Assumptions) -> Iterator[Row]:
    flops = sample_flops(given)
    formulas = {
        "body": "2 B T",
        "attention": "2 L d T^2 (causal)",
        "head": "2 V d (Tr + K + 1): logits of the response, one product a segment",
        "vision": "2 I P",
    }
    for name, formula in formulas.items():
        yield Row(f"FLOPs of a sample: {name}", formula, f"{flops[name]:.2e}")
    yield Row("FLOPs of a sample", "sum", f"{sum(flops.values()):.2e}")
    seconds = sample_seconds(given)
    hours = seconds * given.num_samples / HOUR
    yield Row("GPU seconds of a sample", "FLOPs / (peak x utilisation)", f"{seconds:.4f}")
    yield Row("GPU hours", "N x that / 3600", f"{hours:,.0f}")
    yield Row("hours on all GPUs", "GPU hours / GPUs", f"{hours / given.num_gpus:.1f}")
    yield Row("price of the GPUs", "GPU hours x $", f"${hours * given.dollars_per_gpu_hour:,.0f}")
    share = shared_flops(given) / sum(flops.values())
    yield Row(
        "the same with n traces a question, the prompt run once",
        "2 B ((T - Tr) / n + Tr) + attention of as many + head + vision / n",
        f"{share:.2f} x: {share * hours:,.0f} GPU hours, ${share * hours * given.dollars_per_gpu_hour:,.0f}",
    )
    per_unit = seconds * Layout(given).samples_per_unit
    yield Row("a unit on one GPU, so lost at most when it is killed", "S x GPU seconds", f"{per_unit:.0f} s")


def stored_bytes(given: Assumptions, storage: Storage) -> float:
    """Return the bytes of a sample in a signal, before compression."""
    layout = Layout(given)
    return sum(layout.chunk_bytes(storage).values()) / layout.samples_per_unit


def _plan_bytes(given: Assumptions) -> int:
    return given.id_bytes + sum(
        array.chunk_bytes // SAMPLES_PER_CHUNK
        for array in sample_arrays(1, 1)
        if array.dims[0] == "sample" and array.dtype != "string"
    )


def _bytes(given: Assumptions) -> Iterator[Row]:
    layout = Layout(given)
    for storage in ("int8", "int4"):
        chunks = layout.chunk_bytes(storage)
        size = stored_bytes(given, storage)
        total = size * given.num_samples
        yield Row(f"{storage}: vectors of a unit", "S (K+1) d, or half of it", _size(chunks["segment_vector"]))
        yield Row(f"{storage}: bytes of a sample", "all arrays of section 4 of FORMAT.md", f"{size:,.0f}")
        yield Row(f"{storage}: all samples", "N x that", _size(total))
        month = total / GB * given.dollars_per_gb_month
        yield Row(f"{storage}: price of a month", "GB x $", f"${month:,.0f}")
    chunks = layout.chunk_bytes("int8")
    small = {name: size for name, size in chunks.items() if name != "segment_vector"}
    smallest, largest = min(small, key=lambda name: small[name]), max(small, key=lambda name: small[name])
    yield Row(
        "the other chunks of a unit",
        "4 S (K+1) and the like",
        f"{_size(small[smallest])} ({smallest}) to {_size(small[largest])} ({largest})",
    )
    yield Row("the plan", "N x (its columns + an id)", _size(given.num_samples * _plan_bytes(given)))
    yield Row("what scoring reads", "N x (Gram + tokens + state + 3 columns of the plan)", _size(_scored_bytes(given)))
    floats = 4 * layout.samples_per_unit * (given.num_steps + 1) * given.hidden_size
    yield Row("memory of a unit under way", "4 S (K+1) d", _size(floats))


def _scored_bytes(given: Assumptions) -> float:
    layout = Layout(given)
    chunks = layout.chunk_bytes("int8")
    read = sum(chunks[name] for name in ("sample_gram", "segment_num_tokens", "sample_state")) / layout.samples_per_unit
    return given.num_samples * (read + 4 + 8 + given.id_bytes)


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests of one phase to an object store."""

    puts: int = 0
    gets: int = 0
    lists: int = 0

    def dollars(self, given: Assumptions) -> float:
        return ((self.puts + self.lists) * given.dollars_per_1000_puts + self.gets * given.dollars_per_1000_gets) / 1000


GETS_TO_LOAD = 8
"""Chunks of the plan that a worker reads for a unit: seven columns for its records, the steps again for their rows."""
GETS_TO_SCORE = 4
"""Of a unit: its commit, Grams, token counts and states."""
COLUMNS_TO_SCORE = 3


def phase_requests(given: Assumptions) -> dict[str, tuple[str, Requests]]:
    """Return each phase's requests with their formula; constant ones, a few dozen a phase, are left out."""
    layout = Layout(given)
    units, chunks = layout.num_units, layout.num_plan_chunks
    objects, puts = layout.objects_per_unit, layout.puts_per_unit
    files = units * objects + chunks * layout.num_plan_arrays
    pages, commit_pages = ceil(files / 1000), ceil(units / 1000)
    return {
        "plan": (f"{layout.num_plan_arrays} PUT a chunk of the plan", Requests(puts=layout.num_plan_arrays * chunks)),
        "extract": (
            f"{puts} PUT and {GETS_TO_LOAD} GET a unit (vectors in parts), then a GET a commit for the totals",
            Requests(units * puts, units * (GETS_TO_LOAD + 1), commit_pages),
        ),
        "status, extract with nothing to do": ("a LIST for 1000 commits", Requests(lists=commit_pages)),
        "status of an unfinished store": ("and a GET a commit", Requests(gets=units, lists=commit_pages)),
        "verify": ("a LIST for 1000 objects, a GET a commit", Requests(gets=units, lists=pages)),
        "verify --deep": ("and every chunk", Requests(gets=units * objects, lists=pages)),
        "score, or a sweep": (
            f"{GETS_TO_SCORE} GET a unit, {COLUMNS_TO_SCORE} a chunk of the plan",
            Requests(gets=GETS_TO_SCORE * units + COLUMNS_TO_SCORE * chunks, lists=commit_pages),
        ),
    }


def _requests(given: Assumptions) -> Iterator[Row]:
    layout = Layout(given)
    objects = layout.objects_per_unit
    yield Row("samples of a unit S", "a power of two near N/1024, at most 4096", f"{layout.samples_per_unit:,}")
    yield Row("units U", "N / S", f"{layout.num_units:,}")
    plan_files = layout.num_plan_arrays * layout.num_plan_chunks
    yield Row(
        "objects",
        f"{objects} U + {layout.num_plan_arrays} N / {SAMPLES_PER_CHUNK}",
        f"{layout.num_units * objects + plan_files:,}",
    )
    for name, (formula, requests) in phase_requests(given).items():
        counts = [
            f"{count:,} {kind}"
            for kind, count in (("PUT", requests.puts), ("GET", requests.gets), ("LIST", requests.lists))
            if count
        ]
        yield Row(name, formula, f"{', '.join(counts)}: ${requests.dollars(given):,.2f}")


def _bookkeeping(given: Assumptions) -> Iterator[Row]:
    layout, n = Layout(given), given.num_samples
    requests = {name: each for name, (_, each) in phase_requests(given).items()}
    planning = n * max(given.plan_serial_seconds, given.understand_seconds / given.plan_processes)
    yield Row("plan", "N x max(serial, understand / processes)", _time(planning))
    yield Row(
        "plan, in one process",
        "N x (serial + understand)",
        _time(n * (given.plan_serial_seconds + given.understand_seconds)),
    )
    yield Row("plan: memory", "17 bytes x N: 16 for an id, 1 for a number of steps", _size(17 * n))
    listing = requests["status, extract with nothing to do"].lists * given.listing_seconds
    yield Row("status, extract with nothing to do", "LIST x seconds of a listing", _time(listing))
    reading = given.request_seconds / given.requests_at_once
    commits = layout.num_units * max(reading, given.commit_seconds)
    yield Row("status of an unfinished store", "and U x max(request / at once, commit)", _time(listing + commits))
    pages = requests["verify"].lists * given.listing_seconds
    yield Row("verify", "LIST x seconds of a listing + the same", _time(pages + commits))
    files = layout.num_units * layout.objects_per_unit + layout.num_plan_arrays * layout.num_plan_chunks
    yield Row("verify: memory", "about 400 bytes an object", _size(400 * files))
    scoring = max(n * given.score_seconds / given.score_threads, requests["score, or a sweep"].gets * reading)
    yield Row("score, or a sweep's values", "max(N x seconds / cores, GET x request / at once)", _time(scoring))
    yield Row("score: memory", "a block of 16384 samples a thread", "flat")
    yield Row("sweep's comparisons: memory", "about 60 bytes x N", _size(60 * n))


def _network(given: Assumptions) -> Iterator[Row]:
    seconds = sample_seconds(given) * given.num_samples / given.num_gpus
    rate = given.num_samples / seconds / given.num_nodes
    yield Row("samples a second and node", "GPUs of a node / GPU seconds of a sample", f"{rate:.0f}")
    yield Row(
        "in: records and images",
        "that x (record + image)",
        f"{_size(rate * (given.record_bytes + given.image_bytes))}/s",
    )
    yield Row("out: a store in int8", "that x bytes of a sample", f"{_size(rate * stored_bytes(given, 'int8'))}/s")
    puts = phase_requests(given)["extract"][1].puts / seconds
    yield Row("PUT a second, all nodes", "PUT of extract / its seconds", f"{puts:.0f}")


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _amount(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _size(num_bytes: float) -> str:
    for unit, scale in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= scale:
            return f"{num_bytes / scale:.3g} {unit}"
    return f"{num_bytes:.0f} bytes"


def _time(seconds: float) -> str:
    for unit, scale in (("h", HOUR), ("min", 60.0)):
        if seconds >= 2 * scale:
            return f"{seconds / scale:.1f} {unit}"
    return f"{seconds:.0f} s"
