"""Which format the name of a file says, and the refusal to write another one under that name."""

from pathlib import Path

from grace_store.base.errors import SettingError

PARQUET, JSON, JSON_LINES, HTML, TEXT, FOLDER = "Parquet", "JSON", "JSON lines", "HTML", "plain text", "a folder"
"""What commands write."""
ENDINGS = {
    PARQUET: (".parquet", ".pq"),
    JSON: (".json",),
    JSON_LINES: (".jsonl", ".ndjson"),
    HTML: (".html", ".htm"),
    "SVG": (".svg",),
    TEXT: (".txt",),
    "CSV": (".csv",),
    "TSV": (".tsv",),
    "Arrow": (".arrow", ".feather"),
    "Avro": (".avro",),
    "ORC": (".orc",),
    "Excel": (".xlsx", ".xls"),
    "SQLite": (".sqlite", ".db"),
    "Zarr": (".zarr",),
    "HDF5": (".h5", ".hdf5"),
    "NumPy": (".npy", ".npz"),
    "safetensors": (".safetensors",),
    "pickle": (".pkl", ".pickle"),
    "YAML": (".yaml", ".yml"),
    "TOML": (".toml",),
    "XML": (".xml",),
    "Markdown": (".md",),
    "PDF": (".pdf",),
    "PNG": (".png",),
    "JPEG": (".jpg", ".jpeg"),
    "gzip": (".gz", ".tgz"),
    "zstd": (".zst",),
    "bzip2": (".bz2",),
    "xz": (".xz",),
    "ZIP": (".zip",),
    "tar": (".tar",),
}
"""How the names of files of a format end; a name that ends in none of these says nothing."""
_FORMATS = {ending: name for name, endings in ENDINGS.items() for ending in endings}


def format_of(path: Path) -> str | None:
    """Return the format that a name says.

    >>> format_of(Path("subset.JSONL")), format_of(Path("subset-0.2"))
    ('JSON lines', None)
    """
    return _FORMATS.get(path.suffix.lower())


def check_name(path: Path, *formats: str) -> None:
    """Raise SettingError if the name of what is to be written says another format than those."""
    said = format_of(path)
    if said is None or said in formats:
        return
    endings = [ENDINGS[each][0] for each in formats if each in ENDINGS]
    wanted = f"that ends in {' or '.join(endings)}" if endings else f"without {path.suffix}"
    raise SettingError(
        f"The name {path.name} says {said}, but {' or '.join(formats)} would be written. Choose a name {wanted}."
    )
