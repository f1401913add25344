"""Plan a trial: resolve the request, and compare it with the trial that was begun in the same folder."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from grace_store.base.documents import read_document
from grace_store.base.errors import DataError, DatasetChanged, GraceStoreError, ResumeMismatch, SettingError
from grace_store.base.files import file_sha256, sidecar_of
from grace_store.base.settings import DataSpec
from grace_store.base.text import canonical_json, counted
from grace_store.base.training_settings import TrainingSpec
from grace_store.choose.selection import SubsetNote, check_unchanged
from grace_store.data.dataset import Dataset
from grace_store.data.folders import default_image_folder
from grace_store.model.load.adapter_folder import require_peft
from grace_store.run.open_signal import describe_differences, software
from grace_store.run.plan import plan
from grace_store.scoring.provenance import check_outputs, open_made_from, sources_of
from grace_store.store.backend import is_url
from grace_store.store.opened import SignalView, Store
from grace_store.study.contamination import as_store
from grace_store.study.trial_documents import OPTIONS, PLAN, TrialJob, TrialPlan, TrialRequest, TrialSpec
from grace_store.study.trial_samples import SubsetFile, gather_samples, is_amount

PLANNED_IN = "held_out_store"
"""What a trial's origin calls the store in OUT that its file of held-out traces is planned in."""
SEEDS_ARE_FIXED = (
    "\nThe number of seeds is fixed before the first: the error rate of 5 % is shared out among the looks, one after "
    "each seed, and seeds that are added once results were seen would break it. For another number, begin a trial of "
    "its own with a new --out, and with another --seed, so that what is known already does not count."
)
OF_HELD_OUT = (
    "That is about the file of --held-out, which is read as --format and --map say. For other settings, plan it by "
    "itself with `grace-store plan`, and give the store."
)
READING = ("rendering", "system", "max_length", "text_only", "images_as", "min_pixels", "max_pixels")
"""How samples are read: as the signal read them that the subsets were chosen by, unless said otherwise."""


def prepare_trial(out: Path, request: TrialRequest) -> TrialJob:
    """Return a trial as it would run now; raise ResumeMismatch if another one was begun in its folder."""
    require_peft()
    begun = read_document(out / PLAN, TrialPlan) if (out / PLAN).is_file() else None
    files = _files(request, begun)
    if not files:
        raise SettingError(f"{out} has no trial yet; give the subsets to try, as `grace-store select` writes them.")
    notes = _read_notes(files)
    store, view = _open_store(files[0][0], notes, request, begun)
    given = [(path, "a subset") for path, _ in files]
    given += [(weights, "a table of weights") for _, weights in files if weights is not None]
    check_outputs([out], [*sources_of(store), *given])
    spec, origin = _resolve(store, view, request, begun)
    other = _open_held_out(origin.get("held_out"), request)
    remarks = list(_unused_weights(files, notes))
    if other is None and (file := origin.get("held_out")) is not None:
        origin[PLANNED_IN], other = _plan_held_out(file, out, request, store.plan.spec.ignore_key, begun)
        remarks += _lost_held_out(file, other)
    samples = gather_samples(store, files, spec, other, request.data)
    found = TrialPlan(
        spec=spec,
        plan_sha256=store.plan.content_digest(),
        num_pool=samples.num_pool,
        num_held_out_samples=samples.num_held_out_samples,
        subsets=samples.subsets,
        held_out=samples.held_out_refs,
        held_out_sha256=samples.held_out_store.plan.samples_sha256,
        origin=origin,
    )
    if begun is not None:
        check_same_trial(begun, found, out)
        found = begun.model_copy(update={"origin": origin})
    return TrialJob(out, found, samples, request, begun is not None, tuple(remarks))


