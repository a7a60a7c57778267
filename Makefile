# Everything here works from a fresh clone with any Python >= 3.11 that has venv; nothing else is assumed.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
LOWEST ?= .venv-lowest
BENCH ?= .venv-bench
SOURCES := src tests benchmarks docs

.PHONY: help setup demo test lint types contract tests test-browser test-thorough test-lowest soak format
.PHONY: bench-cpu bench-gpu bench-fits bench-posteriors bench-scaling wheel docs docs-serve clean

help:
	@echo "make demo       set up, run the three toy targets with every method, print a table, write figures and a page to out/demo"
	@echo "make test       set up, then lint, format check, types, import contract and the tests"
	@echo "make test-browser  the tests of the pages in headless Chromium; without a browser they fail, where make test skips them"
	@echo "make test-thorough  the slower tests: the studies' searches, moments beside PyMC's NUTS; a few minutes"
	@echo "make soak       the long part of the tests: kills, fuzzing, long runs; an hour or so"
	@echo "make test-lowest  the tests at the lowest versions of the dependencies that pyproject.toml allows"
	@echo "make bench-cpu  step times beside a plain JAX step, BlackJAX, NumPyro, msvgd, PyMC and simpleSVGD; half an hour"
	@echo "make bench-fits whole fits, first and second call, and where their time goes; DATA=DIRECTORY as in steinkern reproduce, GPU=1 on a machine with one"
	@echo "make bench-scaling  memory and agreement over virtual devices"
	@echo "make bench-gpu  the velocity of many particles on this machine's GPU; needs jax[cuda12] in the environment"
	@echo "make bench-posteriors  everyday posteriors, nothing tuned: sample beside SVGD, Laplace, Pathfinder and NUTS"
	@echo "make docs       build the documentation into out/docs; make docs-serve shows it while you write"
	@echo "make wheel      build the wheel, install it in a clean environment, and time its import"
	@echo "make format     format the code"

$(VENV)/installed: pyproject.toml
	@$(PYTHON) -c "import sys; assert sys.version_info >= (3, 11), sys.version" \
	  || (echo "steinkern needs Python >= 3.11: make PYTHON=/path/to/python $(MAKECMDGOALS)"; exit 1)
	@echo "Setting up $(VENV): a minute or a few, the first time"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --upgrade pip
	@$(BIN)/python -m pip install --quiet --editable ".[dev,experiments]"
	@touch $@

setup: $(VENV)/installed

demo: setup
	$(BIN)/steinkern reproduce toy --quick --out out/demo

test: lint types contract tests
	@echo "lint, format, types, import contract and tests passed"

lint: setup
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)

types: setup
	$(BIN)/mypy

contract: setup
	$(BIN)/lint-imports

tests: setup
	$(BIN)/pytest -n 2

test-browser: setup
	STEINKERN_TEST_BROWSER=required $(BIN)/pytest -m browser

test-thorough: setup
	$(BIN)/pytest -n 2 -m thorough

soak: setup
	$(BIN)/pytest -m soak
	$(BIN)/python benchmarks/soak.py
	$(BIN)/python benchmarks/faults.py

test-lowest: $(LOWEST)/installed
	$(LOWEST)/bin/pytest -n 2

$(LOWEST)/installed: pyproject.toml
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet --upgrade pip
	$(LOWEST)/bin/python tests/lowest.py > $(LOWEST)/lowest.txt
	$(LOWEST)/bin/python -m pip install --quiet --constraint $(LOWEST)/lowest.txt --editable ".[dev,experiments]"
	@touch $@

# Other libraries go into an environment of their own; what cannot be had is left out, and the benchmark says so.
bench-cpu: $(BENCH)/installed
	$(BENCH)/bin/python benchmarks/cpu.py --json benchmarks/results/cpu.json

$(BENCH)/installed: pyproject.toml
	$(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/python -m pip install --quiet --upgrade pip
	$(BENCH)/bin/python -m pip install --quiet --editable ".[bench,experiments]"
	-$(BENCH)/bin/python -m pip install --quiet msvgd
	-$(BENCH)/bin/python -m pip install --quiet simpleSVGD
	-$(BENCH)/bin/python -m pip install --quiet "pymc<6"
	@touch $@

bench-fits: setup
	$(BIN)/python benchmarks/fits.py $(if $(DATA),--data $(DATA)) --json benchmarks/results/fits$(if $(GPU),-gpu).json

bench-scaling: setup
	$(BIN)/python benchmarks/scaling.py --json benchmarks/results/scaling.json

bench-gpu: setup
	$(BIN)/python benchmarks/gpu.py --json benchmarks/results/gpu.json

bench-posteriors: setup
	$(BIN)/python -m benchmarks.posteriors.run --workers $$(nproc)

wheel: setup
	$(BIN)/python benchmarks/wheel.py

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict  # the theme's own switch for its announcement

docs-serve: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

format: setup
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

clean:
	rm -rf $(VENV) $(LOWEST) $(BENCH) out .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
