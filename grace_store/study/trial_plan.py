"""The inputs of a trial: subsets, store, settings and held-out traces, by the request or by the trial begun in OUT."""

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from grace_store.base.documents import read_document
from grace_store.base.errors import DataError, DatasetChanged, GraceStoreError, ResumeMismatch, SettingError
from grace_store.base.files import file_sha256, sidecar_of
from grace_store.base.settings import DataSpec
from grace_store.base.text import counted, json_sha256
from grace_store.base.training_settings import TrainingSpec
from grace_store.choose.selection import SubsetNote, check_unchanged
from grace_store.data.dataset import Dataset
from grace_store.data.folders import default_image_folder
from grace_store.run.open_signal import describe_differences, software
from grace_store.run.plan import plan
from grace_store.scoring.provenance import open_made_from
from grace_store.store.backend import is_url
from grace_store.store.opened import SignalView, Store
from grace_store.study.contamination import as_store
from grace_store.study.trial_documents import OPTIONS, SubsetFile, TrialPlan, TrialRequest, TrialSpec

PLANNED_IN = "held_out_store"
"""Key in a trial's origin: the name of the store in OUT that the file of held-out traces is planned in."""
FEWEST_UPDATES = 8
"""Fewest updates of a training. The learning rate rises over the first updates, so that fewer change a model little."""
SEEDS_ARE_FIXED = (
    "\nThe number of seeds is fixed before the first: the error rate of 5 % is shared out among the looks, one after "
    "each seed, and seeds that are added once results were seen would break it. For another number, begin a trial of "
    "its own with a new --out, and with another --seed, so that what is known already does not count."
)
READING = ("rendering", "system", "max_length", "text_only", "images_as", "min_pixels", "max_pixels")
"""Settings of reading samples. By default they are those of the signal that the subsets were chosen by."""


def subset_files(out: Path, request: TrialRequest, begun: TrialPlan | None) -> list[SubsetFile]:
    """Return the subsets of the request, or else those of the trial that was begun."""
    files: list[SubsetFile] = [(Path(path).absolute(), None) for path in request.subsets]
    files += [(Path(path).absolute(), Path(weights).absolute()) for path, weights in request.weighted]
    if not files and begun is not None:
        files = [(Path(each.path), Path(each.weights) if each.weights else None) for each in begun.subsets]
    if not files:
        raise SettingError(f"{out} has no trial yet. Give subsets that `grace-store select` wrote.")
    return files


def read_notes(files: Sequence[SubsetFile]) -> dict[Path, SubsetNote]:
    """Return the notes beside the subsets; raise DataError if a subset is missing, changed, a table or has pairs."""
    if missing := [str(path) for path, _ in files if not path.exists()]:
        raise DataError(f"There is no {missing[0]}. Give subsets that `grace-store select` wrote, or lists of ids.")
    paths = dict.fromkeys(path for path, _ in files)
    notes = {path: read_document(sidecar_of(path), SubsetNote) for path in paths if sidecar_of(path).is_file()}
    for path in paths:
        if path.suffix == ".parquet" and path not in notes:
            raise DataError(f"{path} is a table, not a subset. Run `grace-store select` on it, and give the subset.")
    for path, note in notes.items():
        check_unchanged(path, note)
        if note.rejected_rows is not None:
            raise DataError(
                f"{path} holds pairs of traces. A trial would train only on the better trace of each pair. Select "
                "again with another --as than pairs, and try that subset."
            )
    return notes


def unused_weights(files: Sequence[SubsetFile], notes: Mapping[Path, SubsetNote]) -> Iterator[str]:
    """Yield a warning for each subset that was written with step weights and is tried without them."""
    weighted = {path for path, weights in files if weights is not None}
    for path, note in notes.items():
        if note.weights is not None and path not in weighted:
            yield (
                f"{path.name} was written with step weights, and is tried without them. To try them, too, give "
                f"--weighted {path.name} WEIGHTS, with the table that `grace-store weights` wrote."
            )


