"""Run the trainings of a trial. Any number of processes share them by locks."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from grace_store.base import events
from grace_store.base.errors import Interrupted, NothingUsable
from grace_store.base.events import Listener, Note, StepTaken
from grace_store.base.files import try_lock
from grace_store.base.states import SetAside
from grace_store.base.text import counted, duration
from grace_store.base.training_settings import WarmupOptions
from grace_store.base.watch import Watch
from grace_store.data.answers import is_same_result, result_of
from grace_store.data.folders import default_image_folder
from grace_store.data.sample import Sample
from grace_store.pool.records import UnitLoader, open_dataset
from grace_store.store.opened import Store
from grace_store.study.trial_documents import (
    Arm,
    PlannedRun,
    TrialItem,
    TrialJob,
    TrialRun,
    TrialSamples,
)
from grace_store.train.recipe import order_updates
from grace_store.values.subset_trial import FEWEST_ITEMS

if TYPE_CHECKING:
    from grace_store.train.training import Training, TrainingSample

POLL_SECONDS = 0.5
"""Between two looks at whether another process is done with its training."""
TIMED_ITEMS = 8


class TrialRunner:
    """Runs the trainings that no other process has claimed, one after the other, with one model on one device."""

    def __init__(self, job: TrialJob, listener: Listener, stop: Event) -> None:
        self.job, self.listener, self.stop = job, listener, stop
        self._training: Training | None = None
        self._items: list[TrainingSample] = []
        self._item_samples: list[Sample] = []
        """The held-out samples that the items were made from."""
        self._encoded: dict[int, TrainingSample | SetAside] = {}

    @property
    def samples(self) -> TrialSamples:
        return self.job.samples

    @property
    def options(self) -> WarmupOptions:
        return self.job.request.options

    @property
    def images(self) -> str:
        """The folder that relative image paths of the pool start from."""
        return self.job.plan.origin["images"]

    @property
    def model(self) -> str:
        return self.job.plan.origin["model"]

    def finish(self, runs: Sequence[PlannedRun], tell: Callable[[PlannedRun, TrialRun], None]) -> None:
        """Return when all these trainings are over, done here or by others; raise Interrupted if asked to stop."""
        waiting = list(runs)
        while waiting:
            left = []
            has_trained = False
            for run in waiting:
                is_over, is_mine = self._take(run, tell)
                has_trained |= is_mine
                if not is_over:
                    left.append(run)
            waiting = left
            if waiting and not has_trained and self.stop.wait(POLL_SECONDS):
                raise Interrupted("Stopped while other processes train; run the same command again to go on.")

    def _take(self, run: PlannedRun, tell: Callable[[PlannedRun, TrialRun], None]) -> tuple[bool, bool]:
        """Run a training unless it is over or claimed; return whether it is over, and whether it ran here."""
        if self.job.read(run) is not None:
            return True, False
        with try_lock(self.job.lock(run)) as is_mine:
            if not is_mine or self.job.read(run) is not None:
                return self.job.read(run) is not None, False
            if self.stop.is_set():
                raise Interrupted("Stopped between two trainings; run the same command again to go on.")
            found = self._train(run)
            self.job.finish(run, found)
        tell(run, found)
        return True, True

    def cost(self, arm: Arm) -> tuple[float, float]:
        """Return the seconds that an update and a whole training take on this device, timed on a few samples."""
        training, spec = self.training(), self.job.plan.spec
        usable = self._usable(arm.positions[: 4 * spec.training.batch_size].tolist())
        batch = [each for each, _ in usable][: spec.training.batch_size]
        with Watch(self.options.patience, self.listener) as watch, watch.over("the first update"):
            seconds = training.update_seconds((batch * spec.training.batch_size)[: spec.training.batch_size])
            timed = self._items[:TIMED_ITEMS]
            began = time.perf_counter()
            training.losses(timed)
            if spec.generate:
                training.answers(timed, spec.max_new_tokens)
        measuring = (time.perf_counter() - began) / len(timed) * len(self._items)
        return seconds, spec.num_updates * seconds + measuring

    def training(self) -> Training:
        """Load the model, and make the held-out items ready, when they are first needed."""
        if self._training is None:
            from grace_store.train.training import Training

            self.listener(Note(f"Loading {Path(self.model).name}."))
            spec = self.job.plan.spec.training
            self._training = Training(self.model, spec, self.options)
            self._read_items(self._training)
        return self._training

    def _read_items(self, training: Training) -> None:
        store = self.samples.held_out_store
        is_of_pool = store is self.samples.store
        samples = _read(store, self.job.request.data if is_of_pool else None, self.samples.held_out.tolist())
        images = self.images if is_of_pool else default_image_folder([file.path for file in store.plan.files])
        for sample, made in zip(samples, training.encode(samples, images), strict=True):
            if not isinstance(made, SetAside):
                self._items.append(made)
                self._item_samples.append(sample)
        if len(self._items) < FEWEST_ITEMS:
            raise NothingUsable(
                f"{len(self._items)} of the {len(samples)} held-out items can be read by the model as asked; at least "
                f"{FEWEST_ITEMS} are wanted. Raise --max-length, or hold others out."
            )

    def _usable(self, positions: Sequence[int]) -> list[tuple[TrainingSample, int]]:
        """Return the samples at some positions that can be trained on, each with its row."""
        new = [int(place) for place in positions if int(place) not in self._encoded]
        if new:
            samples = _read(self.samples.store, self.job.request.data, new)
            self._encoded |= dict(zip(new, self.training().encode(samples, self.images), strict=True))
        rows = self.samples.store.column("sample_row")
        found = ((self._encoded[int(place)], int(rows[int(place)])) for place in positions)
        return [(made, row) for made, row in found if not isinstance(made, SetAside)]

    def _used(self, run: PlannedRun) -> tuple[list[tuple[TrainingSample, int]], int]:
        """Return the samples that a training uses, each with its row, and how many were left out to find them.

        They are the first of its first epoch, so no others need to be read; all that are usable if it has several.
        """
        spec, positions = self.job.plan.spec, run.arm.positions
        rows = self.samples.store.column("sample_row")[positions].astype("int64").tolist()
        order = order_updates(rows, run.seed, len(rows), 1)[0]
        num_wanted, num_seen = spec.training.batch_size * spec.num_updates, 0
        used: list[tuple[TrainingSample, int]] = []
        while len(used) < num_wanted and num_seen < len(order):
            some = order[num_seen : num_seen + num_wanted - len(used)]
            used += self._usable(positions[some].tolist())
            num_seen += len(some)
        return used, num_seen - len(used)

    def _train(self, run: PlannedRun) -> TrialRun:
        from grace_store.train.training import TrainingSet, weigh

        training, spec = self.training(), self.job.plan.spec
        usable, num_left_out = self._used(run)
        if not usable:
            raise NothingUsable(f"None of the {len(run.arm.positions)} samples of {run.arm.name} can be trained on.")
        rows = [row for _, row in usable]
        steps = order_updates(rows, run.seed, spec.training.batch_size, spec.num_updates)
        weights = run.arm.weights
        weighed = [weigh(made, weights[row]) if row in weights else made for made, row in usable]
        data = TrainingSet(weighed, steps, ())
        place, sha256 = self.job.under_way(run), self.job.plan.fingerprint()
        place.mkdir(parents=True, exist_ok=True)
        identity = hashlib.sha256(f"{sha256}/{run.name}".encode()).hexdigest()
        training.train(data, place, identity, self._hear, self.stop, seed=run.seed)
        with Watch(self.options.patience, self.listener) as watch, watch.over("the held-out loss"):
            sums = training.losses(self._items)
        rights = self._answer(training) if spec.generate else [None] * len(self._items)
        items = [
            TrialItem(
                sample_id=sample.sample_id,
                num_tokens=len(item.learnt),
                loss=total / len(item.learnt),
                is_right=right,
            )
            for sample, item, total, right in zip(self._item_samples, self._items, sums.tolist(), rights, strict=True)
        ]
        return TrialRun.sealed(
            plan_sha256=sha256,
            round=run.round,
            arm=run.arm.name,
            seed=run.seed,
            num_samples=len(usable),
            num_left_out=num_left_out,
            loss=_last_loss(place, spec.num_updates),
            items=tuple(items),
        )

    def _answer(self, training: Training) -> list[bool | None]:
        """Return whether the model's own answer to each item is right; None where what is right is not clear."""
        with Watch(self.options.patience, self.listener) as watch, watch.over("the answers"):
            answers = training.answers(self._items, self.job.plan.spec.max_new_tokens)
        return [
            _is_right(answer, sample.segments[-1]) for answer, sample in zip(answers, self._item_samples, strict=True)
        ]

    def _hear(self, event: events.Event) -> None:
        """Pass on the updates and warnings of a training; its other messages are those of a warm-up."""
        if isinstance(event, StepTaken | events.Warned):
            self.listener(event)


