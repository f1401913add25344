"""Which files a dataset is made of: paths given by the user, folders expanded, in a fixed order."""

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

from grace_store.base.errors import DataError
from grace_store.data.file_kinds import KINDS_IN_WORDS, SUFFIXES, content_suffix

_NOT_RECORDS = {"dataset_info.json", "dataset_infos.json", "state.json", "dataset_dict.json", "config.json"}
_SHARD = re.compile(r"(.+?)-\d{5}-of-\d{5}")


def expand_paths(paths: Sequence[str | Path]) -> list[Path]:
    """Return the absolute path of every file, in the order given, a folder's files sorted by name."""
    if not paths:
        raise DataError("No data given: name at least one file or folder.")
    if missing := [str(path) for path in paths if not Path(path).exists()]:
        raise DataError(f"No such file or folder: {', '.join(missing)}.")
    files: list[Path] = []
    for path in paths:
        absolute = Path(path).absolute()  # not resolve(): a link's own name is the one the user knows
        files += _folder_files(absolute) if absolute.is_dir() else [absolute]
    for file in files:
        if not file.is_file():
            raise DataError(f"{file} is not a regular file, but a pipe or a device. Save the records in a file.")
    _refuse_repeats(files)
    return files


def default_image_folder(files: Sequence[str | Path]) -> str:
    """Return where a dataset's relative image paths start if nothing is said: the folder that holds all its files."""
    return os.path.commonpath([Path(file).absolute().parent for file in files])


def name_files(files: Sequence[Path]) -> list[str]:
    """Return, for each file, its name with as few folders before it as make all of them different."""
    names: list[str] = []
    for depth in range(1, max((len(file.parts) for file in files), default=0) + 1):
        names = ["/".join(file.parts[-depth:]) for file in files]
        if len(set(names)) == len(files):
            break
    return names


def _refuse_repeats(files: Sequence[Path]) -> None:
    first: dict[Path, Path] = {}
    for file in files:
        if (earlier := first.setdefault(file.resolve(), file)) is not file:
            same = "" if earlier == file else f" (it is the same file as {earlier})"
            raise DataError(f"{file}: given twice{same}. Name each file once.")


def _folder_files(folder: Path) -> list[Path]:
    if (folder / "dataset_dict.json").is_file():
        splits = sorted(path.parent.name for path in folder.glob("*/state.json"))
        hint = f" Give one of them, such as {folder / splits[0]}." if splits else ""
        raise DataError(f"{folder}: a datasets folder with several splits ({', '.join(splits)}).{hint}")
    if (folder / "state.json").is_file():
        return _saved_dataset_files(folder)
    if not (found := _record_files(folder, "*") or _record_files(folder, "**/*")):
        raise DataError(f"{folder}: no record file in it; {KINDS_IN_WORDS} can be read.")
    families: dict[str, list[Path]] = {}
    for file in found:
        suffix = content_suffix(file)
        families.setdefault(suffix if suffix in (".parquet", ".arrow") else ".json(l)", []).append(file)
    if len(families) > 1:
        counts = ", ".join(f"{len(files)} {family}" for family, files in sorted(families.items()))
        raise DataError(f"{folder}: files of several kinds ({counts}), perhaps the same records twice. Name the files.")
    splits = sorted({match[1] for file in found if (match := _SHARD.match(file.name))})
    if len(splits) > 1:
        raise DataError(
            f"{folder}: several splits in one folder ({', '.join(splits)}). Name the files of one, such as "
            f"{found[0].parent}/{splits[-1]}-*."
        )
    return found


def _record_files(folder: Path, pattern: str) -> list[Path]:
    return sorted(
        path
        for path in folder.glob(pattern)
        if path.is_file()
        and content_suffix(path) in SUFFIXES
        and path.name not in _NOT_RECORDS
        and not path.name.endswith(".spec.json")  # what `select` writes beside a subset
        and not any(part.startswith((".", "_")) for part in path.relative_to(folder).parts)
    )


def _saved_dataset_files(folder: Path) -> list[Path]:
    """Return the Arrow files of a folder that ``datasets`` saved, in the order its state.json gives."""
    state_path = folder / "state.json"
    try:
        state = json.loads(state_path.read_text(encoding="utf-8"))
        names = [str(entry["filename"]) for entry in state["_data_files"]]
        indices = state.get("_indices_data_files")
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{state_path}: not a state.json of Hugging Face datasets ({error}).") from error
    if indices:
        raise DataError(f"{folder}: rows are picked by an index file. Call flatten_indices() and save it again.")
    if not names:
        raise DataError(f"{folder}: a datasets folder without data files.")
    if outside := [name for name in names if Path(name).name != name]:
        raise DataError(f"{state_path}: names files outside the folder ({outside[0]}).")
    here = {path.name for path in folder.iterdir() if path.is_file()}
    if absent := [name for name in names if name not in here]:
        raise DataError(f"{folder}: state.json names {', '.join(absent)}, missing in the folder. Copy it again.")
    return [folder / name for name in names]
