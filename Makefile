# Needs Python 3.11 or newer and make; everything else is installed into .venv.
#   make setup    the virtual environment .venv, with the command .venv/bin/ottla
#   make demo     a cluster, a replayed event stream, a killed leader, a report
#   make check    formatting, lints, types, import contracts
#   make test     check, then all tests
#   make clean    as freshly cloned; keeps ./ottla-cluster
#   make lock     requirements/*.txt anew: exact versions with hashes, for the images and for CI (UPGRADE=--upgrade: the newest)
# LOCKED=1 (with setup, demo, check, test) installs exactly those versions instead of what pyproject.toml allows.

PYTHON ?= python3
BIN := .venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
LOCKED ?=
UPGRADE ?=

.PHONY: help setup demo check test clean lock

help:
	@sed -n '2,7s/^# *//p' Makefile

setup: .venv/installed-dev
	@echo "Ready: $(BIN)/ottla --help"

demo: .venv/installed-replay
	$(BIN)/ottla demo $(DEMO_OPTIONS)

check: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The unit tests need a processor, the others mostly wait for time-outs and starts: both at once, one's output after the other's.
test: check
	@$(BIN)/python -m pytest -p no:cacheprovider tests/unit tests/sim $(PYTEST_OPTIONS) >.unit-tests.log 2>&1 & unit=$$!; \
	trap 'kill $$unit' INT TERM; status=0; $(BIN)/python -m pytest --ignore=tests/unit --ignore=tests/sim $(PYTEST_OPTIONS) || status=$$?; \
	wait $$unit || status=$$?; cat .unit-tests.log; exit $$status

clean:
	rm -rf .venv build dist *.egg-info demo-out replay-out spark-warehouse metastore_db
	rm -rf .unit-tests.log .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { echo "make: $(PYTHON) is not there: install Python 3.11 or newer, or name it: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: $$($(PYTHON) --version) is too old: Python 3.11 or newer is needed; name it: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -m venv .venv || { rm -rf .venv; echo "make: $(PYTHON) cannot make virtual environments: install its venv module (on Debian: apt-get install python3-venv)" >&2; exit 1; }

# The stamps are newer than what they were made from, so that a second call is quick. What `setup` installs has all that `demo` needs.
.venv/installed-dev: pyproject.toml $(if $(LOCKED),requirements/dev.txt) | $(BIN)/python
ifdef LOCKED
	$(BIN)/pip install --require-hashes --requirement requirements/dev.txt
	$(BIN)/pip install --no-deps --no-build-isolation --editable .
else
	$(BIN)/pip install --editable '.[replay,dev]'
endif
	@touch .venv/installed-replay $@

.venv/installed-replay: pyproject.toml $(if $(LOCKED),.venv/installed-dev) | $(BIN)/python
ifndef LOCKED
	$(BIN)/pip install --editable '.[replay]'
endif
	@touch $@

# For all platforms and for every Python from 3.11 on, from the index that pip uses. No index stands in the files.
lock: | $(BIN)/python
	$(BIN)/pip install --quiet 'uv>=0.5'
	@index=$${PIP_INDEX_URL:-$$($(BIN)/pip config get global.index-url 2>/dev/null || true)}; if [ -n "$$index" ]; then export UV_DEFAULT_INDEX="$$index"; fi; \
	for name in broker: tools:tools dev:replay,dev; do \
	    extras=$$(echo "$${name#*:}" | sed 's/[^,][^,]*/--extra &/g; s/,/ /g'); \
	    echo "requirements/$${name%%:*}.txt"; \
	    $(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' \
	    | $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --custom-compile-command 'make lock' $(UPGRADE) \
	        $$extras --output-file "requirements/$${name%%:*}.txt" pyproject.toml - || exit 1; \
	done
