"""The chosen records, byte for byte as in the dataset: JSON lines or, if OUT ends in .json, an array."""

from grace_store.choose.exports.export_kind import ChosenRecords, Export

EXPORT = Export(write=ChosenRecords.copy)
