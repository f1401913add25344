"""The files around the package: workflows call what the Makefile has, and messages name extras that there are."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import grace_store
from grace_store.cli.console import EXTRAS

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = sorted((ROOT / ".github/workflows").iterdir())
FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("[!c]*.yml"))
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def steps_of(workflow: Path) -> list[dict[str, Any]]:
    return [step for job in read(workflow)["jobs"].values() for step in job["steps"]]


def not_called(runs: list[str]) -> list[str]:
    """Return the commands that are anything but make with targets that the Makefile has, and variables."""
    wrong = []
    for run in runs:
        make, *words = run.split()
        targets = [word for word in words if "=" not in word]
        if make != "make" or not targets or not set(targets) <= TARGETS or "\n" in run.strip():
            wrong.append(run)
    return wrong


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_runs_targets_of_the_makefile_and_actions_that_cannot_change(workflow: Path) -> None:
    steps = steps_of(workflow)
    assert not_called([step["run"] for step in steps if "run" in step]) == []
    used = [step["uses"] for step in steps if "uses" in step]
    assert [action for action in used if not re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", action)] == []
    assert read(workflow)["permissions"] == {"contents": "read"}


def test_every_test_is_run_by_one_of_two_targets_and_both_run_in_ci() -> None:
    chosen = dict(re.findall(r"^(test[a-z-]*):.*\n.*pytest .*-m (\"[^\"]*\"|\S+)", MAKEFILE, re.MULTILINE))
    assert chosen == {"test": '"not slow"', "test-all": "slow"}
    commands = [line for line in (ROOT / ".ci/run").read_text().splitlines() if line.startswith("make")]
    assert commands == ["make test", "make test-all"]
    assert set(commands) <= {step.get("run") for path in WORKFLOWS for step in steps_of(path)}


def test_what_no_makefile_has_would_be_seen() -> None:
    wrong = ["make chek", "pytest -q", "make", "make check\nrm -rf x", "make test nothing"]
    assert not_called([*wrong, "make check", "make test CONSTRAINTS="]) == wrong


def test_workflows_try_every_python_that_the_package_says_it_runs_on() -> None:
    tried = {version for path in WORKFLOWS for job in read(path)["jobs"].values() for version in pythons(job)}
    said = {words.rpartition(" ")[2] for words in PROJECT["classifiers"] if ":: Python :: 3." in words}
    assert tried == said
    assert PROJECT["requires-python"] == f">={min(said, key=lambda version: int(version.partition('.')[2]))}"


def pythons(job: dict[str, Any]) -> list[str]:
    return job.get("strategy", {}).get("matrix", {}).get("python", [])


@pytest.mark.parametrize("form", FORMS, ids=lambda path: path.name)
def test_a_form_for_issues_has_what_github_asks_for(form: Path) -> None:
    found = read(form)
    assert found["name"]
    assert found["description"]
    fields = [field for field in found["body"] if field["type"] != "markdown"]
    assert len({field["id"] for field in fields}) == len(fields)
    assert all(field["attributes"]["label"] for field in fields)


def test_the_citation_is_of_this_version_and_names_no_address() -> None:
    cited = read(ROOT / "CITATION.cff")
    assert {"cff-version", "message", "title"} <= cited.keys()
    assert cited["version"] == grace_store.__version__
    assert cited["license"] == PROJECT["license"]
    assert cited["authors"] == [{"name": "the grace-store developers"}]


def test_every_extra_that_a_message_names_exists_and_no_message_names_a_release() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in sorted((ROOT / "grace_store").rglob("*.py"))}
    texts |= {path: path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))}
    assert [path.name for path, text in texts.items() if "grace-store[" in text] == []
    named = {extra for text in texts.values() for extra in re.findall(r"how_to_install\(['\"](\w+)['\"]\)", text)}
    named |= {
        extra for text in texts.values() for some in re.findall(r"\"\.\[([\w,]+)\]", text) for extra in some.split(",")
    }
    assert {"extract", "report", "cloud", "faiss"} <= named
    assert named | set(EXTRAS.values()) <= PROJECT["optional-dependencies"].keys()
