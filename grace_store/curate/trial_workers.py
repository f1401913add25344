"""Several devices share the trainings of a trial: a process each, which takes what nobody else has taken."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty
from threading import Event
from typing import TYPE_CHECKING, Any, cast

from grace_store.base.child_process import die_with_parent
from grace_store.base.errors import GraceStoreError, Interrupted, WorkerDied
from grace_store.base.events import Listener, Note, StepTaken, Warned
from grace_store.base.text import counted

if TYPE_CHECKING:
    from grace_store.curate.trial_plan import TrialRequest

# Another thing than run/engines/processes.py, where a parent hands out units, hears of each over a pipe and replaces
# dead workers: these processes are started with the whole request and take trainings by themselves, as processes on
# other machines do, so there is nothing to hand out or to replace. What both need is in base/child_process.py and
# model/devices.py.

POLL_SECONDS = 0.2
FAILED = 1


def run_workers(out: Path, request: TrialRequest, listener: Listener, stop: Event, is_over: Callable[[], bool]) -> None:
    """Return when all trainings are over; raise WorkerDied if processes ended before, and the others did not do all."""
    context = multiprocessing.get_context("spawn")
    said, stopping = context.Queue(), context.Event()
    listener(Note(f"Starting {counted(len(request.devices), 'worker')} on {', '.join(request.devices)}."))
    workers = []
    for number, device in enumerate(request.devices):
        arguments = (out, request, device, number, os.getpid(), said, stopping)
        workers.append(context.Process(target=_work, args=arguments, name=f"worker {number}"))
        with _environment(device):
            workers[-1].start()
    failures: list[str] = []
    while any(worker.is_alive() for worker in workers):
        if stop.is_set():
            stopping.set()
        _hear(said, listener, failures)
    _hear(said, listener, failures)
    codes = [worker.exitcode for worker in workers]
    if stop.is_set():
        raise Interrupted("Stopped; what was trained is kept. Run the same command again to go on.")
    if any(codes):
        told = " ".join(failures) or f"Exit codes: {', '.join(map(str, codes))}."
        if is_over():
            listener(Warned(f"{told} The other workers did all trainings."))
            return
        raise WorkerDied(f"{told} What was trained is kept: run the same command again.")


def _hear(said: Any, listener: Listener, failures: list[str]) -> None:
    """Pass on what workers have said so far."""
    while True:
        try:
            event = said.get(timeout=POLL_SECONDS)
        except Empty:
            return
        if isinstance(event, str):
            failures.append(event)
        else:
            listener(event)


@contextmanager
def _environment(device: str) -> Iterator[None]:
    """Let what is started inside see one device only."""
    from grace_store.model.devices import environment_of

    wanted = environment_of(device)
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)


def _work(out: Path, request: TrialRequest, device: str, number: int, parent: int, said: Any, stopping: Any) -> None:
    """Be a worker: do rounds as the parent would, on one device. The first tells how far they all are."""
    from grace_store.curate.trial import for_device, play
    from grace_store.curate.trial_plan import prepare_trial

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # for the parent, which says when to stop
    die_with_parent(parent)

    def tell(event: Any) -> None:
        if isinstance(event, Warned) or (number == 0 and isinstance(event, Note | StepTaken)):
            said.put(event)

    try:
        job = prepare_trial(out, for_device(request, "cpu" if device == "cpu" else "auto"))
        play(job, tell, cast(Event, stopping), num_devices=len(request.devices), tells=number == 0)
    except Interrupted:
        return
    except GraceStoreError as error:
        said.put(f"Worker {number} ({device}): {error}")
        said.close()
        said.join_thread()
        os._exit(FAILED)
