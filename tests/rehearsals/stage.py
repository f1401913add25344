"""What rehearsals are played on: tiny models, a few traces, and commands in processes that have the pretend device."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.pretend.processes import environment

TIMEOUT_SECONDS = 900.0
"""After which a command that says nothing more is killed; loaded machines take minutes to import torch."""
STOP_SECONDS = 8.0
"""How long a command that was asked to stop twice may take before it is killed, as its own words advise."""
DATASETS = ("traces", "pictures", "questions", "albums")
TRACEBACK = "Traceback (most recent call last)"


@dataclass(frozen=True)
class Play:
    """One command, the devices it has, and how it is to end. Words in braces are the stage's places."""

    words: tuple[str, ...]
    devices: int = 1
    """0: the machine has no accelerator."""
    memory: str = ""
    faults: str = ""
    ranks: int = 0
    """Started by torchrun in this number of processes."""
    code: int = 0
    until: str = ""
    """What a command that never ends says before it is stopped."""
    module: str = "grace_store"


@dataclass(frozen=True)
class Played:
    """How a command ended, and what its processes counted on their devices."""

    play: Play
    code: int
    out: str
    err: str
    processes: list[dict[str, Any]]

    def peak_bytes(self) -> int:
        """Return the most memory that any device had in use."""
        return max(each["memory"]["peak_bytes"] for process in self.processes for each in process["devices"].values())


@dataclass
class Stage:
    """A folder of inputs, made when first asked for unless they are there, and shared by all rehearsals."""

    folder: Path
    _made: dict[str, Any] = field(default_factory=dict)
    _locks: dict[str, threading.Lock] = field(default_factory=lambda: defaultdict(threading.Lock))

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """Return what a name stands for, made by the first that asks."""
        with self._locks[name]:
            if name not in self._made:
                self._made[name] = make()
            return self._made[name]

    def place(self, name: str) -> Path:
        """Return where an input is, made if it is not there."""
        makers = {
            "text": _make_text_model,
            "vision": _make_vision_model,
            "traces": _make_traces,
            "pictures": _make_pictures,
            "questions": _make_questions,
            "albums": _make_albums,
            "adapter": self._make_adapter,
        }
        path = self.folder / f"{name}.jsonl" if name in DATASETS else self.folder / name
        self.once(name, lambda: path.exists() or makers[name](path))
        return path / "checkpoint-3" if name == "adapter" else path

    def _make_adapter(self, path: Path) -> None:
        words = ("warmup", "--model", "{text}", "--data", "{traces}", *WARMUP, "--out", str(path), "--device", "cpu")
        self.prepared(Play(words, devices=0), path)

    def prepared(self, play: Play, out: Path) -> Played:
        """Run a command that others build on."""
        played = self.play(play, out)
        if played.code:
            raise RuntimeError(f"{play.words[0]} for others ended with {played.code}: {played.err[-2000:]}")
        return played

    def play(self, play: Play, out: Path) -> Played:
        """Run a command; {out} among its words is the path given."""
        names = ("text", "vision", *DATASETS, "adapter")
        places = {name: self.place(name) for name in names if any(f"{{{name}}}" in word for word in play.words)}
        words = [word.format(**places, out=out) for word in play.words]
        counters = out.parent / f"{out.name}-counters-{time.monotonic_ns()}"
        launcher = ["torch.distributed.run", "--nproc-per-node", str(play.ranks), "--master-addr", "127.0.0.1"]
        launcher += ["--master-port", str(_free_port()), "-m"]
        command = [sys.executable, "-m", *(launcher if play.ranks else []), play.module, *words]
        code, told, err = _finished(command, _variables(play, counters, self.folder), play.until)
        processes = [json.loads(path.read_text()) for path in sorted(counters.glob("*.json"))]
        shutil.rmtree(counters, ignore_errors=True)
        return Played(play, code, told, err, processes)


WARMUP = ("--min-steps", "2", "--ratio", "0.25", "--batch-size", "4", "--heldout", "4", "--dtype", "float32")
"""A warm-up of three steps."""


