"""Subsets as files that trainers read, each with a note of what made it. Checks that the dataset is still the same."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from grace_store import __version__
from grace_store.artifacts.made_from import open_store_of
from grace_store.artifacts.outputs import Source, check_outputs, place_of, sources_of
from grace_store.artifacts.score_table import RECONSTRUCTED, STEP_SCORES, ScoreTable
from grace_store.base.arrays import IntArray
from grace_store.base.errors import DataError, GraceStoreError, SettingError, Unusable
from grace_store.base.files import read_note, sidecar_of, whole_folder, write_array, write_json, write_lines
from grace_store.curate.exports import SubsetFormat
from grace_store.curate.exports.conversations import (
    DATASET_INFO,
    ImageNames,
    conversation,
    has_stray_placeholder,
    register_dataset,
    with_step_scores,
)
from grace_store.curate.exports.datasets_folder import STATE, write_datasets_folder
from grace_store.curate.select import Subset
from grace_store.data.dataset import Dataset
from grace_store.data.folders import expand_paths, name_files
from grace_store.data.record import Record
from grace_store.data.sample import Sample
from grace_store.data.understand import understand
from grace_store.read.records import image_folder, open_dataset
from grace_store.store.opened import Store


@dataclass(slots=True)
class Exported:
    """What was written."""

    out: Path
    as_format: SubsetFormat
    num_samples: int
    files: list[Path] = field(default_factory=list)
    """Everything that was written, the subset itself first."""
    notes: list[str] = field(default_factory=list)
    """What the user should know."""


def export_subset(
    subset: Subset, out: str | Path, as_format: SubsetFormat = "source", *, store: str | None = None,
    data: Sequence[str] | None = None, images: str | None = None,
) -> Exported:  # fmt: skip
    """Write a subset in the order of its records, and beside it, in out.spec.json, what made it.

    source: the records byte for byte, JSON lines or, if out ends in .json, an array. ms-swift and llama-factory:
    conversations with images where they stood. datasets: a Hugging Face folder. steps: the records with the step
    scores and where in the response each step lies. ids: one a line. images is where relative image paths start;
    store and data say where those are now, if they moved. What the subset is made from is never written over.
    """
    out = Path(out)
    if not out.name:
        raise SettingError(f"--out {out} has no name of its own; give the name of a new file or folder.")
    exported = Exported(out, as_format, len(subset), [out])
    if as_format == "ids":
        _keep_sources(exported, subset, *_sources_of_ids(subset, store, data))
        write_lines(out, (text.encode() for text in subset.sample_id))
    else:
        opened = open_store_of(subset.scores, store)
        with open_dataset(opened, data) as dataset:
            _keep_sources(exported, subset, opened, [file.path for file in dataset.files])
            chosen = _Chosen(opened, dataset, subset)
            if as_format == "source":
                (write_array if out.suffix == ".json" else write_lines)(out, chosen.raw(one_line=out.suffix != ".json"))
            elif as_format == "datasets":
                _write_datasets(chosen, out)
            elif as_format == "steps":
                write_lines(out, _with_scores(chosen, subset))
            else:
                _write_conversations(chosen, exported, images)
    exported.notes += subset.notes
    if subset.scores.made_by["spec"].get("method") in RECONSTRUCTED:
        exported.notes.append(f"the scores are by {subset.scores.method}")
    if subset.scores.made_by.get("partial"):
        exported.notes.append("the scores are of an unfinished store; what is not extracted yet could not be chosen")
    write_json(sidecar_of(out), _made_by(subset, as_format))
    exported.files.append(sidecar_of(out))
    return exported


def _sources_of_ids(
    subset: Subset, store: str | None, data: Sequence[str] | None
) -> tuple[Store | str, Sequence[Path]]:
    """Return the store and the files given, as far as they are there: ids can be written without either."""
    files = expand_paths(data) if data else []
    try:
        return open_store_of(subset.scores, store), files
    except GraceStoreError:
        return store or subset.scores.made_by["store"], files


def _keep_sources(exported: Exported, subset: Subset, store: Store | str, files: Sequence[Path]) -> None:
    """Raise SettingError if a file about to be written is, holds or lies in something the subset is made from."""
    sources: list[Source] = [(path, "which the scores were made from") for path in files]
    sources += sources_of(store) if isinstance(store, Store) else place_of(store)
    if subset.scores.path is not None:
        sources.append((subset.scores.path, "the table of scores"))
    targets = [exported.out, sidecar_of(exported.out)]
    if exported.as_format == "llama-factory":
        targets.append(exported.out.with_name(DATASET_INFO))
    check_outputs(targets, sources)


def _made_by(subset: Subset, as_format: str) -> dict[str, Any]:
    return {
        "kind": "subset",
        "made_by": f"grace-store {__version__}",
        "spec": subset.spec,
        "as": as_format,
        "num_samples": len(subset),
        "num_with_value": subset.num_with_value,
        "threshold": subset.threshold if subset.is_all_above else None,
        "smallest_value": subset.threshold,
        "scores": subset.scores.made_by,
        "scores_path": None if subset.scores.path is None else str(subset.scores.path.absolute()),
        "rows": subset.row.tolist(),
    }


class _Chosen:
    """The chosen records, read one at a time in the order of the dataset."""

    def __init__(self, store: Store, dataset: Dataset, subset: Subset) -> None:
        self.store = store
        self.dataset = dataset
        self.view = store.signal(next(iter(subset.scores.made_by["signals"])))
        self._positions = store.positions_of(subset.row)

    def raw(self, *, one_line: bool) -> Iterator[bytes]:
        """Yield the records byte for byte; on one line, a line break between its fields becomes a space."""
        for raw in self.dataset.read_many(self._locators()):
            yield raw.replace(b"\r", b" ").replace(b"\n", b" ") if one_line and b"\n" in raw else raw

    def samples(self) -> Iterator[tuple[bytes, Sample]]:
        """Yield the records on one line each, with the samples they are."""
        names = name_files([Path(file.path) for file in self.store.plan.files])
        file_start = list(accumulate((file.num_records for file in self.store.plan.files), initial=0))
        rows = self.store.column("sample_row")[self._positions].tolist()
        for row, locator, raw in zip(rows, self._locators(), self.raw(one_line=True), strict=True):
            file = locator[0]
            try:
                sample = understand(
                    Record(row, *locator, raw), self.store.plan.spec, names[file], row - file_start[file]
                )
            except Unusable as why:  # the file is the planned one, so this code reads it differently
                raise DataError(f"Row {row} cannot be read as it was when it was planned: {why}.") from why
            yield raw, sample

    def _locators(self) -> Iterator[tuple[int, int, int]]:
        columns = (
            self.store.column(f"sample_{name}")[self._positions].tolist() for name in ("file", "offset", "length")
        )
        return zip(*columns, strict=True)


def _write_datasets(chosen: _Chosen, out: Path) -> None:
    def records() -> Iterator[dict[str, Any]]:
        return (json.loads(raw) for raw in chosen.raw(one_line=False))

    with whole_folder(out, lambda _: _is_our_folder(out)) as folder:
        write_datasets_folder(folder, records, _fingerprint(chosen.store.plan.digest()))


def _is_our_folder(out: Path) -> bool:
    """Return whether the note beside a datasets folder says that we made it, and it has not been saved to since."""
    note = read_note(sidecar_of(out))
    if note is None or note.get("as") != "datasets":
        return False
    try:
        state = json.loads((out / STATE).read_text(encoding="utf-8"))
        return bool(state["_fingerprint"] == _fingerprint(note["scores"]["plan_sha256"]))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _fingerprint(plan_sha256: str) -> str:
    return plan_sha256[:16]


def _write_conversations(chosen: _Chosen, exported: Exported, images: str | None) -> None:
    out = exported.out
    names = ImageNames(image_folder(images, chosen.view, chosen.dataset), out.with_name(f"{out.stem}-images"))
    num_with_images = num_stray = 0

    def lines() -> Iterator[bytes]:
        nonlocal num_with_images, num_stray
        for _, sample in chosen.samples():
            record = conversation(sample, names)
            num_with_images += bool(record["images"])
            num_stray += has_stray_placeholder(record)
            yield json.dumps(record, ensure_ascii=False).encode()

    write_lines(out, lines())
    if exported.as_format == "llama-factory":
        exported.files.append(register_dataset(out, has_images=num_with_images > 0))
    if num_with_images:
        exported.notes.append(f"{num_with_images} samples have images")
    if names.num_written:
        exported.notes.append(f"{names.num_written} images from inside the records are in {out.stem}-images")
    if num_stray:
        verdict = "; LLaMA-Factory will refuse them" if exported.as_format == "llama-factory" else ""
        exported.notes.append(f"{num_stray} samples say <image> in their text without there being one{verdict}")


def _with_scores(chosen: _Chosen, subset: Subset) -> Iterator[bytes]:
    scores = _with_steps(subset.scores)
    flat = {name: scores.flat(name) for name in (*STEP_SCORES, "step_num_tokens")}
    offsets, value = scores.offsets, scores.value
    for index, (raw, sample) in zip(_by_row(subset).tolist(), chosen.samples(), strict=True):
        if b'"grace_store"' in raw and "grace_store" in json.loads(raw):
            raise DataError(f"Sample {sample.sample_id!r} already has a field grace_store; export from the original.")
        mine = slice(offsets[index], offsets[index + 1])
        spans = [[start, stop] for start, stop in zip(sample.bounds, sample.bounds[1:], strict=False)]
        added: dict[str, Any] = {"sample_id": sample.sample_id, "value": _number(value[index])}
        added |= {name: [_number(number) for number in flat[name][mine]] for name in STEP_SCORES}
        added |= {"step_num_tokens": flat["step_num_tokens"][mine].tolist()}
        yield with_step_scores(raw, added | {"step_span": spans[:-1], "answer_span": spans[-1]})


def _by_row(subset: Subset) -> IntArray:
    """Return the chosen rows of the table in the order of the dataset's rows."""
    return subset.ranked[np.argsort(subset.scores.row[subset.ranked], kind="stable")]


def _with_steps(scores: ScoreTable) -> ScoreTable:
    """Return a table with its step scores, reading them if they were left out."""
    scores = scores.with_steps()
    if not scores.has_step_scores:
        raise DataError(f"Scores by {scores.made_by['spec']['method']} have no step scores to join to records.")
    return scores


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