def _files(request: TrialRequest, begun: TrialPlan | None) -> list[SubsetFile]:
    """Return the subsets that are asked for, or else those of the trial that was begun."""
    said: list[SubsetFile] = [(Path(path).absolute(), None) for path in request.subsets]
    said += [(Path(path).absolute(), Path(weights).absolute()) for path, weights in request.weighted]
    if said or begun is None:
        return said
    return [(Path(each.path), Path(each.weights) if each.weights else None) for each in begun.subsets]


def _read_notes(files: Sequence[SubsetFile]) -> dict[Path, SubsetNote]:
    """Return the notes that lie beside subsets; raise DataError if one is missing, changed, a table or of pairs."""
    if missing := [str(path) for path, _ in files if not path.exists()]:
        raise DataError(f"There is no {missing[0]}. Give subsets that `grace-store select` wrote, or lists of ids.")
    paths = dict.fromkeys(path for path, _ in files)
    notes = {path: read_document(sidecar_of(path), SubsetNote) for path in paths if sidecar_of(path).is_file()}
    for path in paths:
        if path.suffix == ".parquet" and path not in notes:
            raise DataError(f"{path} is a table, not a subset. Give what `grace-store select` chose from a table.")
    for path, note in notes.items():
        check_unchanged(path, note)
        if note.rejected_rows is not None:
            raise DataError(
                f"{path} holds pairs of traces, of which a trial would train on the better ones alone. Select again "
                "with another --as than pairs, and try that."
            )
    return notes


def _unused_weights(files: Sequence[SubsetFile], notes: Mapping[Path, SubsetNote]) -> Iterator[str]:
    """Yield a warning for each subset that was written with step weights and is tried without them."""
    weighted = {path for path, weights in files if weights is not None}
    for path, note in notes.items():
        if note.weights is not None and path not in weighted:
            yield (
                f"{path.name} was written with step weights, and is tried without them. To try them, too, give "
                f"--weighted {path.name} WEIGHTS, with the table that `grace-store weights` wrote."
            )


def _lost_held_out(file: str, planned: Store) -> Iterator[str]:
    """Say how many records of a held-out file no model is measured on, and why."""
    plan = planned.plan
    if plan.set_aside:
        reasons = ", ".join(f"{count} {reason}" for reason, count in plan.set_aside.items())
        lost = f"{plan.num_records - plan.num_samples} of {counted(plan.num_records, 'record')}"
        yield f"{Path(file).name}: {lost} are set aside, and no model is measured on them ({reasons})."


def _open_store(
    path: Path, notes: Mapping[Path, SubsetNote], request: TrialRequest, begun: TrialPlan | None
) -> tuple[Store, SignalView | None]:
    """Return the store that subsets were chosen from, and the signal that they were chosen by, if that is known."""
    moved = request.store or (begun.origin["store"] if begun else None)
    if not notes:
        if moved is None:
            raise SettingError(f"{path} does not say which store it was chosen from; give that store, too.")
        return Store.open(moved), None
    noted, note = next(iter(notes.items()))
    store = open_made_from(note.scores, moved, f"subset {noted}", "STORE")
    name = next(iter(note.scores.signals))
    return store, store.signal(name) if name in store.signal_names else None


def _open_held_out(place: str | None, request: TrialRequest) -> Store | None:
    """Open a planned store of held-out traces; None if they are the pool's own, or in a file."""
    found = None if place is None else as_store(place)
    is_planned = place is None or found is not None
    if is_planned and (request.format is not None or request.map is not None):
        why = "the pool's own" if found is None else "a store's"
        raise SettingError(
            f"--format and --map say how the records of a file are read, and the held-out traces are {why}. Leave "
            "them out, or give --held-out FILE."
        )
    return found


