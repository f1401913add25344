"""How every command of the study ends: with its text on stdout, or with an error as a sentence on stderr."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

from grace_store.base.errors import GraceStoreError


def end(log: logging.Logger, work: Callable[[], str]) -> int:
    """Do the work, telling what it logs, and write the text that it returns; return the exit code."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    log.setLevel(logging.INFO)
    try:
        text = work()
    except GraceStoreError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(text)
    return 0
