"""Write a subset as a file that a trainer reads, with a note of what made it. The dataset must still be the same."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from grace_store.artifacts.made_from import open_store_of
from grace_store.artifacts.notes import SubsetNote
from grace_store.artifacts.outputs import Source, check_outputs, place_of, sources_of
from grace_store.artifacts.weight_table import WeightsLike, WeightTable, read_weights
from grace_store.base.documents import write_document
from grace_store.base.errors import GraceStoreError, SettingError
from grace_store.base.file_formats import check_name
from grace_store.base.files import sidecar_of
from grace_store.base.fingerprint import file_sha256
from grace_store.curate.exports import EXPORTS
from grace_store.curate.exports.export_kind import ChosenRecords, Export, Exported
from grace_store.curate.select import Subset
from grace_store.data.folders import expand_paths
from grace_store.read.records import open_dataset
from grace_store.store.opened import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest:
    """As what a subset is written, and where its sources are now, if they moved."""

    as_format: str = "source"
    """A name of ``curate.exports.EXPORTS``."""
    store: str | None = None
    data: Sequence[str] | None = None
    images: str | None = None
    """The folder that relative image paths start from."""
    weights: WeightsLike | None = None
    """A table of step weights that the steps are written with, for trainers that read such."""
    model: str | None = None
    """With weights, the model that is to be trained: its tokenizer says where steps can be cut."""


def export(subset: Subset, out: str | Path, request: ExportRequest | None = None) -> Exported:
    """Write a subset in the order of its records, and its note to OUT.spec.json; never over what it is made from."""
    out, request = Path(out), request or ExportRequest()
    if not out.name:
        raise SettingError(f"--out {out} has no name of its own; give the name of a new file or folder.")
    if request.as_format not in EXPORTS:
        raise SettingError(f"--as {request.as_format} is none of {', '.join(EXPORTS)}")
    kind = EXPORTS[request.as_format]
    _check_pairs(subset, kind, request.as_format)
    weights = _weights(subset, request, kind)
    exported = Exported(out, request.as_format, len(subset), [out])
    store, files = _sources(subset, request, kind)
    _keep_sources(exported, subset, store, files, kind, weights)
    is_read = isinstance(store, Store) and kind.needs_dataset
    with open_dataset(store, request.data) if isinstance(store, Store) and is_read else nullcontext() as dataset:
        if dataset is not None:
            _keep_sources(exported, subset, store, [file.path for file in dataset.files], kind, weights)
        check_name(out, *kind.formats)
        opened = store if isinstance(store, Store) else None
        kind.write(ChosenRecords(subset, opened, dataset, request.images, weights, request.model), exported)
    exported.notes += _notes(subset)
    note = SubsetNote(
        spec=subset.spec,
        as_format=request.as_format,
        num_samples=len(subset),
        num_with_value=subset.num_with_value,
        threshold=subset.threshold if subset.spec.is_by_value else None,
        smallest_value=subset.threshold,
        scores=subset.scores.note,
        scores_path=None if subset.scores.path is None else str(subset.scores.path.absolute()),
        conclusion=subset.conclusion,
        rows=tuple(subset.row.tolist()),
        rejected_rows=None if subset.rejected_row is None else tuple(subset.rejected_row.tolist()),
        weights=None if weights is None else weights.note,
        contaminated_rows=None if subset.excluded is None else subset.excluded.contaminated_rows,
        sha256=file_sha256(out) if out.is_file() else None,
    )
    write_document(sidecar_of(out), note)
    exported.files.append(sidecar_of(out))
    return exported


def _check_pairs(subset: Subset, kind: Export, as_format: str) -> None:
    if kind.is_of_pairs and subset.rejected is None:
        raise SettingError(
            f"--as {as_format} writes pairs: choose them with a margin (in Python: RankRequest(margin=0))"
        )
    if subset.rejected is not None and not kind.is_of_pairs:
        pairs = ", ".join(name for name in EXPORTS if EXPORTS[name].is_of_pairs)
        raise SettingError(f"the subset is one of pairs, which --as {as_format} does not write: use one of {pairs}")


def _weights(subset: Subset, request: ExportRequest, kind: Export) -> WeightTable | None:
    """Return the weights that steps are to be written with, if the export can, or say why not."""
    if request.weights is None:
        if request.model is not None:
            raise SettingError("--model says where steps are cut, which only weights need: give --weights with it")
        return None
    given, name = request.weights, request.as_format
    table = given if isinstance(given, WeightTable) else read_weights(given)
    if table.note.plan_sha256 != subset.scores.plan_sha256:
        raise SettingError(
            f"the {table.what} was made from another plan than the {subset.scores.what} (from {table.note.store}, not "
            f"{subset.scores.note.store}): give weights of the same store"
        )
    takers = ", ".join(each for each in EXPORTS if EXPORTS[each].weights == "any")
    if kind.weights is None:
        raise SettingError(f"--as {name} takes no weights: {kind.no_weights}. Use --as {takers}.")
    if kind.weights == "masks" and not table.is_mask:
        raise SettingError(
            f"--as {name} takes only weights that are 0 or 1: {kind.no_weights}. Make them with `grace-store weights "
            f"--method drop`, or use --as {takers}."
        )
    return table


def _sources(subset: Subset, request: ExportRequest, kind: Export) -> tuple[Store | str, Sequence[Path]]:
    """Return the store and the files given; an export that needs neither is written without, if they are gone."""
    if kind.needs_dataset:
        return open_store_of(subset.scores, request.store), ()
    files = expand_paths(request.data) if request.data else []
    try:
        return open_store_of(subset.scores, request.store), files
    except GraceStoreError:
        return request.store or subset.scores.note.store, files


def _keep_sources(
    exported: Exported,
    subset: Subset,
    store: Store | str,
    files: Sequence[Path],
    kind: Export,
    weights: WeightTable | None,
) -> None:
    """Raise SettingError if a file about to be written is, holds or lies in something the subset is made from."""
    sources: list[Source] = [(path, "which the scores were made from") for path in files]
    sources += sources_of(store) if isinstance(store, Store) else place_of(store)
    if subset.scores.path is not None:
        sources.append((subset.scores.path, "the table of scores"))
    if weights is not None and weights.path is not None:
        sources.append((weights.path, "the table of weights"))
    targets = [exported.out, sidecar_of(exported.out), *(exported.out.with_name(name) for name in kind.also_writes)]
    check_outputs(targets, sources)


def _notes(subset: Subset) -> list[str]:
    notes = list(subset.notes)
    if subset.scores.note.method.is_reconstruction:
        notes.append(f"the scores are by {subset.scores.method}")
    if subset.scores.note.partial:
        notes.append("the scores are of an unfinished store; what is not extracted yet could not be chosen")
    return notes
