"""What is fuzzed: a name, good inputs to start from, and a call that must end in a result or in an error of ours.

A target says in a word what became of an input; an error of the library's own tree counts as "refused". Anything else
that is raised is a failure, and so is an invariant that does not hold.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard
from click.testing import CliRunner
from PIL import Image

from grace_store.base.documents import METADATA_KEY, parse_document
from grace_store.base.errors import DataError, GraceStoreError, UnknownFormat
from grace_store.base.settings import DataSpec
from grace_store.base.states import Unusable
from grace_store.base.text import canonical_json
from grace_store.cli import main
from grace_store.data.answers import boxed_answer, natural_answer
from grace_store.data.dataset import Dataset
from grace_store.data.formats.known_formats import FORMATS
from grace_store.data.image_files import ImageFolder
from grace_store.data.parse_records import parse_record
from grace_store.data.record import Record, parse_object
from grace_store.data.sample import ImageRef, Sample
from grace_store.data.splitters import compile_marker, line_starts, natural_starts, paragraph_starts, section_starts
from grace_store.model.load.adapter_folder import open_adapter
from grace_store.model.load.model_folder import open_folder
from grace_store.run.plan import found_format
from grace_store.run.status import status
from grace_store.run.verify import verify
from grace_store.scoring.sweep_settings import load_grid
from grace_store.store.digested_json import BODY, SEAL
from grace_store.store.opened import Store
from jobs.schemas import NOTES
from tests.example_notes import EXAMPLES as NOTE_EXAMPLES
from tests.format_examples import EXAMPLES
from tests.scored_stores import known_store
from tests.stores import SIGNAL, extract_store

Run = Callable[[bytes, Path], str]


@dataclass(frozen=True)
class Target:
    """run(input, an existing folder of its own) returns what became of it; seeds(folder) makes good inputs."""

    run: Run
    seeds: Callable[[Path], list[bytes]]


# ---------------------------------------------------------------- files of records


def _lines(_: Path) -> list[bytes]:
    texts = [json.dumps(record).encode() for record in EXAMPLES.values()]
    unescaped = [json.dumps(record, ensure_ascii=False).encode() for record in EXAMPLES.values()]
    same = [
        b"\n".join(json.dumps({**record, "id": f"r{i}"}).encode() for i in range(3)) for record in EXAMPLES.values()
    ]
    return [*texts, *unescaped, *same, b"\n".join(texts) + b"\n", b"\xef\xbb\xbf" + texts[0] + b"\r\n" + texts[1]]


def _arrays(_: Path) -> list[bytes]:
    records = [[record] * 2 for record in EXAMPLES.values()] + [list(EXAMPLES.values())]
    return [json.dumps(some, indent=indent).encode() for some in records for indent in (None, 2)]


def _rows() -> list[pa.Table]:
    flat = {"prompt": ["a", "b"], "steps": [["x", "y"], ["z"]], "answer": ["1", "2"], "id": ["p", "q"]}
    image = {**flat, "image": [{"bytes": b"\x89PNG", "path": "a.png"}] * 2, "n": [1.5, float("nan")]}
    turns = [[{"role": "user", "content": "?"}, {"role": "assistant", "content": "a\n\nb\n\nAnswer: c"}]] * 2
    return [
        pa.table(flat),
        pa.table(image),
        pa.table({"messages": turns, "when": pa.array([0, 1], pa.timestamp("ns"))}),
    ]


def _parquet(_: Path) -> list[bytes]:
    made = []
    for table in _rows():
        for settings in ({}, {"compression": "zstd"}, {"use_dictionary": False, "data_page_version": "2.0"}):
            pq.write_table(table, stream := io.BytesIO(), **settings)
            made.append(stream.getvalue())
    return made


def _arrow(_: Path) -> list[bytes]:
    made = []
    for table in [*_rows(), pa.table({"prompt": pa.array(["a", "a"]).dictionary_encode()})]:
        for new in (pa.ipc.new_stream, pa.ipc.new_file):
            with new(stream := io.BytesIO(), table.schema) as writer:
                writer.write_table(table, max_chunksize=1)
            made.append(stream.getvalue())
    return made


def _record_file(name: str) -> Run:
    def run(data: bytes, folder: Path) -> str:
        path = folder / name
        path.write_bytes(data)
        try:
            return _read_all([path], data)
        except GraceStoreError as error:
            return _refused(error, path.name)

    return run


def _refused(error: GraceStoreError, name: str) -> str:
    """An error must say which file it is about, and in our own words."""
    assert name in str(error), f"does not name the file: {error}"
    assert "pydantic" not in str(error), f"speaks of pydantic: {error}"
    return "refused"


def _read_all(paths: list[Path], data: bytes) -> str:
    """Scan, understand, and read every record again from where it was found."""
    with Dataset.open(paths) as dataset:
        records = list(dataset.scan())
        try:
            format = found_format(dataset, records[:64])
        except UnknownFormat as error:
            _refused(error, dataset.files[0].path.name)
            format = list(FORMATS)[len(data) % len(FORMATS)]
        num_samples = sum(_understood(record, format) for record in records)
        for record in records:
            if record.large_digest is None:
                assert dataset.read(record.file, record.offset, record.length) == record.raw
    return "samples" if num_samples else "set aside" if records else "nothing"


def _understood(record: Record, format: str) -> bool:
    try:
        sample = parse_record(record, DataSpec(format=format, min_steps=1), "data", record.row_in_file)
    except Unusable:
        return False
    _check_sample(sample)
    return True


def _check_sample(sample: Sample) -> None:
    assert sample.bounds[0] == 0
    assert sample.bounds[-1] == len(sample.response)
    assert all(a < b for a, b in pairwise(sample.bounds)), sample.bounds
    assert all(text.strip() for text in sample.segments)
    assert sample.sample_id.splitlines() == [sample.sample_id], "an id is one line"
    sample.response.encode()
    assert all(isinstance(part, str | ImageRef) for turn in sample.turns for part in turn.parts)


def _datasets_folder(data: bytes, folder: Path) -> str:
    (folder / "data-00000-of-00001.arrow").write_bytes(_cached_arrow())
    (folder / "state.json").write_bytes(data)
    try:
        return _read_all([folder], data)
    except GraceStoreError as error:
        return _refused(error, folder.name)


@cache
def _cached_arrow() -> bytes:
    return _arrow(Path())[0]


def _states(_: Path) -> list[bytes]:
    state = {
        "_data_files": [{"filename": "data-00000-of-00001.arrow"}],
        "_fingerprint": "x",
        "_indices_data_files": None,
    }
    return [json.dumps(state).encode(), json.dumps(state, indent=2).encode()]


# ---------------------------------------------------------------- records, texts, expressions


def _record(data: bytes, _: Path) -> str:
    """Every format on one record: none raises anything but a verdict."""
    try:
        parse_object(data)
    except Unusable:
        return "set aside"
    record = Record(0, 0, 0, len(data), data)
    understood = [_understood(record, format) for format in FORMATS]
    return "samples" if any(understood) else "set aside"


def _texts(_: Path) -> list[bytes]:
    found = [record.get("output") or record.get("answer") for record in EXAMPLES.values()]
    found += [EXAMPLES["openr1"]["generations"][1], EXAMPLES["sharegpt"]["conversations"][1]["value"]]
    return [text.encode() for text in found if isinstance(text, str)]


def _split(data: bytes, _: Path) -> str:
    text = data.decode(errors="ignore")
    for split in (line_starts, paragraph_starts, section_starts, natural_starts):
        starts = split(text)
        assert starts == sorted(set(starts))
        assert all(0 <= start < len(text) for start in starts)
    for found in (natural_answer(text), boxed_answer(text, by_paragraph=True)):
        assert found is None or text[found:].strip()
    return "split"


def _expression(data: bytes, _: Path) -> str:
    compile_marker.__wrapped__("--splitter", data.decode(errors="replace"))
    return "compiled"


# ---------------------------------------------------------------- images


def _pictures(_: Path) -> list[bytes]:
    made = []
    for kind in ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF"):
        Image.new("RGB", (9, 7), "red").save(stream := io.BytesIO(), kind)
        made.append(stream.getvalue())
    Image.new("LA", (5, 5)).save(stream := io.BytesIO(), "PNG")
    return [*made, stream.getvalue(), b"<svg xmlns='http://www.w3.org/2000/svg'/>"]


def _picture(data: bytes, folder: Path) -> str:
    try:
        image, _ = ImageFolder(folder).open(ImageRef(data))
    except Unusable:
        return "set aside"
    assert image.mode == "RGB"
    return "pictures"


def _paths(_: Path) -> list[bytes]:
    return [
        b"a.png",
        b"sub/a.png",
        b"../secret.png",
        b"/etc/passwd",
        b"link",
        b"sub/../a.png",
        b"data:image/png;base64,iVBO",
        b"file:///etc/passwd",
        b"a.png\0",
        b"C:\\a.png",
        b"~/a.png",
        b"sub/../../secret.png",
        b"loop",
    ]


def _image_path(data: bytes, folder: Path) -> str:
    """No path, however written, reads a file outside the folder."""
    inside = folder / "images"
    if not inside.exists():
        (inside / "sub").mkdir(parents=True)
        Image.new("RGB", (4, 4), "red").save(inside / "a.png")
        Image.new("RGB", (4, 4), "blue").save(folder / "secret.png")
        (inside / "link").symlink_to(folder / "secret.png")
        (inside / "loop").symlink_to("loop")
    try:
        _, sha256 = ImageFolder(inside).open(ImageRef(data.decode(errors="surrogateescape")))
    except Unusable:
        return "set aside"
    assert sha256 != hashlib.sha256((folder / "secret.png").read_bytes()).hexdigest(), "left the folder"
    return "pictures"


# ---------------------------------------------------------------- settings


def _config_files(_: Path) -> list[bytes]:
    return [
        b'format = "explicit"\nmin-steps = 1\nsplitter = "lines"\n',
        b'answer = "marker:So"\nmax_steps = 9\nunit-samples = 2\n',
        b'# about\nformat = "gsm8k"\nimages = "images"\n',
    ]


def _config_file(data: bytes, folder: Path) -> str:
    (folder / "c.toml").write_bytes(data)
    (folder / "d.jsonl").write_bytes(b'{"prompt": "a", "steps": ["b"], "answer": "c"}\n')
    shutil.rmtree(folder / "s.zarr", ignore_errors=True)
    return _command("plan", folder / "s.zarr", folder / "d.jsonl", "--config", folder / "c.toml")


def _grids(_: Path) -> list[bytes]:
    files = sorted((Path(__file__).parents[2] / "jobs" / "sweeps").glob("*.toml"))
    return [file.read_bytes() for file in files]


def _grid(data: bytes, folder: Path) -> str:
    path = folder / "grid.toml"
    path.write_bytes(data)
    try:
        load_grid(path)
    except GraceStoreError as error:
        return _refused(error, path.name)
    return "grids"


# ---------------------------------------------------------------- stores, tables, model folders


def _store(folder: Path) -> Path:
    place = folder / "made"
    if not place.exists():
        extract_store(place)
    return place / "store.zarr"


def _documents(folder: Path) -> list[bytes]:
    store = _store(folder)
    names = [
        "zarr.json",
        f"signals/{SIGNAL}/zarr.json",
        "samples/sample_row/zarr.json",
        f"signals/{SIGNAL}/sample_gram/zarr.json",
    ]
    names += [str(path.relative_to(store)) for path in sorted((store / "ledger").rglob("*.json"))[:3]]
    return [name.encode() + b"\n" + json.dumps(json.loads((store / name).read_bytes())).encode() for name in names]


def _document(data: bytes, folder: Path) -> str:
    """A store with one of its documents replaced; where it is one that carries its digest, the digest is made right."""
    store = _store(folder)
    name, _, document = data.partition(b"\n")
    known = {path.relative_to(store).as_posix(): path for path in store.rglob("*.json")}
    path = known.get(name.decode(errors="replace"), store / "zarr.json")
    before = path.read_bytes()
    try:
        path.write_bytes(_sealed(document))
        opened = Store.open(store)
        status(opened)
        problems = list(verify(opened, deep=True))
        opened.samples(0, opened.plan.num_samples)
        return "found broken" if problems else "accepted"
    finally:
        path.write_bytes(before)


def _sealed(document: bytes) -> bytes:
    """Return a document with the digest that its body has now, where it has one."""
    try:
        node = json.loads(document)
        for holder in (node, node.get("attributes")):
            if isinstance(holder, dict) and BODY in holder:
                holder[SEAL] = hashlib.sha256(canonical_json(holder[BODY])).hexdigest()
        return json.dumps(node).encode()
    except (ValueError, TypeError, AttributeError, RecursionError):
        return document


def _table(folder: Path) -> Path:
    place = folder / "scores.parquet"
    if not place.exists():
        store = known_store(folder).store
        assert _command("score", store.location, "--out", place) == "done"
    return place


def _tables(folder: Path) -> list[bytes]:
    made = [_table(folder).read_bytes()]
    table = pq.read_table(_table(folder))
    for changed in (
        table.set_column(1, "row", pa.array([str(i) for i in range(len(table))])),
        table.set_column(1, "row", pa.nulls(len(table), pa.int64())),
        table.set_column(4, "value", pa.array([[1.0]] * len(table))),
        table.set_column(0, "sample_id", pa.array([None] * len(table), pa.string())),
        table.set_column(2, "num_steps", pa.array([-1] * len(table), pa.int32())),
        table.set_column(2, "num_steps", pa.array([10**6] * len(table), pa.int32())),
        table.slice(0, 0),
    ):
        pq.write_table(changed.replace_schema_metadata(table.schema.metadata), stream := io.BytesIO())
        made.append(stream.getvalue())
    return made


def _scores(data: bytes, folder: Path) -> str:
    path = folder / "strange.parquet"
    path.write_bytes(data)
    became = _command("audit", path)
    _command("select", path, "--ratio", "0.5", "--out", folder / "ids.txt", "--as", "ids")
    return became


def _table_notes(folder: Path) -> list[bytes]:
    return [pq.read_schema(_table(folder)).metadata[METADATA_KEY]]


def _table_note(data: bytes, folder: Path) -> str:
    """A table of scores whose note of what made it is a stranger's."""
    table = pq.read_table(_table(folder))
    path = folder / "noted.parquet"
    pq.write_table(table.replace_schema_metadata({METADATA_KEY: data}), path)
    became = _command("select", path, "--ratio", "0.5", "--out", folder / "ids.txt", "--as", "ids")
    _command("audit", path)
    return became


