"""Record formats: one ``Format`` each, by name, in the order that help shows them."""

from __future__ import annotations

from grace_store.data.formats.alpaca import ALPACA
from grace_store.data.formats.explicit import EXPLICIT
from grace_store.data.formats.gsm8k import GSM8K
from grace_store.data.formats.messages import MESSAGES
from grace_store.data.formats.mmathcot import MMATHCOT
from grace_store.data.formats.openr1 import OPENR1
from grace_store.data.formats.prm800k import PRM800K
from grace_store.data.formats.sharegpt import SHAREGPT
from grace_store.data.formats.trace import Format, Trace

FORMATS: dict[str, Format] = {
    format.name: format for format in (MMATHCOT, MESSAGES, ALPACA, SHAREGPT, OPENR1, GSM8K, PRM800K, EXPLICIT)
}

__all__ = ["FORMATS", "Format", "Trace"]
