# feta: `make demo` and `make test` set up everything they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test soak check format docs clean

demo: $(READY)
	$(BIN)/feta demo

# Two at a time, each with one thread: torch's threads would only wait for each other.
test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist loadfile

soak: $(READY)
	$(BIN)/python -m soak

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.docs-ready
	$(BIN)/sphinx-build -W -q -b html docs docs/_build/html

# constraints.txt pins every package: without it pip may take a torch build with gigabytes of CUDA.
$(READY): pyproject.toml src/feta_lab/pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[lab,dev]' -e src/feta_lab
	touch $@

$(VENV)/.docs-ready: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $@

clean:
	rm -rf $(VENV) demo docs/_build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .benchmarks
