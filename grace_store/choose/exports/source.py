"""The chosen records, byte for byte as in the dataset: JSON lines, an array, or the rows of a Parquet table."""

from grace_store.choose.exports.export_kind import ChosenRecords, Export

EXPORT = Export(write=ChosenRecords.copy)
