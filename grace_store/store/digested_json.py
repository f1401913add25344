"""JSON documents that carry the digest of their own content, so that a flipped bit cannot pass for data."""

import hashlib
import json
from typing import Any, TypeVar

from pydantic import ValidationError

from grace_store.base.errors import Corrupt, StoreError
from grace_store.base.metadata import FORMAT_VERSION, Plan, Signal, other_version
from grace_store.base.settings import Frozen, one_sentence
from grace_store.base.text import canonical_json
from grace_store.store.backend import Backend
from grace_store.store.layout import COMMITS, PLAN_COPY, SIGNALS_GROUP, signal_copy_key, signal_key

DocumentT = TypeVar("DocumentT", bound=Frozen)

SEAL = "grace_store_sha256"
BODY = "grace_store"
_REMEDY = "Extract its data again into another store, or use the grace-store that wrote this one."


def seal(document: Frozen) -> dict[str, Any]:
    """Return {body, digest of the body}."""
    return {BODY: document.model_dump(mode="json"), SEAL: document.digest()}


def sealed_body(sealed: Any, where: str) -> bytes:
    """Return the canonical JSON that a sealed mapping vouches for, or raise Corrupt naming the place."""
    if not isinstance(sealed, dict) or BODY not in sealed or SEAL not in sealed:
        raise Corrupt(f"{where} is not a document of this format.")
    try:
        body = canonical_json(sealed[BODY])
    except ValueError:  # NaN, or half a surrogate pair
        body = b""
    if hashlib.sha256(body).hexdigest() != sealed[SEAL]:
        raise Corrupt(f"{where} does not match its own digest: it was damaged or edited.")
    return body


def unseal(sealed: Any, kind: type[DocumentT], where: str) -> DocumentT:
    """Return the document of a sealed mapping; raise Corrupt, or StoreError if it says another version, with where."""
    body = sealed_body(sealed, where)
    found = sealed[BODY]
    if isinstance(found, dict) and found.get("format_version", FORMAT_VERSION) != FORMAT_VERSION:
        raise StoreError(other_version(where, found["format_version"], _REMEDY))
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise Corrupt(f"{where} is not a document of this format: {one_sentence(error, 'field')}.") from error


def to_bytes(value: Any) -> bytes:
    """Return readable JSON that depends on the content only."""
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def from_bytes(raw: bytes | None, where: str) -> Any:
    """Parse JSON bytes, or raise Corrupt naming the place."""
    if raw is None:
        raise Corrupt(f"{where} is missing.")
    try:
        return json.loads(raw.decode())  # strictly UTF-8; json itself lets surrogates pass
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"{where} is not valid JSON: {error}") from None


def group_bytes(document: Frozen | None = None) -> bytes:
    """Return the zarr.json of a group, with a sealed document as its attributes."""
    return to_bytes({"zarr_format": 3, "node_type": "group", "attributes": seal(document) if document else {}})


def group_document(raw: bytes | None, kind: type[DocumentT], where: str) -> DocumentT:
    """Return the sealed document of a group's zarr.json."""
    node = from_bytes(raw, where)
    if not isinstance(node, dict) or node.get("zarr_format") != 3 or node.get("node_type") != "group":
        raise Corrupt(f"{where} is not the metadata of a Zarr v3 group.")
    return unseal(node.get("attributes"), kind, where)


# ---------------------------------------------------------------- second copies
# Second copies of the plan and of each signal's document, which no other file could restore.


Restored = tuple[str | None, str, str]
"""A document that was damaged or lost and is written again: of which signal, its key, and what was wrong."""


def write_copy(backend: Backend, document: Plan | Signal) -> None:
    """Write the second copy of the zarr.json that holds a plan or a signal."""
    backend.write(_copy_key(document), group_bytes(document))


def _copy_key(document: Plan | Signal) -> str:
    return PLAN_COPY if isinstance(document, Plan) else signal_copy_key(document.name)


def wrong_copy(backend: Backend, document: Plan | Signal) -> tuple[str, str] | None:
    """Return where the copy of a document lies and what is wrong with it, or None."""
    key = _copy_key(document)
    try:
        same = group_document(backend.read(key), type(document), key) == document
    except Corrupt as error:
        return key, str(error)
    return None if same else (key, "the copy is of another document")


def find_plan_copy(backend: Backend) -> Plan | None:
    """Return the plan that the copy holds, None if there is none that can be read."""
    try:
        return group_document(backend.read(PLAN_COPY), Plan, f"{backend.location}/{PLAN_COPY}")
    except Corrupt:
        return None


def restore_documents(backend: Backend) -> list[Restored]:
    """Write again what one of the two copies of a document can bring back; nobody else may be writing."""
    plan, restored = _restored(backend, None, "zarr.json", PLAN_COPY, Plan)
    names = {*backend.names(SIGNALS_GROUP), *backend.names(COMMITS)} - {"zarr.json"}
    for name in sorted(names):
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
    """Return a document, written again from its copy if need be; None if both are gone, or there never was one."""
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
    """Return the document at a key; another signal's, in its place, is as wrong as a damaged one."""
    document: Plan | Signal = group_document(backend.read(key), kind, key)
    if isinstance(document, Signal) and document.name != signal:
        raise Corrupt(f"{key} is the document of the signal {document.name!r}.")
    return document


def _copied(backend: Backend, signal: str | None, document: Plan | Signal) -> list[Restored]:
    """Write the copy of a document again if it is not right, or not there."""
    if (wrong := wrong_copy(backend, document)) is None:
        return []
    write_copy(backend, document)
    return [(signal, *wrong)]
