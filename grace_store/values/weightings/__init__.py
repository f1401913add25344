"""Ways of weighing steps by name: each is a module here with one ``Weighting``."""

from grace_store.base.registry import Registry
from grace_store.values.weightings.weighting import Weighting

WEIGHTINGS: Registry[Weighting] = Registry(__name__, "WEIGHTING", ("fit", "scores", "drop"))
"""In the order that help shows them."""
