"""Add up commits one by one: what a completion says of a whole signal, and a status of the units so far."""

import hashlib
from collections import Counter
from collections.abc import Iterable

from grace_store.base.metadata import Commit, Completion, Signal


class Totals:
    """Sums over commits that are given in the order of their units; holds none of them."""

    def __init__(self, commits: Iterable[Commit] = ()) -> None:
        self.num_units = 0
        self.num_samples = 0
        self.num_done = 0
        self.num_tokens = 0
        self.num_bytes = 0
        self._set_aside: Counter[str] = Counter()
        self._digests = hashlib.sha256()
        for commit in commits:
            self.add(commit)

    def add(self, commit: Commit) -> None:
        self.num_units += 1
        self.num_samples += commit.num_samples
        self.num_done += commit.num_done
        self.num_tokens += commit.num_tokens
        self.num_bytes += sum(chunk.num_bytes for chunk in commit.chunks.values())
        self._set_aside.update(why.reason.value for why in commit.set_aside)
        self._digests.update(f"{commit.digest()}\n".encode())

    @property
    def set_aside(self) -> dict[str, int]:
        """{reason: samples}, sorted by reason."""
        return dict(sorted(self._set_aside.items()))

    def completion(self, signal: Signal) -> Completion:
        """Return the document of a signal all of whose commits were added."""
        names = ("num_units", "num_done", "set_aside", "num_tokens", "num_bytes")
        digests = {"signal_sha256": signal.identity(), "commits_sha256": self._digests.hexdigest()}
        return Completion(**digests, **{name: getattr(self, name) for name in names})
