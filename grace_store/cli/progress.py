"""The progress of a run on stderr."""

import threading
import time
from typing import Self

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from grace_store.base import events
from grace_store.base.events import Event, Rated, Started, StepTaken, UnitCommitted
from grace_store.base.text import counted, duration, size
from grace_store.cli import console
from grace_store.cli.console import escape_controls

SECONDS_BETWEEN_LINES = 10.0


class ProgressDisplay:
    """A listener that shows events: as a live bar on a terminal, else as a line every few seconds. Thread-safe."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._lock = threading.Lock()
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._started: Started | None = None
        self._began = 0.0
        self._last_line = time.monotonic()
        self._samples = self._tokens = self._bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end_bar()

    def __call__(self, event: Event) -> None:
        if self._quiet and not isinstance(event, events.Warned):
            return
        with self._lock:
            self._show(event)

    def _show(self, event: Event) -> None:
        match event:
            case events.Note(text=text):
                console.log.print(escape_controls(text), markup=False)
            case events.Warned(text=text):
                console.log.print(f"Warning: {escape_controls(text)}", style="yellow", markup=False)
            case events.Progressed(text=text):
                self._say_now_and_then(text)
            case Started():
                self._start(event)
            case Rated():
                num_samples = self._started.num_samples if self._started else 0
                console.log.print(
                    f"Measured on a few samples: {event.samples_per_second:.1f} samples/s "
                    f"({event.tokens_per_second:.0f} tokens/s), so about "
                    f"{duration(num_samples / event.samples_per_second)} in all."
                )
                self._began = time.monotonic()
            case UnitCommitted():
                self._committed(event)
            case StepTaken():
                self._step_taken(event)
            case events.Finished(num_units=num_units, seconds=seconds):
                self._end_bar()
                console.log.print(f"Wrote {counted(num_units, 'unit')}, {size(self._bytes)}, in {duration(seconds)}.")

    def _say_now_and_then(self, text: str) -> None:
        now = time.monotonic()
        if now - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = now
            console.log.print(text)

    def _start(self, event: Started) -> None:
        self._started = event
        self._samples = self._tokens = self._bytes = 0
        if event.num_units_skipped:
            amount = f"{counted(event.num_samples_skipped, 'sample')} in {counted(event.num_units_skipped, 'unit')}"
            was, are = ("was", "is") if event.num_samples_skipped == 1 else ("were", "are")
            console.log.print(f"Signal {event.signal}: {amount} {was} done before and {are} skipped.", markup=False)
        if event.num_units:
            amount = f"{counted(event.num_samples, 'sample')} in {counted(event.num_units, 'unit')}"
            console.log.print(
                f"Signal {event.signal}: {amount} to do, about {size(event.bytes_expected)} to write.", markup=False
            )
        self._began = time.monotonic()

    def _committed(self, event: UnitCommitted) -> None:
        assert self._started is not None
        self._samples += event.num_samples
        self._tokens += event.num_tokens
        self._bytes += event.num_bytes
        seconds = max(time.monotonic() - self._began, 1e-9)
        speed = (
            f"{self._samples / seconds:.1f} samples/s  {self._tokens / seconds:.0f} tokens/s  "
            f"{size(self._bytes)} written"
        )
        total = self._started.num_samples
        if console.log.is_terminal:
            self._draw(total, speed)
        else:
            left = seconds * (total - self._samples) / max(self._samples, 1)
            self._say_now_and_then(f"{self._samples}/{total} samples  {speed}  {duration(left)} left")

    def _step_taken(self, event: StepTaken) -> None:
        if self._began == 0.0:
            self._began = time.monotonic()  # after the first step, which also warms the device up
            return
        self._samples += 1
        self._tokens += event.num_tokens
        seconds = max(time.monotonic() - self._began, 1e-9)
        left = seconds * (event.num_steps - event.step) / self._samples
        self._say_now_and_then(
            f"Step {event.step}/{event.num_steps}  loss {event.loss:.4f}  rate {event.learning_rate:.1e}  "
            f"{self._tokens / seconds:.0f} trained tokens/s  {duration(left)} left"
        )

    def _draw(self, total: int, speed: str) -> None:
        if self._bar is None:
            self._bar = Progress(
                BarColumn(),
                TextColumn("{task.completed}/{task.total} samples"),
                TextColumn("{task.fields[speed]}"),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                console=console.log,
            )
            self._bar.start()
            self._task = self._bar.add_task("extract", total=total, speed=speed)
        assert self._task is not None
        self._bar.update(self._task, completed=self._samples, speed=speed)

    def _end_bar(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
