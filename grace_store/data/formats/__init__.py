"""Record formats by name: each is a module here with one ``Format``."""

from grace_store.base.registry import Registry
from grace_store.data.formats.trace import Format

_NAMES = (
    "mmathcot", "messages", "alpaca", "sharegpt", "openr1", "gsm8k", "prm800k", "processbench", "prmbench", "explicit",
)  # fmt: skip
FORMATS: Registry[Format] = Registry(__name__, "FORMAT", _NAMES)
"""In the order that help shows them."""

UNRECOGNISED: Registry[Format] = Registry(__name__, "FORMAT", ("mapped",))
"""Those that are never found by looking at records."""
