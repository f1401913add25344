"""Every rehearsal: its name, its commands, and what must hold afterwards."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from grace_store.base.metadata import SharedImages
from grace_store.store.backend import COMPLETIONS
from tests.rehearsals import checks
from tests.rehearsals.checks import Check, Scene
from tests.rehearsals.stage import WARMUP, Play, Stage

HANGS = "may hang"
LOST = r"[Tt]he device pretend:0 is lost"
NAMED = r"Worker 1 \(device 1\) died; units .*device pretend:0 is lost"
"""A worker counts its only device from 0; who hands out units knows it by the machine's number."""
TOLERANCE = 2e-4

TEXT = ("--model", "{text}", "--data", "{traces}", "--min-steps", "2", "--dtype", "float32")
FIGURES = ("--model", "{vision}", "--data", "{pictures}", "--min-steps", "2", "--dtype", "float32")
QUESTIONS = ("--model", "{text}", "--data", "{questions}", "--min-steps", "2", "--dtype", "float32")
ALBUMS = ("--model", "{vision}", "--data", "{albums}", "--min-steps", "2", "--dtype", "float32")
KINDS = {
    "text": TEXT,
    "packed text": (*TEXT, "--packing"),
    "text with an adapter": (*TEXT, "--adapter", "{adapter}"),
    "gradients": (*TEXT, "--adapter", "{adapter}", "--kind", "gradient", "--dimension", "64"),
    "text and images": FIGURES,
    "packed text and images": (*FIGURES, "--packing"),
    "shared prompts": QUESTIONS,
    "shared images": ALBUMS,
}
"""What is extracted, by name."""
SHARED: dict[str, SharedImages | None] = {"shared prompts": None, "shared images": "image"}
"""Kinds whose prompts are shared, and what is of their images."""


def extract(kind: str, *more: str, unit: int = 4) -> tuple[str, ...]:
    return ("extract", "{out}", *KINDS[kind], "--unit-samples", str(unit), *more)


def reference(kind: str, devices: int, *more: str, unit: int = 4) -> Callable[[Stage], Path]:
    """Return where the store of a kind is that one device, or a CPU, makes; made by the first that asks."""

    def find(stage: Stage) -> Path:
        name = "-".join(["reference", *kind.split(), str(devices), str(unit), *(each.strip("-") for each in more)])
        where = stage.folder / f"{name}.zarr"
        words = extract(kind, *(() if devices else ("--device", "cpu")), *more, unit=unit)
        stage.once(name, lambda: _is_complete(where) or stage.prepared(Play(words, devices=devices), where))
        return where

    return find


def _is_complete(store: Path) -> bool:
    return any((store / COMPLETIONS).glob("*"))


def one_device(kind: str) -> Check:
    return checks.same_bytes(reference(kind, 1))


@dataclass(frozen=True)
class Rehearsal:
    """Commands in their order, and what must hold after the last."""

    name: str
    plays: tuple[Play, ...]
    checks: tuple[Check, ...] = ()
    prepare: Callable[[Stage, Play], Play] | None = None
    """Completes the first command by what only a run before it can tell."""

    @property
    def num_processes(self) -> int:
        """About how many times torch is imported, which is what a rehearsal costs."""
        return sum(
            1 + (play.ranks or play.devices * (play.devices > 1 and "extract" in play.words)) for play in self.plays
        )

    def failures(self, stage: Stage, out: Path) -> list[str]:
        """Play it and return what is wrong."""
        plays = list(self.plays)
        if self.prepare is not None:
            plays[0] = self.prepare(stage, plays[0])
        scene = Scene(stage, out, [stage.play(play, out) for play in plays])
        wrong = [text for check in checks.EVERY for text in check(scene)]
        # What is not there cannot be compared.
        return wrong or [text for check in self.checks for text in check(scene)]


def _scarce(share: float) -> Callable[[Stage, Play], Play]:
    """Return what gives a device less memory than the same command needs without a limit."""

    def prepare(stage: Stage, play: Play) -> Play:
        name = f"peak-{hash(play.words)}"
        free = stage.once(name, lambda: stage.prepared(play, stage.folder / f"{name}.zarr"))
        return replace(play, memory=str(int(share * free.peak_bytes())))

    return prepare


