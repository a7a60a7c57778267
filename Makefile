# Everything here works from a fresh clone with any Python >= 3.11 that has venv; nothing else is assumed.
PYTHON ?= python3
VENV ?= $(if $(LOWEST),.venv-lowest,.venv)
BIN = $(VENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
SOURCES = $(wildcard src studies tests benchmarks docs examples)
CONSTRAINTS = $(if $(LOWEST),--constraint $(VENV)/lowest.txt)
PYTEST = $(BIN)/pytest -n 2 --dist loadfile

# Files are in UTF-8, whatever the system takes for its default.
export PYTHONUTF8 = 1

.PHONY: help setup demo test test-thorough soak format docs bench results dist clean

help:
	@echo "make setup          an environment in .venv for development; LOWEST=1: in .venv-lowest, with the lowest versions allowed"
	@echo "make demo           three toy targets with every method: a table, figures and a page in out/demo"
	@echo "make test           lint, format check, types, import contract and the default tests: five minutes on two cores"
	@echo "make test-thorough  the slower half of the tests, then the default ones with shapes and types checked at run time"
	@echo "make soak           kills, fuzzing and long runs: an hour or so"
	@echo "make format         format the code"
	@echo "make docs           build the documentation into out/docs"
	@echo "make bench NAME=…   run a benchmark; without a name it lists them"
	@echo "make results        put the numbers of results/ and benchmarks/results/ into the pages"
	@echo "make dist           build the source distribution and the wheel into dist/, and try the wheel in a clean environment"
	@echo "make clean          remove the environments and out/"

# What the demo needs and nothing else; `setup` adds the tools of development to the same environment.
$(VENV)/demo-installed: pyproject.toml
	@$(PYTHON) -c "import sys; assert sys.version_info >= (3, 11), sys.version" \
	  || (echo "steinkern needs Python >= 3.11: make PYTHON=/path/to/python $(MAKECMDGOALS)"; exit 1)
	@echo "Setting up $(VENV): a minute or so, the first time"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --upgrade pip
	@$(if $(LOWEST),$(BIN)/python tests/helpers/lowest.py > $(VENV)/lowest.txt)
	@$(BIN)/python -m pip install --quiet $(CONSTRAINTS) --editable ".[studies]"
	@touch $@

$(VENV)/installed: $(VENV)/demo-installed
	@echo "Adding the tools of development to $(VENV): a minute or so, the first time"
	@$(BIN)/python -m pip install --quiet $(CONSTRAINTS) --editable ".[dev,studies]"
	@touch $@

setup: $(VENV)/installed

demo: $(VENV)/demo-installed
	$(BIN)/python -m studies toy --quick --out out/demo

test: setup
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(PYTEST)
	@echo "lint, format, types, import contract and tests passed"

test-thorough: setup
	$(PYTEST) -m thorough
	$(PYTEST) --jaxtyping-packages=steinkern,tests.helpers.checker.check

soak: setup
	$(BIN)/pytest -m soak

format: setup
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict  # the theme's own switch for its announcement

bench: setup
	$(BIN)/python -m pip install --quiet --editable ".[bench]"
	$(BIN)/python -m benchmarks $(NAME)

results: setup
	$(BIN)/python docs/_build/tables.py

dist: setup
	$(BIN)/python -m pip install --quiet build
	$(BIN)/python -m build --outdir dist
	$(PYTHON) -m venv --clear out/clean
	out/clean/bin/python -m pip install --quiet "$$(ls -t dist/*.whl | head -1)"
	cd out && clean/bin/python ../tests/helpers/wheel.py
	out/clean/bin/python -m pip install --quiet "$$(ls -t dist/*.whl | head -1)[cli]"
	cd out && clean/bin/steinkern sample ../tests/helpers/wheel.py:log_density --dim 2 --out wheel --restart

clean:
	rm -rf .venv .venv-lowest out dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
