"""Where everything lies in a store: the keys of groups, chunks and documents."""

import re

from grace_store.base.errors import SettingError

SAMPLES_GROUP = "samples"
SIGNALS_GROUP = "signals"
LEDGER_GROUP = "ledger"
GROUPS = (SAMPLES_GROUP, SIGNALS_GROUP, LEDGER_GROUP)
"""The groups of a store."""
COMMITS = f"{LEDGER_GROUP}/commits"
COMPLETIONS = f"{LEDGER_GROUP}/complete"
SHARING = f"{LEDGER_GROUP}/sharing"
RUNS = f"{LEDGER_GROUP}/runs"
LOCKS = f"{LEDGER_GROUP}/locks"
PLAN_COPY = f"{LEDGER_GROUP}/plan.json"
SIGNAL_COPIES = f"{LEDGER_GROUP}/signals"
TMP = f"{LEDGER_GROUP}/tmp"

_RESERVED_NAMES = ("zarr.json", "all", "each")
_SIGNAL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.=+-]{0,99}")


def check_signal_name(name: str) -> str:
    """Return the name if it can be a folder's name everywhere, else raise."""
    if not _SIGNAL_NAME.fullmatch(name) or name in _RESERVED_NAMES:
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
    """Return the key, below the group's, of the chunk of an array that a unit fills."""
    return "/".join([array, "c", str(unit), *["0"] * (num_dims - 1)])
