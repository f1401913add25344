"""Run the trainings of a trial. Any number of processes share the trainings by locks."""

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
from grace_store.base.watch import Watch
from grace_store.data.answers import is_same_result, result_of
from grace_store.data.folders import default_image_folder
from grace_store.data.sample import Sample
from grace_store.pool.records import UnitLoader, open_dataset
from grace_store.store.opened import Store
from grace_store.study.trial_documents import Arm, PlannedRun, TrialItem, TrialJob, TrialRun
from grace_store.train.recipe import order_updates
from grace_store.values.subset_trial import FEWEST_ITEMS

if TYPE_CHECKING:
    from grace_store.train.training import Training, TrainingSample

POLL_SECONDS = 0.5
"""Time between two checks whether another process has finished its training."""
TIMED_ITEMS = 8
"""Held-out items that are measured to estimate the cost."""


class TrialRunner:
    """A process that runs the trainings that no other process has claimed, with one model on one device."""

    def __init__(self, job: TrialJob, listener: Listener, stop: Event) -> None:
        self.job, self.listener, self.stop = job, listener, stop
        self.samples, self.options = job.samples, job.request.options
        self.model, self.images = job.plan.origin["model"], job.plan.origin["images"]
        self._training: Training | None = None
        self._items: list[TrainingSample] = []
        self._item_samples: list[Sample] = []
        """The held-out samples that the items were made from."""
        self._encoded: dict[int, TrainingSample | SetAside] = {}

    def finish(self, runs: Sequence[PlannedRun], tell: Callable[[PlannedRun, TrialRun], None]) -> None:
        """Run these trainings, or wait for other processes to run them; raise Interrupted if stop is set."""
        waiting = list(runs)
        while waiting:
            taken = [self._take(run, tell) for run in waiting]
            waiting = [run for run, (is_over, _) in zip(waiting, taken, strict=True) if not is_over]
            has_trained = any(is_mine for _, is_mine in taken)
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
        """Return the seconds of an update and of a whole training on this device, timed on a few samples."""
        training, spec = self.training(), self.job.plan.spec
        usable = self._usable(arm.positions[: 4 * spec.training.batch_size].tolist())
        batch = [each for each, _ in usable] * spec.training.batch_size
        self.listener(Note("Timing one update and the measurement of a few held-out traces."))
        with Watch(self.options.patience, self.listener) as watch, watch.over("the first update"):
            seconds = training.update_seconds(batch[: spec.training.batch_size])
            timed = self._items[:TIMED_ITEMS]
            began = time.perf_counter()
            training.losses(timed)
            if spec.generate:
                training.answers(timed, spec.max_new_tokens)
        measuring = (time.perf_counter() - began) / len(timed) * len(self._items)
        return seconds, spec.num_updates * seconds + measuring

    def training(self) -> Training:
        """Return the training, after loading the model and encoding the held-out items at the first call."""
        if self._training is None:
            from grace_store.train.training import Training

            self.listener(Note(f"Loading {Path(self.model).name}."))
            self._training = Training(self.model, self.job.plan.spec.training, self.options)
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
                f"The model can read {len(self._items)} of the {len(samples)} held-out items with these settings; at "
                f"least {FEWEST_ITEMS} are needed. Raise --max-length, or hold out other traces."
            )

    def _usable(self, positions: Sequence[int]) -> list[tuple[TrainingSample, int]]:
        """Return the usable samples at these positions, each with its dataset row."""
        new = [int(place) for place in positions if int(place) not in self._encoded]
        if new:
            samples = _read(self.samples.store, self.job.request.data, new)
            self._encoded |= dict(zip(new, self.training().encode(samples, self.images), strict=True))
        rows = self.samples.store.column("sample_row")
        found = ((self._encoded[int(place)], int(rows[int(place)])) for place in positions)
        return [(made, row) for made, row in found if not isinstance(made, SetAside)]

    def _used(self, run: PlannedRun) -> tuple[list[tuple[TrainingSample, int]], int]:
        """Return the samples that a training uses, each with its dataset row, and the number of unusable samples.

        If one epoch is enough, only its first samples are read; else all usable samples are used.
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
        steps = order_updates([row for _, row in usable], run.seed, spec.training.batch_size, spec.num_updates)
        weights = run.arm.weights
        weighed = [weigh(made, weights[row]) if row in weights else made for made, row in usable]
        data = TrainingSet(weighed, steps, ())
        place, sha256 = self.job.under_way(run), self.job.plan.fingerprint()
        place.mkdir(parents=True, exist_ok=True)
        identity = hashlib.sha256(f"{sha256}/{run.name}".encode()).hexdigest()

        def listener(event: events.Event) -> None:
            if isinstance(event, StepTaken | events.Warned):  # other messages are about a warm-up
                self.listener(event)

        training.train(data, place, identity, listener, self.stop, seed=run.seed)
        with Watch(self.options.patience, self.listener) as watch, watch.over("the held-out loss"):
            sums = training.losses(self._items)
        rights = self._answer(training) if spec.generate else [None] * len(self._items)
        items = [
            TrialItem(
                sample_id=sample.sample_id, num_tokens=len(item.learnt), loss=total / len(item.learnt), is_right=right
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
        """Return whether the model's answer to each item is right; None if the item has no clear result."""
        with Watch(self.options.patience, self.listener) as watch, watch.over("the answers"):
            answers = training.answers(self._items, self.job.plan.spec.max_new_tokens)
        rights: list[bool | None] = []
        for answer, sample in zip(answers, self._item_samples, strict=True):
            right, found = result_of(sample.segments[-1]), None if answer is None else result_of(answer)
            rights.append(None if right is None else found is not None and is_same_result(found, right))
        return rights


def _read(store: Store, data: Sequence[str] | None, positions: Sequence[int]) -> list[Sample]:
    with open_dataset(store, data, by_content=False) as dataset:
        return UnitLoader(store, dataset).read_some(positions)


def _last_loss(place: Path, num_updates: int) -> float:
    """Return the mean loss over the weighted tokens of the last tenth of the updates."""
    from grace_store.train.loss_log import LOSSES, read_entries

    last = [entry for entry in read_entries(place / LOSSES) if entry["step"] > num_updates - max(1, num_updates // 10)]
    weights = [each.get("weight", each["num_tokens"]) for each in last]
    return float(sum(each["loss"] * weight for each, weight in zip(last, weights, strict=True)) / sum(weights))


def all_seconds(run_seconds: float, num_runs: int, num_devices: int) -> float:
    """Return the seconds that some trainings take on all devices together."""
    return run_seconds * -(-num_runs // num_devices)


def say_cost(cost: tuple[float, float], num_updates: int, num_runs: int, num_devices: int) -> str:
    """Return a sentence about the time of the trainings; cost has the seconds of an update and of a training."""
    update_seconds, run_seconds = cost
    on = f" on {counted(num_devices, 'device')}" if num_devices > 1 else ""
    return (
        f"{counted(num_runs, 'training')} of {num_updates} updates to do: an update takes {update_seconds:.2g} s, a "
        f"training {duration(run_seconds)}, all of them {duration(all_seconds(run_seconds, num_runs, num_devices))}"
        f"{on}, less if the answer is clear early."
    )
