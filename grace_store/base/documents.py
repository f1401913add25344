"""Documents: the notes that commands write about their outputs. Only this module writes, reads and checks them.

A document is a JSON object with a kind and a version. It lies beside a file, in the metadata of a Parquet table, or is
a file of its own. A document that another program, another release or a mistake changed is refused with the reason.
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
"""Key of the document in the metadata of a Parquet file."""

Number = Annotated[
    float,
    BeforeValidator(lambda value: math.nan if value is None else value),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "null"}]}),
]
"""A number that may be unknown: NaN in Python, null in JSON."""
Count = Annotated[int, Field(ge=0, lt=2**63)]
"""A count or an index that fits into an int64 array."""


class SampleRef(Frozen):
    """A sample by its id and its record's row in the dataset."""

    sample_id: str
    row: Count


class Document(Frozen):
    """Base of all documents. A field that is None is left out of the JSON.

    A class gives its words, maker, remedy and mistaken as keywords of its definition.
    """

    words: ClassVar[str]
    """The file that has such a document, in words for a message."""
    maker: ClassVar[str]
    """The command that writes the document."""
    remedy: ClassVar[str] = "Make the file again with `grace-store {maker}`."
    """What to do when the document cannot be read."""
    mistaken: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """What to do when a document of another kind is given by mistake, by that kind."""

    kind: str
    version: FormatVersion = FORMAT_VERSION
    made_by: str = Field(default=f"grace-store {__version__}", pattern="^grace-store ")

    def __init_subclass__(cls, **texts: Any) -> None:
        super().__init_subclass__()
        for name, text in texts.items():
            setattr(cls, name, text)

    def to_json(self) -> dict[str, Any]:
        """Return the document as JSON, with null for unknown numbers."""
        found: dict[str, Any] = without_nan(self.model_dump(mode="json", by_alias=True, exclude_none=True))
        return found


DocumentT = TypeVar("DocumentT", bound=Document)


def write_document(path: Path, document: Document) -> None:
    """Write a document as a JSON file."""
    write_json(path, document.to_json())


def claim_document(path: Path, document: Document) -> bool:
    """Write a document unless the file exists, even if another process creates it meanwhile; return whether written."""
    try:
        write_json(path, document.to_json(), only_new=True)
    except FileExistsError:
        return False
    return True


def document_metadata(document: Document) -> dict[bytes, bytes]:
    """Return the metadata of a Parquet file that contains a document."""
    return {METADATA_KEY: json.dumps(document.to_json(), allow_nan=False).encode()}


def read_document(path: Path, model: type[DocumentT]) -> DocumentT:
    """Read a document from a file; raise DataError with the reason if that fails."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path} does not exist. `grace-store {model.maker}` makes this file.") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from None
    return parse_document(raw, model, str(path))


def find_document(path: Path, model: type[DocumentT]) -> DocumentT | None:
    """Return the document at a path; None if there is none or it cannot be read."""
    try:
        return read_document(path, model)
    except DataError:
        return None


def metadata_document(metadata: Mapping[bytes, bytes] | None, model: type[DocumentT], where: str) -> DocumentT:
    """Return the document from a Parquet file's metadata, or raise DataError."""
    if (raw := (metadata or {}).get(METADATA_KEY)) is None:
        raise DataError(
            f"{where} is not {model.words}: the file has no note that says how it was made. {_remedy(model)}"
        )
    return parse_document(raw, model, where)


def parse_document(raw: bytes, model: type[DocumentT], where: str) -> DocumentT:
    """Parse the JSON text of a document; raise DataError with the fault and a remedy if it is wrong."""
    try:
        content = json.loads(raw.decode())
        # Later outputs contain this document, so refuse values that JSON cannot hold, such as NaN.
        text = json.dumps(content, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        if (what := _other_file(raw)) is not None:
            raise DataError(f"{where} is not {model.words}: the file is {what}. {_remedy(model, what)}") from None
        raise DataError(f"{where} has a damaged note about how it was made ({error}). {_remedy(model)}") from None
    if not isinstance(content, dict):
        raise DataError(f"{where} has a note that is not a JSON object. {_remedy(model)}")
    if (kind := content.get("kind")) != model.model_fields["kind"].default:
        fault = "has no kind" if kind is None else f"is of the kind {str(kind)[:40]!r}"
        raise DataError(f"{where} is not {model.words}: its note {fault}. {_remedy(model, str(kind))}")
    if (found := content.get("version")) != FORMAT_VERSION:
        raise DataError(other_version(where, found, _remedy(model)))
    try:
        return model.model_validate_json(text, strict=True)
    except ValidationError as error:
        wrong = one_sentence(error, "field")
        raise DataError(f"{where} has a wrong note about how it was made: {wrong}. {_remedy(model)}") from None


def _other_file(raw: bytes) -> str | None:
    """Return what a file is that does not hold one JSON value, if that is certain.

    >>> _other_file(b'{"id": 1}\\n{"id": 2}\\n'), _other_file(b'{"id": 1')
    ('a file of JSON lines', None)
    """
    if raw.startswith(b"PAR1"):
        return "a Parquet table"
    try:
        first = [json.loads(line) for line in raw.strip().split(b"\n", 2)[:2]]
    except (ValueError, RecursionError):
        return None
    return "a file of JSON lines" if [*map(type, first)] == [dict, dict] else None


def _remedy(model: type[Document], given: str = "") -> str:
    """Return what to do; given is the kind of document or file that was given by mistake."""
    return model.mistaken.get(given) or model.remedy.format(maker=model.maker)
