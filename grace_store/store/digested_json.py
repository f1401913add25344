"""JSON documents that contain the digest of their own content, so that damage is detected."""

import hashlib
import json
from typing import Any, TypeVar

from pydantic import ValidationError

from grace_store.base.errors import Corrupt, StoreError
from grace_store.base.metadata import FORMAT_VERSION, other_version
from grace_store.base.settings import Frozen, one_sentence
from grace_store.base.text import canonical_json

DocumentT = TypeVar("DocumentT", bound=Frozen)

SEAL = "grace_store_sha256"
BODY = "grace_store"


def seal(document: Frozen) -> dict[str, Any]:
    """Return {body, digest of the body}."""
    return {BODY: document.model_dump(mode="json"), SEAL: document.digest()}


def sealed_body(sealed: Any, where: str) -> bytes:
    """Return the canonical JSON of a sealed mapping after a check of its digest; raise Corrupt with the place."""
    if not isinstance(sealed, dict) or BODY not in sealed or SEAL not in sealed:
        raise Corrupt(f"{where} is not a document of this format.")
    try:
        body = canonical_json(sealed[BODY])
    except ValueError:  # NaN, or half of a surrogate pair
        body = b""
    if hashlib.sha256(body).hexdigest() != sealed[SEAL]:
        raise Corrupt(f"{where} does not match its own digest: the file was damaged or edited.")
    return body


def unseal(sealed: Any, kind: type[DocumentT], where: str) -> DocumentT:
    """Return the document of a sealed mapping; raise Corrupt, or StoreError if it has another version."""
    body = sealed_body(sealed, where)
    found = sealed[BODY]
    if isinstance(found, dict) and found.get("format_version", FORMAT_VERSION) != FORMAT_VERSION:
        remedy = "Extract the data again into another store, or use the version of grace-store that wrote this store."
        raise StoreError(other_version(where, found["format_version"], remedy))
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise Corrupt(f"{where} is not a document of this format: {one_sentence(error, 'field')}.") from error


def to_bytes(value: Any) -> bytes:
    """Return readable JSON that depends only on the content."""
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def from_bytes(raw: bytes | None, where: str) -> Any:
    """Parse JSON bytes, or raise Corrupt with the place."""
    if raw is None:
        raise Corrupt(f"{where} is missing.")
    try:
        return json.loads(raw.decode())  # strictly UTF-8; json alone accepts surrogates
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"{where} is not valid JSON: {error}") from None


def group_bytes(document: Frozen | None = None) -> bytes:
    """Return the zarr.json of a group, with a sealed document in its attributes."""
    return to_bytes({"zarr_format": 3, "node_type": "group", "attributes": seal(document) if document else {}})


def group_document(raw: bytes | None, kind: type[DocumentT], where: str) -> DocumentT:
    """Return the sealed document of a group's zarr.json."""
    node = from_bytes(raw, where)
    if not isinstance(node, dict) or node.get("zarr_format") != 3 or node.get("node_type") != "group":
        raise Corrupt(f"{where} is not the metadata of a Zarr v3 group.")
    return unseal(node.get("attributes"), kind, where)
