"""What the user sees: progress and logs on stderr, results on stdout, errors as sentences, exit codes."""

from __future__ import annotations

import errno
import json
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import click
from pydantic import ValidationError
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from grace_store.base.errors import GraceStoreError, Interrupted
from grace_store.base.events import (
    CheckpointWritten,
    Event,
    Finished,
    HeldOutMeasured,
    Note,
    Rated,
    SamplesCompared,
    SamplesScored,
    Scanned,
    Started,
    StepTaken,
    UnitCommitted,
    Warned,
)
from grace_store.base.text import counted, without_nan
from grace_store.base.text import duration as duration
from grace_store.base.text import size as size

EXIT_INTERRUPTED = 130
SECONDS_BETWEEN_LINES = 10.0
EXTRAS = {
    **dict.fromkeys(("torch", "transformers", "tokenizers", "safetensors", "PIL", "jinja2", "gguf"), "extract"),
    "peft": "warmup",
    "faiss": "faiss",
    **dict.fromkeys(("plotly", "kaleido"), "report"),
    "ray": "ray",
    "obstore": "cloud",
    **dict.fromkeys(("igraph", "leidenalg"), "cadc"),
}
"""Which extra brings a module that the core does without."""

# Soft wrapping leaves lines whole for terminals to wrap and for logs to keep.
log = Console(stderr=True, highlight=False, soft_wrap=True)
out = Console(highlight=False)


@contextmanager
def told() -> Iterator[None]:
    """Turn every expected error into one message and an exit code."""
    try:
        yield
    except Interrupted as error:
        click.echo(str(error), err=True)
        raise click.exceptions.Exit(EXIT_INTERRUPTED) from None
    except GraceStoreError as error:
        notes = "".join(f"\n  {note}" for note in getattr(error, "__notes__", []))
        raise click.ClickException(harmless(f"{error}{notes}")) from None
    except ValidationError as error:
        from grace_store.base.settings import one_sentence

        raise click.ClickException(one_sentence(error)) from None
    except ModuleNotFoundError as error:
        extra = EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        text = f"This needs {error.name}, which is not installed. Run `pip install 'grace-store[{extra}]'`."
        raise click.ClickException(text) from None
    except BrokenPipeError:
        raise  # nobody reads on, as after `| head`: click ends without a word
    except OSError as error:
        raise click.ClickException(_os_error(error)) from None


def _os_error(error: OSError) -> str:
    where = f" ({error.filename})" if error.filename else ""
    text = f"{error.strerror or error}{where}."
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        # Stores keep what is committed; of a table, a subset or a page nothing appears before all of it is there.
        return (
            f"{text} Everything committed is kept and nothing half-written: make room and run the same command again."
        )
    return text


