"""Engines are found by name, loaded when used, and a new one is a module and its name in one list."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from grace_store.base.errors import SettingError
from grace_store.base.events import ignore
from grace_store.run import engines
from grace_store.run.engines import ENGINES, LOCAL_ENGINES
from grace_store.run.engines.engine import Engine, EngineOptions, Work
from grace_store.run.engines.worker import ListFeed, run_units
from grace_store.run.extract import extract
from tests.jobs import content, make_job


@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_is_found_by_its_name(name: str) -> None:
    assert isinstance(ENGINES[name], Engine)


def test_an_unknown_engine_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(SettingError, match="unknown value 'rya' of --engine: use one of here, processes, ray"):
        EngineOptions("rya")


def test_the_process_engine_asks_for_devices(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="needs devices"):
        extract(make_job(tmp_path, engine=EngineOptions("processes")))


@pytest.mark.parametrize("name", LOCAL_ENGINES)
def test_engines_of_this_machine_score_on_its_threads(name: str) -> None:
    with ENGINES[name].tasks(EngineOptions(name), 3, ignore) as threads:
        assert threads == 3


class Backwards(Engine):
    """Runs the last unit first."""

    def run(self, work: Work) -> None:
        run_units(work.job, work.view, work.dataset, ListFeed(reversed(work.units), work.stop), work.listener)


def test_a_module_and_its_name_in_the_list_make_an_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType(f"{engines.__name__}.backwards")
    monkeypatch.setattr(module, "ENGINE", Backwards(), raising=False)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(ENGINES, "_names", (*ENGINES, "backwards"))
    extract(make_job(tmp_path, "plain.zarr"))
    extract(make_job(tmp_path, engine=EngineOptions("backwards")))
    assert content(tmp_path / "store.zarr") == content(tmp_path / "plain.zarr")


def test_extract_knows_no_engine_before_it_runs_one() -> None:
    probe = f"""
import sys
import grace_store.run.extract
print([name for name in ("ray", *("{engines.__name__}." + name for name in {list(ENGINES)})) if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
