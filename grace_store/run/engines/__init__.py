"""Engines by name. Each engine is a module here with one ``Engine``, imported when it is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grace_store.base.registry import Registry

if TYPE_CHECKING:
    from grace_store.run.engines.engine import Engine

LOCAL_ENGINES = ("here", "processes")
"""Engines of this machine. ``choose_engine`` chooses one by the machine's devices."""
ENGINES: Registry[Engine] = Registry(__name__, "ENGINE", (*LOCAL_ENGINES, "ray"))