def _extractions() -> list[Rehearsal]:
    made = []
    for kind in KINDS:
        near = checks.near(reference(kind, 0), TOLERANCE)
        shares = (checks.shares(SHARED[kind]),) if kind in SHARED else ()
        made.append(
            Rehearsal(f"extract {kind} on one device", (Play(extract(kind)),), (near, one_device(kind), *shares))
        )
    for kind in ("text", "gradients", "text and images"):
        unit = 2 if kind == "text and images" else 4  # at least one for each device
        eight = Play(extract(kind, unit=unit), devices=8)
        same = checks.same_bytes(reference(kind, 1, unit=unit))
        made.append(Rehearsal(f"extract {kind} on eight devices", (eight,), (same, checks.parent_hands_out)))
    return made


def _launched() -> list[Rehearsal]:
    ranks = Play(extract("text"), devices=8, ranks=8)
    ray = Play(extract("text", "--engine", "ray"), devices=2)
    half = ("extract", "{out}", "--model", "{text}", "--data", "{traces}", "--min-steps", "2")
    return [
        Rehearsal(
            "extract text by eight ranks of torchrun", (ranks,), (one_device("text"), checks.ranks_have_their_own)
        ),
        Rehearsal("extract text by Ray on two devices", (ray,), (one_device("text"), checks.parent_opens_nothing)),
        Rehearsal(
            "extract by Ray with its second device lost at once",
            (replace(ray, faults="1=fail@1"),),
            (one_device("text"), checks.says(r"device pretend:1 is lost")),
        ),
        Rehearsal(
            "extract in the dtype that the device has",
            (Play((*half, "--unit-samples", "4")),),
            (checks.near(reference("text", 0), 0.1), checks.is_whole(12)),
        ),
    ]


def _memory() -> list[Rehearsal]:
    again = Play(("{out}",), module="tests.rehearsals.split_again")
    made = []
    # Units so large that a batch takes more than projecting, and than the probes of a model with images.
    for kind, unit in {"text": 16, "gradients": 32, "text and images": 16, "shared prompts": 32}.items():
        scarce = Play(extract(kind, unit=unit))
        near = checks.near(reference(kind, 0, unit=unit), TOLERANCE)
        split = (checks.is_split, near, checks.says("does not fit on pretend:0"))
        made.append(Rehearsal(f"extract {kind} in too little memory", (scarce, again), split, _scarce(0.8)))
    nothing = replace(Play(extract("text")), memory="100000", code=1)
    told = checks.says("not enough memory", "cannot be loaded|cannot be run|does not run")
    return [*made, Rehearsal("extract in less memory than the model", (nothing,), (told,))]


def _lost() -> list[Rehearsal]:
    verify = Play(("verify", "{out}", "--model", "{text}"))
    fidelity = Play(("fidelity", "{out}", "--model", "{text}", "--samples", "10"))
    doctor = Play(("doctor", *TEXT))
    warmup = Play(("warmup", "--model", "{text}", "--data", "{traces}", *WARMUP, "--out", "{out}"))
    again = Play(extract("text"))
    lost = [
        ("extract while loading", replace(again, faults="0=fail@5"), again),
        ("extract in its last units", replace(again, faults="0=fail@4000"), again),
        ("extract with images", replace(Play(extract("text and images")), faults="0=fail@2500"), None),
        ("extract of gradients", replace(Play(extract("gradients")), faults="0=fail@3000"), None),
        ("doctor", replace(doctor, faults="0=fail@1500"), doctor),
        ("warmup while loading", replace(warmup, faults="0=fail@5"), None),
        ("warmup", replace(warmup, faults="0=fail@2500"), warmup),
    ]
    made = [
        Rehearsal(f"{name}, the device lost", tuple(filter(None, (replace(play, code=1), then))), (checks.says(LOST),))
        for name, play, then in lost
    ]
    for name, play, at in (("verify", verify, 900), ("fidelity", fidelity, 1500)):
        plays = (again, replace(play, faults=f"0=fail@{at}", code=1), play)
        made.append(Rehearsal(f"{name}, the device lost", plays, (checks.says(LOST, among=1),)))
    return [
        *made,
        Rehearsal(
            # Whoever is faster: a worker comes to its probe in any case, and one that is left alone to every unit.
            "extract on two devices, one lost in its probe and the other in a unit",
            (Play(extract("text"), devices=2, faults="0=fail@5,1=fail@4000"),),
            (one_device("text"), checks.says(r"Worker 0 \(device 0\) does not start.*is lost", NAMED)),
        ),
        Rehearsal(
            "extract on eight devices, one of them lost from the beginning",
            (Play(extract("text"), devices=8, faults="3=fail@1"),),
            (one_device("text"), checks.says(r"Worker 3 \(device 3\) does not start.*is lost")),
        ),
        Rehearsal(
            "warmup by two ranks, one device lost",
            (replace(warmup, devices=2, ranks=2, faults="1=fail@2500", code=1),),
            (checks.says("The device pretend:1 is lost", "Another rank has ended"),),
        ),
    ]