def open_subsets_store(
    path: Path, notes: Mapping[Path, SubsetNote], request: TrialRequest, begun: TrialPlan | None
) -> tuple[Store, SignalView | None]:
    """Return the store that the subsets were chosen from, and the signal that they were chosen by, if it is known."""
    moved = request.store or (begun.origin["store"] if begun else None)
    if not notes:
        if moved is None:
            raise SettingError(f"{path} does not name its store: give the store, too.")
        return Store.open(moved), None
    noted, note = next(iter(notes.items()))
    store = open_made_from(note.scores, moved, f"subset {noted}", "STORE")
    name = next(iter(note.scores.signals), None)
    return store, store.signal(name) if name in store.signal_names else None


def open_held_out(
    out: Path, request: TrialRequest, store: Store, origin: dict[str, str], begun: TrialPlan | None
) -> tuple[Store | None, list[str]]:
    """Return a store of held-out traces, and warnings about its file; None if the held-out traces are the pool's own.

    A file is planned in OUT, and the name of its store is added to origin.
    """
    place = origin.get("held_out")
    found = None if place is None else as_store(place)
    if place is not None and found is None:
        origin[PLANNED_IN], planned = _plan_held_out(place, out, request, store.plan.spec.ignore_key, begun)
        plan = planned.plan
        if not plan.set_aside:
            return planned, []
        reasons = ", ".join(f"{count} {reason}" for reason, count in plan.set_aside.items())
        lost = f"{plan.num_records - plan.num_samples} of {counted(plan.num_records, 'record')}"
        return planned, [f"{Path(place).name}: {lost} are set aside, and no model is measured on them ({reasons})."]
    if request.format is not None or request.map is not None:
        why = "part of the pool" if found is None else "a store"
        raise SettingError(
            f"--format and --map are only for a file, but the held-out traces are {why}. Leave "
            "them out, or give --held-out FILE."
        )
    return found, []


def _plan_held_out(
    file: str, out: Path, request: TrialRequest, ignore_key: tuple[str, ...], begun: TrialPlan | None
) -> tuple[str, Store]:
    """Plan a file of held-out traces in OUT, and return the name of the store and the store.

    Traces may have any number of steps. Keys that the pool is read without are left out of the held-out traces, too.
    """
    settings: dict[str, Any] = {"format": request.format, "map": None if request.map is None else dict(request.map)}
    if ignore_key:
        settings["ignore_key"] = ignore_key
    try:
        name = begun.origin.get(PLANNED_IN) if begun else None
        if name is None:
            # The name is unique to the file's content and settings: trials that begin at the same time may differ.
            with Dataset.open([file]) as dataset:
                contents = [file_sha256(each.path) for each in dataset.files]
            digest = json_sha256({**settings, "contents": contents})
            name = f"held-out-{digest[:12]}.zarr"
        given = {key: value for key, value in settings.items() if value is not None}
        return name, plan([file], out / name, DataSpec(min_steps=1, **given))
    except GraceStoreError as error:
        if begun is not None and isinstance(error, DatasetChanged | ResumeMismatch):
            what, remedy = "was read with another --format or --map", "Leave those options out"
            if isinstance(error, DatasetChanged):
                what, remedy = "had other records", "Put the file back as it was"
            raise ResumeMismatch(
                f"The trial in {out} was begun with other held-out traces: {file} {what} then.\n{remedy} to go on, or "
                "choose a new --out. Nothing was written."
            ) from error
        error.add_note(
            "This error is about the file of --held-out, which is read as --format and --map say. For other settings, "
            "plan the file by itself with `grace-store plan`, and give the store."
        )
        raise


