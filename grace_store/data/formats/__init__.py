"""Record formats by name: each is a module here with one ``Format``."""

from grace_store.base.registry import Registry
from grace_store.data.formats.trace import Format

FORMATS: Registry[Format] = Registry(
    __name__,
    "FORMAT",
    (
        "mmathcot",
        "messages",
        "alpaca",
        "sharegpt",
        "openr1",
        "gsm8k",
        "prm800k",
        "processbench",
        "prmbench",
        "explicit",
    ),
)
"""In the order that help shows them."""
