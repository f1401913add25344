"""Documents: what a command writes about what it wrote. Written, read and checked here and nowhere else.

Each is a JSON object with a kind and a version, beside a file, in the metadata of a Parquet table, or as a file of its
own. One that another program, another release or a mistake changed is refused with the reason.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BeforeValidator, Field, ValidationError, WithJsonSchema

from grace_store import __version__
from grace_store.base.errors import DataError
from grace_store.base.files import write_json
from grace_store.base.metadata import FORMAT_VERSION, FormatVersion, other_version
from grace_store.base.settings import Frozen, one_sentence
from grace_store.base.text import without_nan

METADATA_KEY = b"grace_store"
"""Where a Parquet file of ours carries its document."""

Number = Annotated[
    float,
    BeforeValidator(lambda value: math.nan if value is None else value),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "null"}]}),
]
"""A number that may be unknown: NaN here, null in JSON."""
Count = Annotated[int, Field(ge=0, lt=2**63)]
"""A number of things, or a place among them, that an array can hold."""


class SampleRef(Frozen):
    """A sample by its id and its record's row in the dataset."""

    sample_id: str
    row: Count


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

    kind: str
    version: FormatVersion = FORMAT_VERSION
    made_by: str = Field(default=f"grace-store {__version__}", pattern="^grace-store ")

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
    return {METADATA_KEY: json.dumps(document.to_json(), allow_nan=False).encode()}


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
        content = json.loads(raw.decode())
        # It will be written again, into what is made from it: what JSON cannot hold must not get further.
        text = json.dumps(content, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where} carries a damaged note of what made it ({error}). {_remedy(model)}") from None
    if not isinstance(content, dict):
        raise DataError(f"{where} carries a note that is no JSON object. {_remedy(model)}")
    _check_kind(content, model, where)
    if (found := content.get("version")) != FORMAT_VERSION:
        raise DataError(other_version(where, found, _remedy(model)))
    try:
        return model.model_validate_json(text, strict=True)
    except ValidationError as error:
        wrong = one_sentence(error, "field")
        raise DataError(f"{where} carries a wrong note of what made it: {wrong}. {_remedy(model)}") from None


def _check_kind(content: Mapping[str, Any], model: type[Document], where: str) -> None:
    wanted, found = model.model_fields["kind"].default, content.get("kind")
    if found == wanted:
        return
    told = "has no kind" if found is None else f"is of the kind {str(found)[:40]!r}"
    remedy = model.mistaken.get(str(found)) or _remedy(model)
    raise DataError(f"{where} is not {model.words}: its note {told}. {remedy}")


def _remedy(model: type[Document]) -> str:
    return model.remedy.format(maker=model.maker)
