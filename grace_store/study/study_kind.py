"""What a study is: settings, a function from a pool to a finding, and how its command is introduced."""

from collections.abc import Callable
from dataclasses import dataclass

from grace_store.base.finding import Finding
from grace_store.base.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A question that can be asked of a pool. Its command has the pool's options, then one for each setting."""

    find: Callable[..., Finding]
    """find(pool, settings, listener=...): what was found."""
    settings: type[Settings]
    """What the study can be asked; its docstring is the command's help."""
    examples: tuple[str, ...]
    """Command lines, shown below the help."""
    signal: str
    """What --signal means to it."""
    has_many_signals: bool = False