def _plan_held_out(
    file: str, out: Path, request: TrialRequest, ignore_key: tuple[str, ...], begun: TrialPlan | None
) -> tuple[str, Store]:
    """Plan a file of held-out traces in OUT, and return the store with its name; any number of steps will do.

    Keys that the pool is read without are left out of the held-out traces, too.
    """
    wishes: dict[str, Any] = {"format": request.format, "map": None if request.map is None else dict(request.map)}
    if ignore_key:
        wishes["ignore_key"] = ignore_key
    then = begun.origin if begun else {}
    try:
        name = then.get(PLANNED_IN) or _name_held_out(file, wishes)
        given = {name: value for name, value in wishes.items() if value is not None}
        return name, plan([file], out / name, DataSpec(min_steps=1, **given))
    except GraceStoreError as error:
        if begun is not None and isinstance(error, DatasetChanged | ResumeMismatch):
            raise _other_held_out(file, out, error) from error
        error.add_note(OF_HELD_OUT)
        raise


def _other_held_out(file: str, out: Path, error: DatasetChanged | ResumeMismatch) -> ResumeMismatch:
    """Return the error for a held-out file that differs from the one that the trial was begun with."""
    what, remedy = "was read with another --format or --map", "Leave those options out"
    if isinstance(error, DatasetChanged):
        what, remedy = "had other records", "Put the file back as it was"
    return ResumeMismatch(
        f"The trial in {out} was begun with other held-out traces: {file} {what} then.\n{remedy} to go on, or choose a "
        "new --out. Nothing was written."
    )


def _name_held_out(file: str, wishes: Mapping[str, Any]) -> str:
    """Return a name that is unique to the content and to how it is read: trials that begin at once may differ."""
    with Dataset.open([file]) as dataset:
        contents = [file_sha256(each.path) for each in dataset.files]
    digest = hashlib.sha256(canonical_json({**wishes, "contents": contents})).hexdigest()
    return f"held-out-{digest[:12]}.zarr"


def _resolve(
    store: Store, view: SignalView | None, request: TrialRequest, begun: TrialPlan | None
) -> tuple[TrialSpec, dict[str, str]]:
    """Return the spec as it would be now, and where things are."""
    from grace_store.train.training import resolve_training

    then = begun.origin if begun else {}
    model = request.model or then.get("model") or (view.signal.origin["model"] if view else None)
    if model is None:
        raise SettingError("Say which --model to train: the subsets do not name one.")
    if begun:
        wanted = request.spec.over(begun.spec)
    else:
        read = view.signal.spec.model_dump(include=set(READING), exclude_none=True) if view else {}
        training = TrainingSpec(**{**read, **request.spec.training.given()})
        wanted = request.spec.model_copy(update={"training": training})
    said = wanted.given() | {"training": resolve_training(model, wanted.training, request.options)}
    images = request.images or then.get("images") or (view.signal.origin.get("images") if view else None)
    files = request.data or [file.path for file in store.plan.files]
    origin = {**software(), "model": str(Path(model).resolve()), "store": _absolute(store.location)}
    origin["images"] = images or default_image_folder(files)
    if (held_out := request.spec.given().get("held_out")) is not None and not is_amount(held_out):
        origin["held_out"], said["held_out"] = _absolute(held_out), Path(held_out).name
    elif held_out is None and "held_out" in then:
        origin["held_out"] = then["held_out"]
    return TrialSpec.parse(**said), origin


def _absolute(place: str) -> str:
    return place if is_url(place) else str(Path(place).resolve())


def check_same_trial(begun: TrialPlan, now: TrialPlan, out: Path) -> None:
    """Raise ResumeMismatch, with what differs, unless a trial would have the same numbers as the one that was begun."""
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
    """Say which of the files that a trial is made from have other samples than then."""
    if begun.num_pool != now.num_pool:
        yield f"pool: begun with {counted(begun.num_pool, 'sample')} to choose from, now {now.num_pool}"
    if begun.held_out_sha256 != now.held_out_sha256 or begun.held_out != now.held_out:
        yield "held-out traces: others than then"
    for then, each in zip(begun.subsets, now.subsets, strict=True):
        if then.samples_sha256 != each.samples_sha256:
            known = f"{each.path} or {each.weights}" if each.weights else each.path
            yield f"{known}: other samples{' or weights' if each.weights else ''} than then"
