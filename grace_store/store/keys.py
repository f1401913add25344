"""The keys of everything in a store: groups, chunks and documents. Knows no array."""

import re

from grace_store.base.errors import SettingError

SAMPLES_GROUP = "samples"
SIGNALS_GROUP = "signals"
LEDGER_GROUP = "ledger"
GROUPS = (SAMPLES_GROUP, SIGNALS_GROUP, LEDGER_GROUP)
COMMITS = f"{LEDGER_GROUP}/commits"
COMPLETIONS = f"{LEDGER_GROUP}/complete"
SHARING = f"{LEDGER_GROUP}/sharing"
RUNS = f"{LEDGER_GROUP}/runs"
LOCKS = f"{LEDGER_GROUP}/locks"
PLAN_COPY = f"{LEDGER_GROUP}/plan.json"
SIGNAL_COPIES = f"{LEDGER_GROUP}/signals"
TMP = f"{LEDGER_GROUP}/tmp"


def check_signal_name(name: str) -> str:
    """Return the name if it is a valid folder name on every system; else raise SettingError."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.=+-]{0,99}", name) or name in ("zarr.json", "all", "each"):
        raise SettingError(
            f"{name!r} cannot be the name of a signal: use letters, digits and _ . = + - (up to 100, "
            "starting with a letter or digit; not all, each or zarr.json)."
        )
    return name


def signal_key(signal: str) -> str:
    return f"{SIGNALS_GROUP}/{signal}"


def commit_key(signal: str, unit: int) -> str:
    return f"{COMMITS}/{signal}/{unit:08d}.json"


def signal_copy_key(signal: str) -> str:
    return f"{SIGNAL_COPIES}/{signal}.json"


def completion_key(signal: str) -> str:
    return f"{COMPLETIONS}/{signal}.json"


def sharing_key(signal: str) -> str:
    return f"{SHARING}/{signal}.json"


def chunk_key(array: str, num_dims: int, unit: int) -> str:
    """Return the key, relative to the group, of a unit's chunk of an array."""
    return "/".join([array, "c", str(unit), *["0"] * (num_dims - 1)])
