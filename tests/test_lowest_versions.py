"""The lowest versions that pyproject.toml allows are installed and tried. Of torch only one build is at hand."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.installations import install, project, run_tests

pytestmark = pytest.mark.slow

EXTRAS = ("extract", "warmup", "faiss", "report", "cadc", "ray", "cloud")
TRIED = (
    "test_run_extract.py::test_counts_add_up_and_the_store_is_sound",
    "test_run_extract.py::test_shards_together_make_the_same_store",
    "test_hostile_store.py::test_what_is_not_attacked_is_read",
    "test_store_chunk_reader.py::test_other_codecs_than_the_formats_are_refused",
    "test_cli_score.py::test_several_signals_with_weights",
    "test_cli_score.py::test_a_table_is_replayed",
    "test_data_dataset.py::test_scan_and_random_access",
    "test_likeness_search.py::test_groups_are_those_of_brute_force",
    "test_values_cadc.py",
    "test_pages_page_files.py::test_figures_are_drawn_as_svg_and_png_for_papers",
    "test_store_backend.py::test_what_is_written_is_read",
    "test_run_engines_ray.py::test_an_error_of_a_task_is_the_error_it_would_be_here",
    "test_run_engines_ray.py::test_a_node_that_does_not_see_the_model_is_named_and_left_out",
    "test_model_vision.py::test_segments_one_token_off_would_show",
    "test_train_training.py::test_a_step_is_that_of_plain_autograd_and_adamw",
    "test_train_training.py::test_names_are_those_peft_saves",
)
"""What each package is used for."""


def lowest(requirements: list[str]) -> list[str]:
    """Return a pin for every requirement that names a package of others."""
    ours = ("grace-store", "torch>=")
    return [each.replace(">=", "==") for each in requirements if not each.startswith(ours)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the lowest versions; what these need is there, or taken from the environment of the tests."""
    folder = tmp_path_factory.mktemp("lowest")
    target = ("--target", str(folder))
    install(sys.executable, *target, *lowest(project()["dependencies"]))
    extras = {each for extra in EXTRAS for each in lowest(project()["optional-dependencies"][extra])}
    install(sys.executable, *target, "--no-deps", "--upgrade", *sorted(extras))
    return folder


def test_the_lowest_versions_do(site: Path) -> None:
    run_tests(sys.executable, TRIED, site)
