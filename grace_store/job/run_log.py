"""The log of one run, kept in the store: one JSON event a line."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from grace_store.events import Event, Listener
from grace_store.store import Store, run_log_path


@contextmanager
def logged(store: Store, listener: Listener) -> Iterator[Listener]:
    """Yield a listener that also writes every event into the store's folder of runs."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    path = run_log_path(store.backend, f"{stamp}-{socket.gethostname()}-{os.getpid()}.jsonl")
    if path is None:
        yield listener
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = threading.Lock()
    with path.open("a", encoding="utf-8") as log:

        def tee(event: Event) -> None:
            line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **event.to_json()}
            with lock:
                log.write(json.dumps(line) + "\n")
                log.flush()
            listener(event)

        yield tee
