# Everything here works from a fresh clone with any Python >= 3.11 that has venv; nothing else is assumed.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
LOWEST ?= .venv-lowest
BENCH ?= .venv-bench
SOURCES := src tests benchmarks docs examples

# Files are in UTF-8, whatever the system takes for its default.
export PYTHONUTF8 = 1

PYTEST := $(BIN)/pytest -n 2 --dist loadfile
# The shapes and types of every call, checked while the tests run: it doubles their time, so the default set goes without.
CHECKED := --jaxtyping-packages=steinkern,tests.checker.check

.PHONY: help setup nightly-jax demo test lint types contract tests test-browser test-thorough test-all test-lowest soak format
.PHONY: bench-first bench-first-gpu bench-kfac-peer bench-networks examples distributions bench-versions results-pages docs-pictures bench-cpu bench-gpu bench-fits bench-posteriors bench-minibatch bench-scaling wheel docs docs-serve clean

help:
	@echo "make demo       set up, run the three toy targets with every method, print a table, write figures and a page to out/demo"
	@echo "make test       set up, then lint, format check, types, import contract and the default tests: five minutes on two cores"
	@echo "make test-thorough  the slower half: every page of the docs, whole runs of sample and of the studies, other processes, PyMC,"
	@echo "                every default test of the library with its shapes and types checked at run time"
	@echo "make test-all   both"
	@echo "make test-browser  the tests of the pages in headless Chromium; without a browser they fail, where the others skip them"
	@echo "make soak       the long part of the tests: kills, fuzzing, long runs; an hour or so"
	@echo "make test-lowest  the tests at the lowest versions of the dependencies that pyproject.toml allows"
	@echo "make bench-cpu  step times beside a plain JAX step, BlackJAX, NumPyro, msvgd, PyMC and simpleSVGD; half an hour"
	@echo "make bench-fits whole fits, first and second call, and where their time goes; DATA=DIRECTORY as in steinkern reproduce, GPU=1 on a machine with one"
	@echo "make bench-first  the first call, a second and one with another density, beside NUTS; BESIDE=DIRECTORY for another version's src"
	@echo "make bench-first-gpu  on a GPU: first calls, and steps of whole fits beside velocity and score"
	@echo "make bench-kfac-peer  the factors of KFAC beside those of kfac-jax"
	@echo "make bench-networks  steps of networks by KFAC beside ensembles; BESIDE=DIRECTORY for another version's src, GPU=1 on a machine with one"
	@echo "make bench-scaling  memory and agreement over virtual devices"
	@echo "make bench-gpu  the velocity of many particles on this machine's GPU; needs jax[cuda13] in the environment"
	@echo "make bench-posteriors  everyday posteriors, nothing tuned: sample beside SVGD, Laplace, Pathfinder and NUTS"
	@echo "make results-pages  put the tables of results/ into docs/results"
	@echo "make docs-pictures  run the code on the pages of the docs and put the pictures it makes into docs/images"
	@echo "make examples   run the notebooks of examples/ and store their outputs in them; five minutes"
	@echo "make docs       build the documentation into out/docs; make docs-serve shows it while you write"
	@echo "make bench-minibatch  posteriors by minibatches: fit without a sampler beside SGLD, pSGLD, SVI and SVGD"
	@echo "make bench-versions BEFORE=COMMIT  steps and first calls of two versions, in turn"
	@echo "make distributions  build the source distribution and the wheel into dist/"
	@echo "make wheel      build the wheel, install it in a clean environment, use it and its command, and time its import"
	@echo "make nightly-jax  install a nightly JAX in place of the release, for the workflow that tests it"
	@echo "make format     format the code"

# What the demo needs and nothing else; `setup` adds the tools of development to the same environment.
$(VENV)/demo-installed: pyproject.toml
	@$(PYTHON) -c "import sys; assert sys.version_info >= (3, 11), sys.version" \
	  || (echo "steinkern needs Python >= 3.11: make PYTHON=/path/to/python $(MAKECMDGOALS)"; exit 1)
	@echo "Setting up $(VENV): a minute or so, the first time"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --upgrade pip
	@$(BIN)/python -m pip install --quiet --editable ".[experiments]"
	@touch $@

$(VENV)/installed: $(VENV)/demo-installed
	@echo "Adding the tools of development to $(VENV): a minute or so, the first time"
	@$(BIN)/python -m pip install --quiet --editable ".[dev,experiments]"
	@touch $@

setup: $(VENV)/installed

# Into the same environment; `make clean` goes back to releases.
NIGHTLY := https://us-python.pkg.dev/ml-oss-artifacts-published/jax/simple/
nightly-jax: setup
	$(BIN)/python -m pip install --quiet --pre --upgrade jax jaxlib --extra-index-url $(NIGHTLY)

demo: $(VENV)/demo-installed
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
	$(PYTEST)

test-browser: setup
	STEINKERN_TEST_BROWSER=required $(BIN)/pytest -m browser

test-thorough: setup
	$(PYTEST) -m thorough
	$(PYTEST) $(CHECKED)

test-all: test test-thorough

soak: setup
	$(BIN)/pytest -m soak
	$(BIN)/python benchmarks/soak.py
	$(BIN)/python benchmarks/faults.py

test-lowest: $(LOWEST)/installed
	$(LOWEST)/bin/pytest -n 2 --dist loadfile -m "not soak"

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

bench-first: setup
	$(BIN)/python -m benchmarks.first $(if $(BESIDE),--beside $(BESIDE)) --json benchmarks/results/first.json

bench-first-gpu: setup
	$(BIN)/python -m benchmarks.first_gpu --json benchmarks/results/first-gpu.json

# kfac-jax goes into an environment of its own.
bench-kfac-peer:
	$(PYTHON) -m venv .venv-kfac
	.venv-kfac/bin/python -m pip install --quiet --editable . "kfac-jax==0.0.8" "jax<0.11"
	.venv-kfac/bin/python -m benchmarks.kfac_peer --json benchmarks/results/kfac-peer.json

bench-networks: setup
	$(BIN)/python -m benchmarks.networks $(if $(BESIDE),--beside $(BESIDE)) --json benchmarks/results/networks$(if $(GPU),-gpu).json

bench-scaling: setup
	$(BIN)/python benchmarks/scaling.py --json benchmarks/results/scaling.json

bench-gpu: setup
	$(BIN)/python benchmarks/gpu.py --json benchmarks/results/gpu.json

bench-posteriors: setup
	$(BIN)/python -m benchmarks.posteriors.run --workers $$(nproc)

bench-minibatch: setup
	$(BIN)/python -m benchmarks.minibatch.run --workers $$(nproc)

bench-versions: setup
	git worktree add --force --detach out/before $(BEFORE)
	$(BIN)/python -m benchmarks.versions --before out/before/src --json out/versions.json; \
	  status=$$?; git worktree remove --force out/before; exit $$status

distributions: setup
	$(BIN)/python -m pip install --quiet build
	$(BIN)/python -m build --outdir dist

wheel: setup
	$(BIN)/python -m pip install --quiet build
	$(BIN)/python benchmarks/wheel.py

results-pages: setup
	$(BIN)/python docs/tables.py

docs-pictures: setup
	MPLBACKEND=agg $(BIN)/python docs/pictures.py

examples: setup
	$(BIN)/python docs/notebooks.py

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict  # the theme's own switch for its announcement

docs-serve: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

format: setup
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

clean:
	rm -rf $(VENV) $(LOWEST) $(BENCH) out .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
