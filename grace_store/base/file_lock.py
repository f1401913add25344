"""One process at a time: a lock that goes with the process that holds it. Knows nothing of what is locked."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from grace_store.base.errors import StorageError


@contextmanager
def try_lock(path: Path) -> Iterator[bool]:
    """Yield whether this process now holds a lock file, which is made if it is not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        except OSError as error:
            raise StorageError(
                f"{path} cannot be locked: {error.strerror or error}. Without locks two processes would do the same "
                "work; choose an --out on another disk."
            ) from error
        yield True
