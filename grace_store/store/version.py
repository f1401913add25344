"""Versions of the format: which of them this code reads."""

from __future__ import annotations

import json
import re

from grace_store.base.errors import StoreError
from grace_store.base.metadata import FORMAT_VERSION


def check_version(plan: bytes, location: str) -> None:
    """Raise StoreError unless the plan, as canonical JSON, is of a version of the format that this code knows."""
    body = json.loads(plan)
    version = str(body.get("format_version")) if isinstance(body, dict) else ""
    is_number = re.fullmatch(r"[0-9]{1,9}\.[0-9]{1,9}", version) is not None
    ours = version_number(FORMAT_VERSION)
    if not is_number or version_number(version)[0] != ours[0] or version_number(version) > ours:
        raise StoreError(
            f"{location} has version {version} of the format; this grace-store reads {ours[0]}.0 to {FORMAT_VERSION}. "
            "Use the release that made it, or a newer one."
        )


def version_number(version: str) -> tuple[int, ...]:
    """Return a version as numbers that compare as versions do."""
    return tuple(int(part) for part in version.split("."))
