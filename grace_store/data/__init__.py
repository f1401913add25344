"""Records to samples: files, formats, step splitting, image references. Needs no model and no store."""

from __future__ import annotations

from grace_store.data.dataset import Dataset, Progress
from grace_store.data.file_kinds import RecordFile
from grace_store.data.folders import name_files
from grace_store.data.formats import FORMATS, Format, Trace
from grace_store.data.record import MAX_RECORD_BYTES, Record
from grace_store.data.sample import ImageRef, Role, Sample, Turn, cover
from grace_store.data.understand import check_spec, detect_format, sample_id, understand

__all__ = [
    "FORMATS",
    "MAX_RECORD_BYTES",
    "Dataset",
    "Format",
    "ImageRef",
    "Progress",
    "Record",
    "RecordFile",
    "Role",
    "Sample",
    "Trace",
    "Turn",
    "check_spec",
    "cover",
    "detect_format",
    "name_files",
    "sample_id",
    "understand",
]
