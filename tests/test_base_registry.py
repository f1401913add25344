"""Things by name: known without being imported, imported when they are asked for."""

from __future__ import annotations

import sys

import pytest

from grace_store.base.registry import Registry


@pytest.fixture
def shapes(tmp_path, monkeypatch):
    """A package of two modules, each with one SHAPE; a third module is not in the list."""
    package = tmp_path / "shapes_of_a_test"
    package.mkdir()
    (package / "__init__.py").touch()
    for name, shape in (("round_one", "circle"), ("square", "square"), ("hidden", "nothing")):
        (package / f"{name}.py").write_text(f"SHAPE = {shape!r}\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield Registry[str]("shapes_of_a_test", "SHAPE", ("round-one", "square"))
    for name in [name for name in sys.modules if name.startswith("shapes_of_a_test")]:
        del sys.modules[name]


def test_names_are_listed_in_their_order_without_importing_anything(shapes):
    assert list(shapes) == ["round-one", "square"]
    assert len(shapes) == 2
    assert not [name for name in sys.modules if name.startswith("shapes_of_a_test.")]


def test_a_thing_is_its_modules_own(shapes):
    assert shapes["round-one"] == "circle"
    assert dict(shapes) == {"round-one": "circle", "square": "square"}


@pytest.mark.parametrize("name", ["hidden", "round_one", "", "os", "../square", None, 3, ["square"], {"a": 1}])
def test_what_is_not_in_the_list_is_not_there(shapes, name):
    assert name not in shapes
    with pytest.raises(KeyError):
        shapes[name]


def test_asking_whether_a_thing_is_there_is_not_asking_for_it_to_be_wrong(shapes):
    assert "square" in shapes
    assert shapes.get("triangle") is None


def test_a_listed_module_that_is_not_there_is_an_error_not_a_missing_name(shapes):
    broken = Registry[str]("shapes_of_a_test", "SHAPE", ("triangle",))
    with pytest.raises(ModuleNotFoundError, match="triangle"):
        broken["triangle"]
