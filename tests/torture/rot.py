"""Bit rot: bytes of a finished store are flipped one at a time, files truncated, zeroed, swapped and deleted.

All of it must be found by a deep check or be provably without meaning, and be mended by a repair to the same bytes.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path

from grace_store.base.errors import GraceStoreError
from grace_store.base.settings import ExtractSpec, Storage
from grace_store.run.engines.engine import ExtractJob
from grace_store.run.extract import extract
from grace_store.run.verify import repair, verify
from grace_store.store import check
from grace_store.store.array_group import ArrayEncoder
from grace_store.store.backend import LEDGER_GROUP, SAMPLES_GROUP, SIGNALS_GROUP
from grace_store.store.check import check_plan, check_signal
from grace_store.store.opened import Store
from tests.jobs import content
from tests.stores import SIGNAL, extract_store
from tests.torture.runs import differences, left_behind
from tests.torture.tally import Tally, main

GRADIENT = "gradient"
REPAIR_EVERY = 32
"""A repair costs as much as many checks, so only every so many flips are repaired, of each kind of file alike."""
HARM_EVERY = 20
"""For so many flips, one file is spoilt as a whole, and repaired."""


def kind_of(key: str) -> str:
    """Return what sort of file a key is."""
    parts = key.split("/")
    if parts[0] == LEDGER_GROUP:
        return "copy of a document" if len(parts) == 2 or parts[1] == SIGNALS_GROUP else parts[1].removesuffix(".json")
    if parts[-1] == "zarr.json":
        array = len(parts) == (4 if parts[0] == SIGNALS_GROUP else 3)
        return f"metadata of an array of {parts[0]}" if array else f"metadata of a group, {len(parts)} deep"
    return f"chunk of {parts[0] if parts[0] == SAMPLES_GROUP else parts[2]}"


class Victim:
    """A finished store that is damaged over and over; its data and model are at hand."""

    def __init__(self, folder: Path, storage: Storage = "int4") -> None:
        store = extract_store(folder, storage)
        self.root = Path(store.location)
        self.job = ExtractJob(store.location, door="tests.fake_model")
        # One vector a sample, of a checkpoint: all kinds of arrays that the format has.
        (folder / "checkpoint").mkdir()
        request = ExtractSpec(kind="gradient", storage="int8")
        extract(replace(self.job, model=str(folder / "model"), adapter=str(folder / "checkpoint"), signal=GRADIENT,
                        request=request))  # fmt: skip
        self.whole = content(self.root)
        self.keys = sorted(key for key in self.whole if not key.startswith(f"{LEDGER_GROUP}/runs"))
        self.by_kind: dict[str, list[str]] = {}
        for key in self.keys:
            self.by_kind.setdefault(kind_of(key), []).append(key)

    def first_problem(self, key: str) -> str | None:
        """Return one thing that a deep check says: all of it is asked until then, what is likely to know first."""
        try:
            store = Store.open(self.root)
            view = store.signal(GRADIENT if f"/{GRADIENT}/" in key else SIGNAL)
            checks = [check_plan(store, deep=True), check_signal(view, deep=True), verify(store, deep=True)]
            if not key.startswith(SAMPLES_GROUP):
                checks[:2] = checks[1::-1]
            if key.endswith(".json"):
                checks[:0] = [check_plan(store, deep=False), check_signal(view, deep=False)]
            return next((problem.text for problem in chain(*checks)), None)
        except GraceStoreError as error:
            return str(error)

    def repaired(self) -> list[str]:
        """Repair, and return what is not as it was."""
        try:
            repair(self.job)
        except GraceStoreError as error:
            return [f"not repaired: {error}"]
        return differences(content(self.root), self.whole) + [f"{path} is left" for path in left_behind(self.root)]

    def damage(self, tally: Tally, key: str, harm: Callable[[], None], what: str, *, mend: bool) -> None:
        """Do harm to a file; count whether it is found or harmless, and mended; then put the file back."""
        path = self.root / key
        sound = path.read_bytes()
        harm()
        tally.tried += 1
        try:
            found = self.first_problem(key)
            if found is None:
                tally.became["harmless"] += 1
                if not is_harmless(path, sound):
                    tally.failures.append(f"{what} of {key} is not detected")
            else:
                tally.became["detected"] += 1
                if mend:
                    wrong = self.repaired()
                    tally.became["repaired"] += not wrong
                    if wrong:
                        tally.failures.append(f"{what} of {key} ({found}): {'; '.join(wrong)}")
        finally:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(sound)


def is_harmless(path: Path, sound: bytes) -> bool:
    """Return whether a file still means the same: other white space in JSON, or what the format leaves open."""
    if path.suffix != ".json" or not path.exists():
        return False
    return bool(check.specified(json.loads(path.read_bytes())) == check.specified(json.loads(sound)))


def harms(victim: Victim, rng: random.Random) -> Iterator[tuple[str, Callable[[], None], str]]:
    """Yield every file with each way to spoil it as a whole."""
    for key in victim.keys:
        path = victim.root / key
        size = path.stat().st_size
        others = [other for other in victim.by_kind[kind_of(key)] if victim.whole[other] != victim.whole[key]]
        yield key, path.unlink, "loss"
        yield key, lambda path=path: path.write_bytes(b""), "emptying"
        yield key, lambda path=path, size=size: path.write_bytes(bytes(size)), "zeroing"
        cut = rng.randrange(1, size)
        yield key, lambda path=path, cut=cut: path.write_bytes(path.read_bytes()[:cut]), f"cut to {cut} bytes"
        if others:
            other = victim.root / rng.choice(others)
            yield key, lambda path=path, other=other: path.write_bytes(other.read_bytes()), f"overwriting with {other}"


def flips(victim: Victim, rng: random.Random, count: int) -> Iterator[tuple[str, int, int]]:
    """Yield (file, byte, what it is xored with): every byte of the store in turn if the count allows, else a sample.

    All kinds of files get their share, however small they are.
    """
    places = [(key, byte) for key in victim.keys for byte in range((victim.root / key).stat().st_size)]
    if count < len(places):
        kinds = list(victim.by_kind)
        chosen = []
        for i in range(count):
            key = rng.choice(victim.by_kind[kinds[i % len(kinds)]])
            chosen.append((key, rng.randrange((victim.root / key).stat().st_size)))
        places = chosen
    for i in range(count):
        key, byte = places[i % len(places)]
        yield key, byte, rng.randrange(1, 256)


def torture(seed: int, count: int, folder: Path) -> Tally:
    """Spoil every file in every way, then flip so many bytes."""
    tally = Tally("bit rot")
    victim = Victim(folder)
    rng = random.Random(seed)
    tally.figures["bytes in the store"] = sum((victim.root / key).stat().st_size for key in victim.keys)
    with made_once():
        spoilt = list(harms(victim, rng))
        for key, harm, what in rng.sample(spoilt, min(len(spoilt), count // HARM_EVERY)):
            victim.damage(tally, key, harm, what, mend=True)
        seen: dict[str, int] = {}
        for key, byte, mask in flips(victim, rng, count):
            path, kind = victim.root / key, kind_of(key)
            seen[kind] = seen.get(kind, 0) + 1

            def flip(path: Path = path, byte: int = byte, mask: int = mask) -> None:
                raw = bytearray(path.read_bytes())
                raw[byte] ^= mask
                path.write_bytes(raw)

            victim.damage(tally, key, flip, f"flip of byte {byte}", mend=seen[kind] % REPAIR_EVERY == 1)
    if now := differences(content(victim.root), victim.whole):
        tally.failures.append(f"the store is not what it was: {now}")
    return tally


class made_once:  # noqa: N801 - reads as what it says
    """While it lasts, the metadata that arrays should have is made once, not once a check."""

    def __enter__(self) -> None:
        made: dict[str, ArrayEncoder] = {}

        def encoder(arrays: list[object]) -> ArrayEncoder:
            return made.get(key := repr(arrays)) or made.setdefault(key, ArrayEncoder(arrays))  # type: ignore[arg-type]

        check.ArrayEncoder = encoder  # type: ignore[misc, assignment]

    def __exit__(self, *_: object) -> None:
        check.ArrayEncoder = ArrayEncoder  # type: ignore[misc]


if __name__ == "__main__":
    main(torture, count=20000)
