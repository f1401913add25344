"""The chosen records byte for byte as they stood in the dataset: JSON lines or, if OUT ends in .json, an array."""

from grace_store.base.files import write_array, write_lines
from grace_store.curate.exports.export_kind import ChosenRecords, Export, Exported


def _write(chosen: ChosenRecords, exported: Exported) -> None:
    is_array = exported.out.suffix == ".json"
    (write_array if is_array else write_lines)(exported.out, chosen.raw(one_line=not is_array))


EXPORT = Export(write=_write)