def _hung() -> list[Rehearsal]:
    hang = Play(extract("text", "--patience", "5"), faults="0=hang@2500", until=HANGS)
    again = Play(extract("text"))
    warmup = Play(("warmup", "--model", "{text}", "--data", "{traces}", *WARMUP, "--out", "{out}", "--patience", "5"))
    what = checks.says(r"has not finished (unit \d+|loading the model).* within 5 seconds .*kill -9")
    several = replace(hang, devices=2, faults="1=hang@1200")  # in its probes, to which it comes in any case
    return [
        Rehearsal("extract, the device hangs", (hang, again), (what, one_device("text"))),
        Rehearsal("extract, the device hangs in its probe", (replace(hang, faults="0=hang@1200"), again), (what,)),
        Rehearsal(
            "extract, one of two devices hangs",
            (several, replace(again, devices=2)),
            (checks.says(r"Worker 1 \(device 1\): The device has not finished"), one_device("text")),
        ),
        Rehearsal(
            "extract by Ray, one of two devices hangs",
            (replace(several, words=(*several.words, "--engine", "ray")), replace(again, devices=2)),
            (checks.says(r"The worker on .*: The device has not finished"), one_device("text")),
        ),
        Rehearsal(
            "warmup, the device hangs",
            (replace(warmup, faults="0=hang@2500", until=HANGS), warmup),
            (checks.says(r"has not finished (step \d+|the loss before)"),),
        ),
    ]


def _looked_at() -> list[Rehearsal]:
    """The commands that look at models and stores, and the warm-up."""
    store = Play(extract("text"))
    to_verify = ("verify", "{out}", "--deep", "--model", "{text}", "--units", "3")
    to_measure = ("fidelity", "{out}", "--model", "{text}", "--samples", "10", "--json")
    memory = checks.says(r"Go\b", r"of the memory of pretend:0 left")
    warmup = Play(("warmup", "--model", "{text}", "--data", "{traces}", *WARMUP, "--out", "{out}", "--json"))
    on_cpu = replace(warmup, words=(*warmup.words[:-3], "--out", "{out}-cpu", "--device", "cpu", "--json"), devices=0)
    figures = ("warmup", "--model", "{vision}", "--data", "{pictures}", *WARMUP, "--out", "{out}", "--json")
    return [
        Rehearsal("doctor with text", (Play(("doctor", *TEXT)),), (memory,)),
        Rehearsal("doctor with images, eight devices", (Play(("doctor", *FIGURES), devices=8),), (memory,)),
        Rehearsal("verify on one device", (store, Play(to_verify)), (checks.says("0 problems", among=1),)),
        Rehearsal(
            "verify on eight devices", (store, Play(to_verify, devices=8)), (checks.says("0 problems", among=1),)
        ),
        Rehearsal(
            "fidelity on one device, and on eight",
            (store, Play(to_measure), Play(to_measure, devices=8), Play((*to_measure, "--device", "cpu"), devices=0)),
            (checks.json_near(1e-3, "spaces", among=(1, 3)), checks.json_near(0.0, "spaces", among=(1, 2))),
        ),
        Rehearsal("warmup on one device", (warmup, on_cpu), (checks.json_near(1e-4, "heldout"),)),
        Rehearsal(
            "warmup by two ranks of torchrun",
            (replace(warmup, devices=2, ranks=2), on_cpu),
            (checks.json_near(1e-4, "heldout"), checks.ranks_have_their_own),
        ),
        Rehearsal("warmup with images", (Play(figures),), (checks.says("checkpoint-1"),)),
    ]


REHEARSALS: tuple[Rehearsal, ...] = tuple(
    each for make in (_extractions, _launched, _memory, _lost, _hung, _looked_at) for each in make()
)


def share(seed: int, num_processes: int) -> list[Rehearsal]:
    """Return some rehearsals, drawn by a seed, that import torch no more often than this together."""
    drawn = random.Random(seed).sample(REHEARSALS, len(REHEARSALS))
    chosen: list[Rehearsal] = []
    for each in drawn:
        if sum(one.num_processes for one in [*chosen, each]) <= num_processes:
            chosen.append(each)
    return chosen