def _variables(play: Play, counters: Path, folder: Path) -> dict[str, str]:
    settings: dict[str, object] = {"devices": play.devices or 1, "counters": counters}
    settings |= {name: value for name in ("memory", "faults") if (value := getattr(play, name))}
    own = {"GRACE_STORE_CACHE": str(folder / "cache"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    kept = {name: value for name, value in environment(**settings).items() if name not in ("RANK", "WORLD_SIZE")}
    return {**kept, **own, **({} if play.devices else {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})}


def _free_port() -> int:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _finished(command: Sequence[str], variables: dict[str, str], until: str) -> tuple[int, str, str]:
    """Return how a command ended and what it said; one that says what is waited for is stopped as a user would."""
    process = subprocess.Popen(
        command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    told: dict[str, list[str]] = {"out": [], "err": []}
    said = threading.Event()

    def listen(name: str, stream: Any) -> None:
        for line in stream:
            told[name].append(line)
            if until and until in line:
                said.set()

    assert process.stdout is not None
    assert process.stderr is not None
    streams = (("out", process.stdout), ("err", process.stderr))
    threads = [threading.Thread(target=listen, args=each, daemon=True) for each in streams]
    for thread in threads:
        thread.start()
    try:
        _wait(process, said if until else None)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for thread in threads:
            thread.join(STOP_SECONDS)
        for _, stream in streams:
            stream.close()
    return process.returncode, "".join(told["out"]), "".join(told["err"])


def _wait(process: subprocess.Popen[str], said: threading.Event | None) -> None:
    """Wait for the end, or for the words after which to stop a command: Ctrl-C twice, then without mercy."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        if said is not None and said.wait(0.2):
            for _ in range(2):
                process.send_signal(signal.SIGINT)
                time.sleep(1.0)  # two keys, not one
            break
        time.sleep(0.05)
    try:
        process.wait(STOP_SECONDS if said is not None else max(deadline - time.monotonic(), 0.1))
    except subprocess.TimeoutExpired:
        return


# ---------------------------------------------------------------- inputs


def _make_text_model(path: Path) -> None:
    from tests.tiny_models import tiny_text_model

    tiny_text_model("qwen3", path)


def _make_vision_model(path: Path) -> None:
    from tests.tiny_vision_models import tiny_vision_model

    tiny_vision_model("qwen3_vl", path)


def _make_traces(path: Path) -> None:
    from tests.warmups import write_traces

    write_traces(path, 48)


def _make_pictures(path: Path) -> None:
    """Write 16 traces about a picture each."""
    _write_about(path, "figures", [("How many apples?", [i]) for i in range(16)])


def _make_albums(path: Path) -> None:
    """Write 16 traces about two of five pictures each, twos of them of one question; no question has another's two."""
    _write_about(path, "album", [(f"How many of {i // 2}?", [0, 1 + i // 2 % 4]) for i in range(16)])


def _write_about(path: Path, name: str, asked: Sequence[tuple[str, Sequence[int]]]) -> None:
    """Write a trace for each question, with the pictures of these numbers."""
    from tests.tiny_vision_models import picture

    folder = path.parent / name
    folder.mkdir(exist_ok=True)
    for i in {number for _, numbers in asked for number in numbers}:
        picture(56 + 4 * (i % 3), 60 + 5 * (i % 2), i).save(folder / f"{i}.png")
    records = []
    for i, (question, numbers) in enumerate(asked):
        steps = [f"Step {j}: He buys {j} more." for j in range(1, 3 + i % 2)]
        about = {"id": f"figure-{i}", "prompt": "<image>" * len(numbers) + question}
        images = [f"{name}/{number}.png" for number in numbers]
        records.append({**about, "images": images, "steps": steps, "answer": f"The answer is {i}."})
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def _make_questions(path: Path) -> None:
    """Write four traces of each of twelve questions."""
    from tests.warmups import write_traces

    traces = [json.loads(line) for line in write_traces(path, 48).read_text().splitlines()]
    asked = [{**trace, "prompt": traces[i // 4]["prompt"]} for i, trace in enumerate(traces)]
    path.write_text("".join(json.dumps(record) + "\n" for record in asked))
