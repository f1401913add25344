"""Identity by content: what changes it, what does not, and the memory of file digests."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path

import pytest
import transformers
from safetensors.torch import load_file, save_file

import grace_store.base.files as fingerprint
from grace_store.base.errors import ModelError
from grace_store.base.files import file_sha256, files_sha256
from grace_store.model.load.weights import describe_model
from tests.tiny_models import TRIMMING, tiny_text_model, tiny_tokenizer


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("GRACE_STORE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path) -> Path:
    return tiny_text_model("llama", tmp_path / "model")


def identity(folder: Path) -> dict:
    return describe_model(folder).identity.model_dump()


def changed(before: dict, after: dict) -> set[str]:
    return {name for name in before if before[name] != after[name]}


def test_moving_the_folder_changes_nothing(folder, tmp_path):
    before = identity(folder)
    assert identity(folder.rename(tmp_path / "elsewhere")) == before


def shards(tmp_path: Path) -> Path:
    """Return a model in several weight files."""
    folder = tiny_text_model("llama", tmp_path / "whole")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    model.save_pretrained(tmp_path / "shards", max_shard_size="30KB")
    tiny_tokenizer().save_pretrained(tmp_path / "shards")
    return tmp_path / "shards"


def test_renaming_shards_changes_nothing(tmp_path):
    folder = shards(tmp_path)
    before = identity(folder)
    index = folder / "model.safetensors.index.json"
    content = index.read_text()
    files = sorted(folder.glob("*.safetensors"))
    assert len(files) > 1
    for number, file in enumerate(reversed(files)):
        name = f"part-{number}.safetensors"
        content = content.replace(file.name, name)
        file.rename(folder / name)
    index.write_text(content)
    assert identity(folder) == before


def test_a_tensor_in_two_shards_is_refused(tmp_path):
    """Which of the two counts would follow from the names of the files, which are no part of the identity."""
    folder = shards(tmp_path)
    first, second = sorted(folder.glob("*.safetensors"))[:2]
    one, other = load_file(first), load_file(second)
    name = next(iter(one))
    save_file(other | {name: one[name] + 1}, second, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=f"holds the tensor {re.escape(name)}, and another weight file"):
        identity(folder)


def test_where_a_config_came_from_changes_nothing(folder):
    before = identity(folder)
    config = json.loads((folder / "config.json").read_text())
    config.update(transformers_version="9.9", _name_or_path="/home/me", dtype="bfloat16", use_cache=False)
    (folder / "config.json").write_text(json.dumps(config, indent=7))
    assert identity(folder) == before


def test_one_byte_of_the_weights_shows(folder):
    before = identity(folder)
    weights = folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert changed(before, identity(folder)) == {"weights"}


def test_the_configuration_shows(folder):
    before = identity(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 0.5}))
    assert changed(before, identity(folder)) == {"config"}


def test_the_chat_template_shows(folder):
    before = identity(folder)
    tiny_tokenizer(chat_template=TRIMMING).save_pretrained(folder)
    assert changed(before, identity(folder)) == {"template"}


def test_the_tokenizer_shows(folder):
    before = identity(folder)
    state = json.loads((folder / "tokenizer.json").read_text())
    state["model"]["merges"] = state["model"]["merges"][:-1]
    (folder / "tokenizer.json").write_text(json.dumps(state))
    assert changed(before, identity(folder)) == {"tokenizer"}


def test_a_tokenizers_last_use_changes_nothing(folder):
    before = identity(folder)
    describe_model(folder).tokenizer("a b c", truncation=True, max_length=2, padding="max_length")
    (folder / "notes.txt").write_text("so that the folder is read anew")
    assert identity(folder) == before


@pytest.fixture
def reads(monkeypatch) -> list[Path]:
    read: list[Path] = []
    actual = fingerprint._read_sha256
    monkeypatch.setattr(fingerprint, "_read_sha256", lambda path: read.append(path) or actual(path))
    return read


@pytest.fixture
def settled(tmp_path, monkeypatch) -> Path:
    """A file that counts as written long ago."""
    monkeypatch.setattr(fingerprint, "_SETTLED_NS", -1)
    (tmp_path / "w").write_bytes(b"weights")
    return tmp_path / "w"


def test_a_file_is_read_once(settled, reads):
    expected = hashlib.sha256(b"weights").hexdigest()
    assert [file_sha256(settled), file_sha256(settled)] == [expected, expected]
    assert len(reads) == 1


def test_other_content_with_the_same_size_and_times_shows(settled):
    file_sha256(settled)
    times = settled.stat()
    settled.write_bytes(b"heavier")
    os.utime(settled, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert file_sha256(settled) == hashlib.sha256(b"heavier").hexdigest()


def test_a_file_just_written_is_not_remembered(tmp_path, reads):
    (tmp_path / "w").write_bytes(b"new")
    assert file_sha256(tmp_path / "w") == file_sha256(tmp_path / "w")
    assert len(reads) == 2


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff", None])
def test_a_broken_memory_is_ignored(settled, cache, reads, content):
    expected = file_sha256(settled)
    (entry,) = (cache / "digests").iterdir()
    broken = {**json.loads(entry.read_text()), "sha256": "nonsense"}
    entry.write_bytes(json.dumps(broken).encode() if content is None else content)
    assert file_sha256(settled) == expected
    assert len(reads) == 2
    assert [part.name for part in (cache / "digests").iterdir()] == [entry.name]


def test_a_cache_that_cannot_be_written_costs_only_time(settled, cache, reads):
    cache.write_text("a file where the folder should be")
    assert file_sha256(settled) == file_sha256(settled)
    assert len(reads) == 2


def test_several_files_by_content(tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_bytes(b"1")
    b.write_bytes(b"2")
    before = files_sha256([a, b])
    assert files_sha256([b, a.rename(tmp_path / "c")]) == before
    b.write_bytes(b"3")
    assert files_sha256([tmp_path / "c", b]) != before
    assert files_sha256([b]) != files_sha256([b, b])