def _is_right(answer: str | None, meant: str) -> bool | None:
    right = result_of(meant)
    if right is None:
        return None
    found = None if answer is None else result_of(answer)
    return found is not None and is_same_result(found, right)


def _read(store: Store, data: Sequence[str] | None, positions: Sequence[int]) -> list[Sample]:
    with open_dataset(store, data, by_content=False) as dataset:
        return UnitLoader(store, dataset).read_some(positions)


def _last_loss(place: Path, num_updates: int) -> float:
    """Return the mean loss over the tokens, as they count, of the last tenth of the updates."""
    from grace_store.train.loss_log import LOSSES, read_entries

    last = [entry for entry in read_entries(place / LOSSES) if entry["step"] > num_updates - max(1, num_updates // 10)]
    weights = [each.get("weight", each["num_tokens"]) for each in last]
    return float(sum(each["loss"] * weight for each, weight in zip(last, weights, strict=True)) / sum(weights))


def all_seconds(run_seconds: float, num_runs: int, num_devices: int) -> float:
    """Return how long some trainings take on all devices at once."""
    return run_seconds * -(-num_runs // num_devices)


def say_cost(cost: tuple[float, float], num_updates: int, num_runs: int, num_devices: int) -> str:
    """Return in a sentence how long the trainings take; cost is the seconds of an update and of a training."""
    update_seconds, run_seconds = cost
    on = f" on {counted(num_devices, 'device')}" if num_devices > 1 else ""
    return (
        f"{counted(num_runs, 'training')} of {num_updates} updates to do: an update takes {update_seconds:.2g} s, a "
        f"training {duration(run_seconds)}, all of them {duration(all_seconds(run_seconds, num_runs, num_devices))}"
        f"{on}, less if the answer is clear early."
    )
