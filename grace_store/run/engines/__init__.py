"""Engines by name: each is a module here with one ``Engine``, imported when it is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grace_store.base.registry import Registry

if TYPE_CHECKING:
    from grace_store.run.engines.engine import Engine

LOCAL_ENGINES = ("here", "processes")
"""Those of this machine. Which of them runs is decided by its devices, see ``choice``."""
ENGINES: Registry[Engine] = Registry(__name__, "ENGINE", (*LOCAL_ENGINES, "ray"))
