"""The log of one run, kept in the store: one JSON event a line."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from grace_store.base.events import Event, Listener
from grace_store.store.backend import open_run_log
from grace_store.store.opened import Store


@contextmanager
def logged(store: Store, listener: Listener) -> Iterator[Listener]:
    """Yield a listener that also writes every event into the store's folder of runs, at once or, in a bucket, last."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    lock = threading.Lock()
    with open_run_log(store.backend, f"{stamp}-{socket.gethostname()}-{os.getpid()}.jsonl") as log:

        def tee(event: Event) -> None:
            line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **event.to_json()}
            with lock:
                log.write(json.dumps(line) + "\n")
                log.flush()
            listener(event)

        yield tee