def resolve_trial(
    store: Store, view: SignalView | None, request: TrialRequest, begun: TrialPlan | None
) -> tuple[TrialSpec, dict[str, str]]:
    """Return the resolved spec, and the origin: where model, store, images and held-out traces are."""
    from grace_store.train.training import resolve_training

    then = begun.origin if begun else {}
    model = request.model or then.get("model") or (view.signal.origin["model"] if view else None)
    if model is None:
        raise SettingError("The subsets do not name a model: name the model to train with --model.")
    if begun:
        spec = request.spec.over(begun.spec)
    else:
        read = view.signal.spec.model_dump(include=set(READING), exclude_none=True) if view else {}
        training = TrainingSpec(**{**read, **request.spec.training.given()})
        spec = request.spec.model_copy(update={"training": training})
    settings = spec.given() | {"training": resolve_training(model, spec.training, request.options)}
    images = request.images or then.get("images") or (view.signal.origin.get("images") if view else None)
    files = request.data or [file.path for file in store.plan.files]
    origin = {**software(), "model": str(Path(model).resolve()), "store": _absolute(store.location)}
    origin["images"] = images or default_image_folder(files)
    if (held_out := request.spec.given().get("held_out")) is not None and not _is_amount(held_out):
        origin["held_out"], settings["held_out"] = _absolute(held_out), Path(held_out).name
    elif held_out is None and "held_out" in then:
        origin["held_out"] = then["held_out"]
    resolved = TrialSpec.parse(**settings)
    if begun is None and resolved.num_updates < FEWEST_UPDATES:
        raise SettingError(
            f"{counted(resolved.num_updates, 'update')} of a model are too few to learn anything from a subset. Give "
            f"at least {FEWEST_UPDATES} with --updates. Nothing was written."
        )
    return resolved, origin


def _is_amount(held_out: str) -> bool:
    """Return whether this is a share or a number of questions rather than a file."""
    try:
        amount = Decimal(held_out)
    except InvalidOperation:
        return False
    return amount.is_finite() and amount > 0


def _absolute(place: str) -> str:
    return place if is_url(place) else str(Path(place).resolve())


def check_same_trial(begun: TrialPlan, now: TrialPlan, out: Path) -> None:
    """Raise ResumeMismatch, which lists the differences, unless the trial would have the numbers of the one begun."""
    if begun.fingerprint() == now.fingerprint():
        return
    lines = describe_differences(begun.spec.training, now.spec.training)
    settings = describe_differences(begun.spec, now.spec, OPTIONS)
    lines += [line for line in settings if not line.startswith("training ")]
    if begun.plan_sha256 != now.plan_sha256:
        lines.append("store: other data, or planned with other settings")
    then, theirs = ([each.name for each in plan.subsets] for plan in (begun, now))
    if then != theirs:
        lines.append(f"subsets: begun with {', '.join(then)}, now {', '.join(theirs)}")
    what, remedy = "settings", "Leave those options out to go on as it was begun"
    if not lines:
        lines = list(_other_samples(begun, now))
        what, remedy = "samples", "Put the files back as they were to go on"
    raise ResumeMismatch(
        f"The trial in {out} was begun with other {what}:\n  "
        + "\n  ".join(lines)
        + f"\n{remedy}, or choose a new --out. Nothing was written."
        + (SEEDS_ARE_FIXED if begun.spec.num_seeds != now.spec.num_seeds else "")
    )


def _other_samples(begun: TrialPlan, now: TrialPlan) -> Iterator[str]:
    """Yield a line for each input of a trial that has other samples than when the trial was begun."""
    if begun.num_pool != now.num_pool:
        yield f"pool: begun with {counted(begun.num_pool, 'sample')} to choose from, now {now.num_pool}"
    if begun.held_out_sha256 != now.held_out_sha256 or begun.held_out != now.held_out:
        yield "held-out traces: others than then"
    for then, each in zip(begun.subsets, now.subsets, strict=True):
        if then.samples_sha256 != each.samples_sha256:
            known = f"{each.path} or {each.weights}" if each.weights else each.path
            yield f"{known}: other samples{' or weights' if each.weights else ''} than then"