@contextmanager
def stoppable() -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C or SIGTERM sets; a second Ctrl-C stops at once."""
    stop = threading.Event()

    def ask(number: int, frame: FrameType | None) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.set()
        click.echo("\nStopping after the units under way; Ctrl-C again to stop at once.", err=True)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    except KeyboardInterrupt:
        raise Interrupted("Stopped at once. What was committed is kept; run the same command again to go on.") from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def print_json(value: Any) -> None:
    """Write a result for machines to stdout; null stands for a number that could not be had."""
    click.echo(json.dumps(without_nan(value), indent=2, ensure_ascii=False, allow_nan=False))


def harmless(text: str) -> str:
    """Return text from a dataset with control characters spelled out: a terminal must show them, not obey them."""
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


class ProgressDisplay:
    """Draws a job's events: a live bar on a terminal, a line now and then elsewhere. Called from any thread."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._lock = threading.Lock()
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._started: Started | None = None
        self._began = 0.0
        self._last_line = time.monotonic()
        self._samples = self._tokens = self._bytes = 0

    def __enter__(self) -> ProgressDisplay:
        return self

    def __exit__(self, *_: object) -> None:
        self._end_bar()

    def __call__(self, event: Event) -> None:
        if self._quiet and not isinstance(event, Warned):
            return
        with self._lock:
            self._show(event)

    def _show(self, event: Event) -> None:
        match event:
            case Note(text=text):
                log.print(harmless(text), markup=False)
            case Warned(text=text):
                log.print(f"Warning: {harmless(text)}", style="yellow", markup=False)
            case Scanned():
                self._scanned(event)
            case SamplesScored():
                self._scored(event)
            case SamplesCompared():
                self._compared(event)
            case Started():
                self._start(event)
            case Rated():
                self._rated(event)
            case UnitCommitted():
                self._committed(event)
            case StepTaken():
                self._step_taken(event)
            case HeldOutMeasured(step=step, loss=loss):
                log.print(f"Held-out loss after step {step}: {loss:.4f}.")
            case CheckpointWritten(path=path):
                log.print(f"Wrote {path}.", markup=False)
            case Finished(num_units=num_units, seconds=seconds):
                self._end_bar()
                log.print(f"Wrote {counted(num_units, 'unit')}, {size(self._bytes)}, in {duration(seconds)}.")

    def _scanned(self, event: Scanned) -> None:
        now = time.monotonic()
        if now - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = now
            log.print(f"Planning: {event.num_records} records read.")

    def _scored(self, event: SamplesScored) -> None:
        now = time.monotonic()
        if now - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = now
            log.print(f"Scoring: {event.num_samples}/{event.total_samples} samples.")

    def _compared(self, event: SamplesCompared) -> None:
        now = time.monotonic()
        if now - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = now
            log.print(f"Searching: {event.num_samples}/{event.total_samples} samples compared.")

    def _start(self, event: Started) -> None:
        self._started = event
        self._samples = self._tokens = self._bytes = 0
        if event.num_units_skipped:
            amount = f"{counted(event.num_samples_skipped, 'sample')} in {counted(event.num_units_skipped, 'unit')}"
            was, are = ("was", "is") if event.num_samples_skipped == 1 else ("were", "are")
            log.print(f"Signal {event.signal}: {amount} {was} done before and {are} skipped.", markup=False)
        if event.num_units:
            amount = f"{counted(event.num_samples, 'sample')} in {counted(event.num_units, 'unit')}"
            log.print(
                f"Signal {event.signal}: {amount} to do, about {size(event.bytes_expected)} to write.",
                markup=False,
            )
        self._began = time.monotonic()

    def _rated(self, event: Rated) -> None:
        seconds = (self._started.num_samples if self._started else 0) / event.samples_per_second
        log.print(
            f"A trial ran at {event.samples_per_second:.1f} samples/s ({event.tokens_per_second:.0f} tokens/s): "
            f"about {duration(seconds)} in all."
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
        if log.is_terminal:
            self._draw(self._started.num_samples, speed)
        elif time.monotonic() - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            left = seconds * (self._started.num_samples - self._samples) / self._samples
            log.print(f"{self._samples}/{self._started.num_samples} samples  {speed}  {duration(left)} left")

    def _step_taken(self, event: StepTaken) -> None:
        if self._began == 0.0:
            self._began = time.monotonic()  # after the first step, which also warms the device up
            return
        self._samples += 1
        self._tokens += event.num_tokens
        seconds = max(time.monotonic() - self._began, 1e-9)
        if time.monotonic() - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            left = seconds * (event.num_steps - event.step) / self._samples
            log.print(
                f"Step {event.step}/{event.num_steps}  loss {event.loss:.4f}  rate {event.learning_rate:.1e}  "
                f"{self._tokens / seconds:.0f} learnt tokens/s  {duration(left)} left"
            )

    def _draw(self, total: int, speed: str) -> None:
        if self._bar is None:
            self._bar = Progress(
                BarColumn(),
                TextColumn("{task.completed}/{task.total} samples"),
                TextColumn("{task.fields[speed]}"),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                console=log,
            )
            self._bar.start()
            self._task = self._bar.add_task("extract", total=total, speed=speed)
        assert self._task is not None
        self._bar.update(self._task, completed=self._samples, speed=speed)

    def _end_bar(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