def _sidecars(folder: Path) -> list[bytes]:
    assert _command("select", _table(folder), "--ratio", "0.5", "--out", folder / "sub.txt", "--as", "ids") == "done"
    return [(folder / "sub.txt.spec.json").read_bytes()]


def _sidecar(data: bytes, folder: Path) -> str:
    (folder / "other.txt").write_bytes(b"")
    (folder / "other.txt.spec.json").write_bytes(data)
    return _command("compare", folder / "other.txt", _table(folder))


def _note(data: bytes, _: Path) -> str:
    """Bytes as a note of every kind: what is accepted can be written and read again."""
    became = "refused"
    for model in NOTES:
        try:
            found = parse_document(data, model, "note")
        except DataError:
            continue
        became = "accepted"
        again = parse_document(json.dumps(found.to_json()).encode(), model, "note")
        assert again.to_json() == found.to_json()
    return became


def _model_configs(_: Path) -> list[bytes]:
    index = {"metadata": {}, "weight_map": {"a": "model-00001-of-00001.safetensors"}}
    config = {"model_type": "llama", "hidden_size": 8, "auto_map": {"AutoModel": "evil.Model"}}
    adapter = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj"], "bias": "none"}
    return [json.dumps(each).encode() for each in (config, index, adapter)]


def _model_folder(data: bytes, folder: Path) -> str:
    """Every JSON document of a model's or an adapter's folder, read before any library sees it."""
    for name in ("config.json", "model.safetensors.index.json", "tokenizer.json"):
        (folder / name).write_bytes(data)
    adapter = folder / "adapter"
    adapter.mkdir(exist_ok=True)
    (adapter / "adapter_config.json").write_bytes(data)
    (adapter / "adapter_model.safetensors").write_bytes(data)
    became = "refused"
    for read in (lambda: open_folder(folder), lambda: open_adapter(adapter)):
        try:
            read()
            became = "accepted"
        except GraceStoreError as error:
            _refused(error, folder.name)
    return became


