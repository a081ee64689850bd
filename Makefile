# What people type: make start, make test, make lab, make results. Needs Python 3.11 to 3.13, and no more.

PYTHON ?= $(shell command -v python3.11 || command -v python3.13 || command -v python3.12 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
START := runs/start

.PHONY: help start test lab results clean
.DELETE_ON_ERROR:

help:
	@echo "make start     train a small network on the bundled digits, and draw its curve"
	@echo "make test      style, types and tests; with ALL=1 the long tests too"
	@echo "make lab       open the notebooks in JupyterLab"
	@echo "make results   write the README's tables anew from benchmarks/results/"
	@echo "make clean     remove $(VENV)"

# These settings were chosen on a held-out part of the training images.
start: $(VENV)/.core
	@rm -rf $(START)
	$(BIN)/cnnkit train tiny --data digits --batch 32 --epochs 24 --folder $(START) \
	    --optimizer 'sgd(nesterov=True)' --lr 'one_cycle(0.05)' \
	    --augment 'rotate(12), scale(12), translate(0.5)'
	$(BIN)/cnnkit plot $(START)
	@echo
	@echo "Where to look next:"
	@echo "  $(START)/curves.png               its accuracy, epoch by epoch"
	@echo "  make lab                            the same in a notebook with a live panel: 00_start.ipynb"
	@echo "  source $(BIN)/activate           then cnnkit --help, cnnkit train --help"

test: $(VENV)/.dev $(VENV)/ipykernel-6
	@echo "ruff check" && $(BIN)/ruff check .
	@echo "ruff format --check" && $(BIN)/ruff format --check . || \
	    { echo "write them in the common form: $(BIN)/ruff format ." >&2; exit 1; }
	@echo "mypy" && $(BIN)/mypy
	@echo "pytest" && $(BIN)/pytest -n 2 --dist worksteal $(if $(ALL),-m '')

# The superuser, as people are in containers, is let in by Jupyter only if told so.
lab: $(VENV)/.lab
	$(BIN)/jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) notebooks

results: $(VENV)/.core
	$(BIN)/python -m benchmarks.tables

clean:
	rm -rf $(VENV)

# The kernel of the version before, without its dependencies: the panel is tested under both.
$(VENV)/ipykernel-6: $(VENV)/.dev
	@$(BIN)/python -m pip install -qq --no-deps --no-compile --disable-pip-version-check --upgrade \
	    --target $@ 'ipykernel>=6.29,<7'
	@touch $@

# A stamp stands for the package with some extras; it is installed again when pyproject.toml has changed.
$(VENV)/.core: EXTRAS =
$(VENV)/.lab: EXTRAS = [notebook]
$(VENV)/.dev: EXTRAS = [dev]
$(VENV)/.core $(VENV)/.lab $(VENV)/.dev: pyproject.toml
	@"$(PYTHON)" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || \
	    { echo "Python 3.11, 3.12 or 3.13 is needed, found: $(PYTHON); say which: make PYTHON=python3.11 …" >&2; exit 2; }
	@$(BIN)/python -c 'import pip' 2>/dev/null || "$(PYTHON)" -m venv --clear $(VENV) || \
	    { echo "no virtual environment could be made; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 2; }
	@echo "installing cnnkit$(EXTRAS) into $(VENV), once; this takes a minute or two"
	@$(BIN)/python -m pip install -qq --no-compile --disable-pip-version-check --editable '.$(EXTRAS)'
	@touch $@
