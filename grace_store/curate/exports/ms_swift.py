"""Conversations as ms-swift reads them: messages with one ``<image>`` for each image, and the images' paths."""

from grace_store.curate.exports.conversations import write_conversations
from grace_store.curate.exports.export_kind import Export

EXPORT = Export(write=write_conversations)
