"""What the studies that train on real traces share: their folders, their trainings, tables and command line."""

from __future__ import annotations

import argparse
import logging
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import Field

from grace_store.base.events import Event, Note, Warned
from grace_store.base.files import whole_file
from grace_store.base.finding import Cell, Estimate, Finding
from grace_store.base.settings import Frozen
from grace_store.base.training_settings import TrainingDtype, TrainingSpec, WarmupOptions
from grace_store.example import demo_model
from grace_store.study.trial import trial
from grace_store.study.trial_documents import TrialRequest, TrialSpec
from jobs.study.corruptions import CLEAN, CORRUPTIONS
from jobs.study.ending import end

BATCH_TOKENS = 1024
QUALITIES = (CLEAN, *CORRUPTIONS)

log = logging.getLogger("study")


class TrialSettings(Frozen):
    """The trainings that all subsets get."""

    num_updates: int = Field(ge=1)
    batch_size: int = Field(ge=1)
    learning_rate: float = Field(gt=0)
    num_seeds: int = Field(ge=1)
    num_random: int = Field(ge=2)
    dtype: TrainingDtype


class Settings(Frozen):
    """All that decides the numbers."""

    seed: int = Field(ge=0)
    trial: TrialSettings


S = TypeVar("S", bound=Settings)


@dataclass(frozen=True, slots=True)
class Study(Generic[S]):
    """What is asked for, and where."""

    settings: S
    data: Path
    out: Path
    model: Path
    num_processes: int

    @property
    def work(self) -> Path:
        """Folder of what can be made again."""
        return self.out / "work"

    @property
    def store(self) -> Path:
        """The store of the traces to choose from."""
        return self.work / "pool.zarr"

    def ids(self, name: str) -> Path:
        """The list of a subset's ids; kept, because it decides numbers."""
        return self.out / "subsets" / f"{name}.txt"

    def train(
        self,
        folder: str,
        subsets: Sequence[Path],
        *,
        weighted: Sequence[tuple[Path, Path]] = (),
        max_new_tokens: int | None = None,
    ) -> Finding:
        """Do the missing trainings, and return what they come to; with `max_new_tokens`, models also answer."""
        chosen = self.settings.trial
        answers = {} if max_new_tokens is None else {"generate": True, "max_new_tokens": max_new_tokens}
        request = TrialRequest(
            subsets=list(subsets),
            weighted=list(weighted),
            store=str(self.store),
            model=str(self.model),
            spec=TrialSpec(
                held_out=str(self.work / "heldout.jsonl"),
                num_updates=chosen.num_updates,
                num_random=chosen.num_random,
                num_seeds=chosen.num_seeds,
                training=TrainingSpec(
                    seed=self.settings.seed,
                    batch_size=chosen.batch_size,
                    learning_rate=chosen.learning_rate,
                    dtype=chosen.dtype,
                ),
                **answers,
            ),
            options=WarmupOptions(threads=1, batch_tokens=BATCH_TOKENS, gradient_checkpointing=False),
            devices=("cpu",) * self.num_processes if self.num_processes > 1 else (),
        )
        return trial(self.out / folder, request, listener=tell)


def tell(event: Event) -> None:
    if isinstance(event, Note | Warned):
        log.info(event.text)


def write_text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as partial:
        partial.write_text(text, encoding="utf-8")


def against_random(found: Finding) -> Iterator[tuple[Mapping[str, Cell], tuple[str, str, str]]]:
    """Yield the row of each subset, with its held-out loss, that of random ones and the difference, as texts."""
    for row in found.tables["subsets"]:
        losses = [float(str(arm["heldout_loss"])) for arm in found.tables["arms"] if arm["subset"] == row["subset"]]
        yield row, (f"{losses[0]:.4f}", f"{sum(losses[1:]) / len(losses[1:]):.4f}", interval(row["difference"]))


def interval(found: Cell) -> str:
    assert isinstance(found, Estimate)
    return f"{found.value:+.4f} ({found.low:+.4f} to {found.high:+.4f})"


def how_trained(settings: TrialSettings, found: Finding, random: str) -> str:
    """Return the note of a table of losses: what was found, and from how many trainings of which kind."""
    return (
        f"{found.conclusion}\n\nLoss per token of {found.numbers['num_items']} untouched test solutions, lower is "
        f"better, after {settings.num_updates} updates of {settings.batch_size} traces; {settings.num_random} "
        f"{random}; {found.numbers['num_runs']} trainings."
    )


def shares(ids: Iterable[str], quality: dict[str, str]) -> tuple[str, ...]:
    """Return what share of samples each quality has, in percent."""
    counts = Counter(quality[each] for each in ids)
    return tuple(f"{100 * counts[name] / counts.total():.1f}" for name in QUALITIES)


def main(
    arguments: list[str] | None, kind: type[S], settings: Path, doc: str | None, run: Callable[[Study[S]], str]
) -> int:
    """Parse, run, and write the tables; `settings` is the file of the study's own settings."""
    parser = argparse.ArgumentParser(prog=f"python -m jobs.study.{settings.stem}", description=doc)
    parser.add_argument("data", type=Path, help="folder with gsm8k/train.jsonl and gsm8k/test.jsonl")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results, and of work/ beside them")
    parser.add_argument("--settings", type=Path, default=settings, help=f"the settings (default: {settings.name})")
    parser.add_argument("--model", type=Path, help="another model (default: SmolLM2-135M-Instruct)")
    parser.add_argument("--processes", type=int, default=2, help="trainings at a time, one thread each (default: 2)")
    chosen = parser.parse_args(arguments)
    asked = read_settings(chosen.settings, kind)
    study = Study(asked, chosen.data, chosen.out, chosen.model or demo_model(), chosen.processes)
    return end(log, lambda: run(study))


def read_settings(path: Path, kind: type[S]) -> S:
    return kind.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
