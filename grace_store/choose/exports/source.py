"""The chosen records, byte for byte as in the dataset: JSON lines or, if OUT ends in .json, an array."""

from grace_store.base.files import JSON, format_of, write_records
from grace_store.choose.exports.export_kind import ChosenRecords, Export, Exported


def _write(chosen: ChosenRecords, exported: Exported) -> None:
    is_array = format_of(exported.out) == JSON
    write_records(exported.out, chosen.raw(one_line=not is_array))


EXPORT = Export(write=_write)
