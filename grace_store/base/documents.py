"""Documents: what a command writes about what it wrote. Written, read and checked here and nowhere else.

Each is a JSON object with a kind and a version, beside a file, in the metadata of a Parquet table, or as a file of its
own. One that another program, another release or a mistake changed is refused with the reason.
"""

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import BeforeValidator, Field, ValidationError, WithJsonSchema, field_validator

from grace_store import __version__
from grace_store.base.errors import DataError, SettingError
from grace_store.base.files import write_json
from grace_store.base.settings import Frozen, one_sentence
from grace_store.base.text import without_nan

METADATA_KEY = b"grace_store"
"""Where a Parquet file of ours carries its document."""
VERSION = "1.3"
"""Of documents that are written today: a new field makes a new minor version, another meaning a new major one."""
FIRST_VERSION = "1.0"
"""Of documents that were written before they said their version."""

Number = Annotated[
    float,
    BeforeValidator(lambda value: math.nan if value is None else value),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "null"}]}),
]
"""A number that may be unknown: NaN here, null in JSON."""
Count = Annotated[int, Field(ge=0, lt=2**63)]
"""A number of things, or a place among them, that an array can hold."""


class Document(Frozen):
    """What every document says of itself. A field that is None is left out of the JSON."""

    words: ClassVar[str]
    """What it belongs to, in a sentence."""
    maker: ClassVar[str]
    """The command that writes it."""
    remedy: ClassVar[str] = "Make it again with `grace-store {maker}`."
    """What to do when it cannot be read."""
    mistaken: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """What to do where another kind, which is easily taken for this one, is found in its place."""
    was_bare: ClassVar[bool] = False
    """Whether documents of this kind were once written without kind, version and made_by."""

    kind: str
    version: str = VERSION
    made_by: str = Field(default=f"grace-store {__version__}", pattern="^grace-store ")

    @field_validator("version")
    @classmethod
    def _is_known(cls, value: str) -> str:
        """Refuse a version that is none or newer, also of a document inside another."""
        if not _is_readable(value):
            raise SettingError(f"version {value[:40]!r} of the note of {cls.words} is none that this release reads")
        return value

    def renewed(self, **changes: Any) -> Self:
        """Return a document of today's release, made from this one, which may be older."""
        today = {name: Document.model_fields[name].default for name in ("version", "made_by")}
        return self.model_copy(update=today | changes)

    def to_json(self) -> dict[str, Any]:
        """Return the document as JSON has it: null, or nothing, for what is unknown."""
        found: dict[str, Any] = without_nan(self.model_dump(mode="json", by_alias=True, exclude_none=True))
        return found


DocumentT = TypeVar("DocumentT", bound=Document)


def write_document(path: Path, document: Document) -> None:
    """Write a document as a file that people and machines read."""
    write_json(path, document.to_json())


def claim_document(path: Path, document: Document) -> bool:
    """Write a document unless there is a file of that name, however late it came; return whether it was written."""
    try:
        write_json(path, document.to_json(), only_new=True)
    except FileExistsError:
        return False
    return True


def document_metadata(document: Document) -> dict[bytes, bytes]:
    """Return the metadata that carries a document in a Parquet file."""
    return {METADATA_KEY: json.dumps(document.to_json(), sort_keys=True, allow_nan=False).encode()}


def read_document(path: Path, model: type[DocumentT]) -> DocumentT:
    """Read a document that is a file, or raise DataError saying what is wrong with it."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; `grace-store {model.maker}` makes it.") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from None
    return parse_document(raw, model, str(path))


def find_document(path: Path, model: type[DocumentT]) -> DocumentT | None:
    """Return the document at a path if there is one and it can be read, else None."""
    try:
        return read_document(path, model)
    except DataError:
        return None


def metadata_document(metadata: Mapping[bytes, bytes] | None, model: type[DocumentT], where: str) -> DocumentT:
    """Return the document that a Parquet file's metadata carries, or raise DataError."""
    if (raw := (metadata or {}).get(METADATA_KEY)) is None:
        raise DataError(f"{where} is not {model.words}: it carries no note of what made it. {_remedy(model)}")
    return parse_document(raw, model, where)


def parse_document(raw: bytes, model: type[DocumentT], where: str) -> DocumentT:
    """Return the document of a kind that JSON text holds, or raise DataError with what is wrong and what to do."""
    try:
        content = _completed(json.loads(raw.decode()), model)
        # It will be written again, into what is made from it: what JSON cannot hold must not get further.
        text = json.dumps(content, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where} carries a damaged note of what made it ({error}). {_remedy(model)}") from None
    if not isinstance(content, dict):
        raise DataError(f"{where} carries a note that is no JSON object. {_remedy(model)}")
    _check_kind(content, model, where)
    _check_version(content, model, where)
    try:
        return model.model_validate_json(text, strict=True)
    except ValidationError as error:
        wrong = one_sentence(error, "field")
        raise DataError(f"{where} carries a wrong note of what made it: {wrong}. {_remedy(model)}") from None


def _completed(content: Any, model: type[Document]) -> Any:
    """Return a document with what earlier releases did not say of it."""
    if model.was_bare and isinstance(content, dict) and not Document.model_fields.keys() & content.keys():
        content["kind"] = model.model_fields["kind"].default
        content["made_by"] = "grace-store (an early release)"
    return _with_versions(content)


def _with_versions(value: Any) -> Any:
    """Return JSON with the first version where a document, alone or inside another, says none."""
    if isinstance(value, list):
        return [_with_versions(each) for each in value]
    if not isinstance(value, dict):
        return value
    first = {"version": FIRST_VERSION} if "kind" in value and "made_by" in value else {}
    return first | {key: _with_versions(each) for key, each in value.items()}


def _check_kind(content: Mapping[str, Any], model: type[Document], where: str) -> None:
    wanted, found = model.model_fields["kind"].default, content.get("kind")
    if found == wanted:
        return
    told = "has no kind" if found is None else f"is of the kind {str(found)[:40]!r}"
    remedy = model.mistaken.get(str(found)) or _remedy(model)
    raise DataError(f"{where} is not {model.words}: its note {told}. {remedy}")


def _check_version(content: Mapping[str, Any], model: type[Document], where: str) -> None:
    found = content.get("version")
    if not isinstance(found, str) or not _is_version(found):
        raise DataError(f"{where} says version {str(found)[:40]!r}, which is no version. {_remedy(model)}")
    if not _is_readable(found):
        raise DataError(
            f"{where} was written by another release of grace-store ({str(content.get('made_by'))[:40]}): its note has "
            f"version {found}, and this release reads {FIRST_VERSION} to {VERSION}. Use that release, or a newer one."
        )


def _is_version(text: str) -> bool:
    return re.fullmatch(r"[0-9]{1,9}\.[0-9]{1,9}", text) is not None


def _is_readable(version: str) -> bool:
    """Return whether a version is one of those that this release reads: from the first to today's."""
    if not _is_version(version):
        return False
    first, found, last = (tuple(map(int, each.split("."))) for each in (FIRST_VERSION, version, VERSION))
    return first <= found <= last


def _remedy(model: type[Document]) -> str:
    return model.remedy.format(maker=model.maker)
