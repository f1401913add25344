"""Second copies of the plan and of each signal's document, which cannot be computed again."""

from grace_store.base.errors import Corrupt
from grace_store.base.metadata import Plan, Signal
from grace_store.store.backend import COMMITS, PLAN_COPY, SIGNALS_GROUP, Backend, signal_copy_key, signal_key
from grace_store.store.digested_json import group_bytes, group_document

Restored = tuple[str | None, str, str]
"""A document that was damaged or lost and is restored: its signal, its key, and the problem."""


def write_copy(backend: Backend, document: Plan | Signal) -> None:
    """Write the second copy of the zarr.json that holds a plan or a signal."""
    backend.write(_copy_key(document), group_bytes(document))


def _copy_key(document: Plan | Signal) -> str:
    return PLAN_COPY if isinstance(document, Plan) else signal_copy_key(document.name)


def wrong_copy(backend: Backend, document: Plan | Signal) -> tuple[str, str] | None:
    """Return the key of a document's copy and its problem, or None if the copy is right."""
    key = _copy_key(document)
    try:
        same = group_document(backend.read(key), type(document), key) == document
    except Corrupt as error:
        return key, str(error)
    return None if same else (key, "the copy belongs to another document")


def find_plan_copy(backend: Backend) -> Plan | None:
    """Return the plan from its copy; None if the copy is missing or damaged."""
    try:
        return group_document(backend.read(PLAN_COPY), Plan, f"{backend.location}/{PLAN_COPY}")
    except Corrupt:
        return None


def restore_documents(backend: Backend) -> list[Restored]:
    """Restore documents from their copies, and copies from their documents; no other run may be writing."""
    plan, restored = _restored(backend, None, "zarr.json", PLAN_COPY, Plan)
    for name in sorted({*backend.names(SIGNALS_GROUP), *backend.names(COMMITS)} - {"zarr.json"}):
        signal, again = _restored(backend, name, f"{signal_key(name)}/zarr.json", signal_copy_key(name), Signal)
        restored += again
        if plan is not None and signal is not None:
            restored += _copied(backend, name, signal)
    if plan is not None:
        restored += _copied(backend, None, plan)
    backend.flush()
    return restored


def _restored(
    backend: Backend, signal: str | None, key: str, copy: str, kind: type[Plan] | type[Signal]
) -> tuple[Plan | Signal | None, list[Restored]]:
    """Return a document, restored from its copy if necessary; None if neither can be read."""
    try:
        return _own_document(backend, signal, key, kind), []
    except Corrupt as error:
        damage = signal, key, str(error)
    try:
        document = _own_document(backend, signal, copy, kind)
    except Corrupt:
        return None, []
    backend.write(key, group_bytes(document))
    return document, [damage]


def _own_document(backend: Backend, signal: str | None, key: str, kind: type[Plan] | type[Signal]) -> Plan | Signal:
    """Return the document at a key; raise Corrupt if it is damaged or the document of another signal."""
    document: Plan | Signal = group_document(backend.read(key), kind, key)
    if isinstance(document, Signal) and document.name != signal:
        raise Corrupt(f"{key} belongs to the signal {document.name!r}.")
    return document


def _copied(backend: Backend, signal: str | None, document: Plan | Signal) -> list[Restored]:
    """Write the copy of a document again if it is wrong or missing."""
    if (wrong := wrong_copy(backend, document)) is None:
        return []
    write_copy(backend, document)
    return [(signal, *wrong)]