def _command(*words: str | Path) -> str:
    """Run a command as a user would: it ends with a result or with a sentence, never with a traceback."""
    result = CliRunner().invoke(main, [os.fspath(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert "Traceback" not in result.output
    return "done" if result.exit_code == 0 else "refused"


def _compressed(compress: Callable[[bytes], bytes]) -> Callable[[Path], list[bytes]]:
    return lambda folder: [compress(text) for text in [*_lines(folder)[::5], *_arrays(folder)[::5]]]


TARGETS: dict[str, Target] = {
    "json lines": Target(_record_file("x.jsonl"), _lines),
    "json arrays": Target(_record_file("x.json"), _arrays),
    "gzip": Target(_record_file("x.jsonl.gz"), _compressed(gzip.compress)),
    "zstd": Target(_record_file("x.jsonl.zst"), _compressed(zstandard.compress)),
    "parquet": Target(_record_file("x.parquet"), _parquet),
    "arrow": Target(_record_file("x.arrow"), _arrow),
    "datasets folders": Target(_datasets_folder, _states),
    "records": Target(_record, _lines),
    "texts": Target(_split, _texts),
    "expressions": Target(_expression, lambda _: [b"^Step \\d+:", b"(?:a|b)+c", b"[0-9]{1,3}\\."]),
    "pictures": Target(_picture, _pictures),
    "image paths": Target(_image_path, _paths),
    "configurations": Target(_config_file, _config_files),
    "grids": Target(_grid, _grids),
    "store documents": Target(_document, _documents),
    "score tables": Target(_scores, _tables),
    "notes in tables": Target(_table_note, _table_notes),
    "notes of subsets": Target(_sidecar, _sidecars),
    "notes of all kinds": Target(
        _note, lambda _: [json.dumps(each.to_json()).encode() for each in NOTE_EXAMPLES.values()]
    ),
    "model folders": Target(_model_folder, _model_configs),
}
