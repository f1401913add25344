"""Record formats by name."""

from grace_store.data.formats.known import KNOWN_FORMATS
from grace_store.data.formats.mapped import MAPPED_FORMAT

FORMATS = {format.name: format for format in KNOWN_FORMATS}
"""The formats that can be recognised from records, in the order that help shows them."""

UNRECOGNISED = {MAPPED_FORMAT.name: MAPPED_FORMAT}
"""The formats that only a setting chooses."""
