"""Write a subset as a file that a trainer reads, with a note beside it. The dataset must not have changed."""

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from grace_store.base.documents import write_document
from grace_store.base.errors import GraceStoreError, SettingError
from grace_store.base.files import check_name, file_sha256, sidecar_of
from grace_store.choose.exports import EXPORTS
from grace_store.choose.exports.export_kind import ChosenRecords, Export, Exported
from grace_store.choose.selection import Subset, SubsetNote
from grace_store.data.folders import expand_paths
from grace_store.pool.records import open_dataset
from grace_store.scoring.provenance import Source, check_outputs, open_store_of, place_of, sources_of
from grace_store.scoring.weight_table import WeightsLike, WeightTable, read_weights
from grace_store.store.opened import Store


def export(
    subset: Subset,
    out: str | Path,
    *,
    as_format: str = "source",
    store: str | None = None,
    data: Sequence[str] | None = None,
    images: str | None = None,
    weights: WeightsLike | None = None,
    model: str | None = None,
) -> Exported:
    """Write a subset in the order of its records, and its note to OUT.spec.json. A source is never overwritten.

    as_format is a name in ``choose.exports.EXPORTS``. store and data say where these are now, if they moved. Relative
    image paths start from the folder images. weights is a table of step weights, for trainers that read weights; with
    weights, the tokenizer of model decides where steps can be cut.
    """
    out = Path(out)
    if not out.name:
        raise SettingError(f"--out {out} does not end in a name: give the name of a new file or folder.")
    if as_format not in EXPORTS:
        raise SettingError(f"unknown value {as_format!r} of --as: use one of {', '.join(EXPORTS)}")
    kind = EXPORTS[as_format]
    if kind.is_of_pairs and subset.rejected is None:
        raise SettingError(
            f"--as {as_format} writes pairs: select pairs, with a margin (in Python: Selection(margin=0))"
        )
    if subset.rejected is not None and not kind.is_of_pairs:
        pairs = ", ".join(name for name in EXPORTS if EXPORTS[name].is_of_pairs)
        raise SettingError(f"the subset has pairs, but --as {as_format} writes no pairs: use one of {pairs}")
    table = None if weights is None else _weights(subset, weights, as_format)
    if weights is None and model is not None:
        raise SettingError("--model is only needed to write weights: give --weights, too, or leave --model out")
    exported = Exported(out, as_format, len(subset), [out])
    source, files = _sources(subset, store, data, kind)
    _keep_sources(exported, subset, source, files, kind, table)
    opened = source if isinstance(source, Store) else None
    with open_dataset(opened, data) if opened is not None and kind.needs_dataset else nullcontext() as dataset:
        if dataset is not None:
            _keep_sources(exported, subset, source, [file.path for file in dataset.files], kind, table)
        check_name(out, *kind.formats)
        kind.write(ChosenRecords(subset, opened, dataset, images, table, model), exported)
    exported.notes += _notes(subset)
    note = SubsetNote(
        spec=subset.spec,
        as_format=as_format,
        num_samples=len(subset),
        num_with_value=subset.num_with_value,
        threshold=subset.threshold if subset.is_by_value else None,
        smallest_value=subset.threshold,
        scores=subset.scores.note,
        scores_path=None if subset.scores.path is None else str(subset.scores.path.absolute()),
        conclusion=subset.conclusion,
        rows=tuple(subset.row.tolist()),
        rejected_rows=None if subset.rejected_row is None else tuple(subset.rejected_row.tolist()),
        weights=None if table is None else table.note,
        contaminated_rows=None if subset.excluded is None else subset.excluded.contaminated_rows,
        sha256=file_sha256(out) if out.is_file() else None,
    )
    write_document(sidecar_of(out), note)
    exported.files.append(sidecar_of(out))
    return exported


def _weights(subset: Subset, given: WeightsLike, name: str) -> WeightTable:
    """Return the table of step weights; raise SettingError if it is of another plan or the export cannot write it."""
    table, kind = given if isinstance(given, WeightTable) else read_weights(given), EXPORTS[name]
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


def _sources(
    subset: Subset, store: str | None, data: Sequence[str] | None, kind: Export
) -> tuple[Store | str, Sequence[Path]]:
    """Return the store and the dataset files given; only the store's location if it is gone and not needed."""
    if kind.needs_dataset:
        return open_store_of(subset.scores, store), ()
    files = expand_paths(data) if data else []
    try:
        return open_store_of(subset.scores, store), files
    except GraceStoreError:
        return store or subset.scores.note.store, files


def _keep_sources(
    exported: Exported,
    subset: Subset,
    store: Store | str,
    files: Sequence[Path],
    kind: Export,
    weights: WeightTable | None,
) -> None:
    """Raise SettingError if an output is a source of the subset, contains one or lies inside one."""
    sources: list[Source] = [(path, "which the scores were made from") for path in files]
    sources += sources_of(store) if isinstance(store, Store) else place_of(store)
    if subset.scores.path is not None:
        sources.append((subset.scores.path, "the table of scores"))
    if weights is not None and weights.path is not None:
        sources.append((weights.path, "the table of weights"))
    targets = [exported.out, sidecar_of(exported.out), *(exported.out.with_name(name) for name in kind.also_writes)]
    check_outputs(targets, sources)


def _notes(subset: Subset) -> list[str]:
    """Return the notes of the subset, and what users should know about its scores."""
    notes = list(subset.notes)
    if subset.scores.note.spec.is_reconstruction:
        notes.append(f"the scores are by {subset.scores.method}")
    if subset.scores.note.partial:
        notes.append("the scores are of an unfinished store; what is not extracted yet could not be chosen")
    return notes
