# Needs Python 3.11 or newer and make; everything else is installed into .venv.
#   make setup    the virtual environment .venv, with the command .venv/bin/ottla, and the compiled form of the brokers
#   make demo     a cluster, a replayed event stream, a killed leader, a report
#   make demo-year  the same with the whole year of flights, in a quarter of an hour, and two killed leaders
#   make compose-demo  a failover in containers, judged: needs a Docker engine and Compose
#   make check    formatting, lints, types, import contracts
#   make test     check, and the tests that take about eight minutes together
#   make test-thorough  all other tests: long runs, a real Kafka, Docker
#   make test-release   test-thorough with all variants, before a release
#   make kafka    the jars of Kafka 3.9 and Kafka 4 in .kafka, which `make test-thorough` compares with; needs Maven and a JDK
#   make fuzz     hostile bytes for every decoder; MINUTES=10, DECODER=all
#   make sim-mutants  rules of the brokers removed, one after the other: how many seeds of `ottla sim` until it is missed; SEEDS=2000, MUTANT=all
#   make docs     the pages as a site with a search, in .site/built; fails on a broken link or a command that does not exist
#   make compile  the brokers' hot modules as machine code, as in setup; fails without a C compiler. OTTLA_COMPILED=0 turns it off
#   make wheel    a wheel in dist/, with ZooKeeper's jars: needs Maven and a JDK; with compiled brokers where a C compiler is
#   make clean    as freshly cloned; keeps ./ottla-cluster
#   make lock     resolves requirements/*.txt again: exact versions with hashes, for the images and for CI (UPGRADE=--upgrade: the newest)
# LOCKED=1 (with setup, demo, demo-year, compose-demo, check, test, test-thorough, test-release, docs) installs exactly those versions instead of what pyproject.toml allows.

PYTHON ?= python3
BIN := .venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
LOCKED ?=
UPGRADE ?=

.PHONY: help setup demo demo-year compose-demo check test test-thorough test-release kafka fuzz sim-mutants docs compile wheel clean lock

help:
	@sed -n '2,18s/^# *//p' Makefile

# Without the compiled form, brokers run the same source as plain Python. `demo` and `test` do not wait for it.
setup: .venv/installed-dev
	@$(BIN)/python -m broker.compiled.build --if-available || echo "make: the modules could not be compiled (above); brokers run as plain Python" >&2
	@$(BIN)/python -m tools.cluster.class_archive
	@$(BIN)/python -m tools.replay.run.spark_archive
	@echo "Ready: $(BIN)/ottla --help"

demo: .venv/installed-replay
	$(BIN)/ottla demo $(DEMO_OPTIONS)

demo-year: .venv/installed-replay
	$(BIN)/ottla demo --year --speed 43800 --out demo-out/year $(DEMO_OPTIONS)

compose-demo: .venv/installed-tools
	@$(BIN)/python -m tools.compose.demo $(DEMO_OPTIONS)

check: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# `tests/run.py` says what runs side by side. PYTEST_OPTIONS='-k retention' chooses among the tests.
test: .venv/installed-dev
	@$(BIN)/python -m tests.run quick

test-thorough test-release: .venv/installed-dev
	@$(MAKE) --no-print-directory kafka || echo "make: the tests against a real Kafka WILL BE SKIPPED: see above" >&2
	@$(BIN)/python -m broker.compiled.build --if-available
	@$(BIN)/python -m tests.run $(@:test-%=%)

kafka: .kafka/fetched .kafka/4/fetched

.kafka/fetched: tools/bench/real_kafka/pom.xml
.kafka/4/fetched: tools/bench/real_kafka/kraft.pom.xml
.kafka/fetched .kafka/4/fetched:
	@command -v mvn >/dev/null || { echo "make: mvn was not found: install Maven and a JDK, 17 or newer (on Debian: apt-get install maven default-jdk-headless)" >&2; exit 1; }
	@java --list-modules 2>/dev/null | grep -q '^jdk.compiler' || { echo "make: java was not found, or is not a JDK (on Debian: apt-get install default-jdk-headless)" >&2; exit 1; }
	rm -rf $(@D)/libs
	mvn --quiet --batch-mode --file $< dependency:copy-dependencies -DoutputDirectory='$(CURDIR)/$(@D)/libs'
	@touch $@

compile: .venv/installed-dev
	$(BIN)/python -m broker.compiled.build

# With the jars, `pip install` of the wheel is enough for a cluster. Where they are, a local cluster uses them instead of pyspark's.
wheel: tools/cluster/jars/fetched .venv/installed-dev
	$(BIN)/python -m broker.compiled.build --if-available
	rm -rf build dist *.egg-info
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .
	@ls -l dist

tools/cluster/jars/fetched: tools/cluster/jars/pom.xml
	@command -v mvn >/dev/null || { echo "make: mvn was not found: install Maven and a JDK, 17 or newer (on Debian: apt-get install maven default-jdk-headless)" >&2; exit 1; }
	rm -f tools/cluster/jars/*.jar
	mvn --quiet --batch-mode --file $< dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory='$(CURDIR)/tools/cluster/jars'
	@touch $@

# Findings are in .fuzz, each with a command that repeats it. `python -m tests.fuzz.corpus` adds inputs that reached new code to the corpus.
fuzz: .venv/installed-fuzz
	$(BIN)/python -m tests.fuzz.run --minutes $(or $(MINUTES),10) $(if $(DECODER),--decoder '$(DECODER)')

sim-mutants: .venv/installed-dev
	$(BIN)/python -m tests.sim.find_mutants $(or $(SEEDS),2000) $(MUTANT)

docs: .venv/installed-docs
	$(BIN)/python -m pytest --quiet tests/unit/docs
	$(BIN)/python docs/make_site.py

clean:
	rm -rf .venv build dist *.egg-info demo-out replay-out spark-warehouse metastore_db
	rm -f tools/cluster/jars/*.jar tools/cluster/jars/fetched
	rm -rf broker/compiled/lib
	rm -rf .test-logs .kafka .clients .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .fuzz .site
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { echo "make: $(PYTHON) was not found: install Python 3.11 or newer, or name it: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: $$($(PYTHON) --version) is too old: Python 3.11 or newer is needed; name it: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -m venv .venv || { rm -rf .venv; echo "make: $(PYTHON) cannot make virtual environments: install its venv module (on Debian: apt-get install python3-venv)" >&2; exit 1; }

# A stamp (.venv/installed-*) is newer than the files it depends on, so a second call is quick. `setup` also installs what `demo` needs.
.venv/installed-dev: pyproject.toml $(if $(LOCKED),requirements/dev.txt) | $(BIN)/python
ifdef LOCKED
	$(BIN)/pip install --require-hashes --requirement requirements/dev.txt
	$(BIN)/pip install --no-deps --no-build-isolation --editable .
else
	$(BIN)/pip install --editable '.[replay,dev]'
endif
	@touch .venv/installed-tools .venv/installed-replay $@

.venv/installed-fuzz: .venv/installed-dev
	$(BIN)/pip install --editable '.[replay,dev,fuzz]'
	@touch $@

.venv/installed-docs: .venv/installed-dev $(if $(LOCKED),requirements/docs.txt)
ifdef LOCKED
	$(BIN)/pip install --require-hashes --requirement requirements/docs.txt
else
	$(BIN)/pip install --editable '.[replay,dev,docs]'
endif
	@touch $@

.venv/installed-replay: pyproject.toml $(if $(LOCKED),.venv/installed-dev) | $(BIN)/python
ifndef LOCKED
	$(BIN)/pip install --editable '.[replay]'
endif
	@touch .venv/installed-tools $@

.venv/installed-tools: pyproject.toml $(if $(LOCKED),.venv/installed-dev) | $(BIN)/python
ifndef LOCKED
	$(BIN)/pip install --editable .
endif
	@touch $@

# Resolves for all platforms and every Python from 3.11 on, with the index that pip uses. The files do not name the index.
# broker.txt and tools.txt are the groups of these names, replay.txt, dev.txt and docs.txt the dependencies with extras; each has the build's needs.
REQUIRED = import sys, tomllib; project = tomllib.load(open("pyproject.toml", "rb")); groups = project["dependency-groups"]; \
    of = lambda name: [each for item in groups.get(name, []) for each in (of(item["include-group"]) if isinstance(item, dict) else [item])]; \
    print(*project["build-system"]["requires"], *of(sys.argv[1]), sep="\n")
lock: | $(BIN)/python
	$(BIN)/pip install --quiet 'uv>=0.5'
	@index=$${PIP_INDEX_URL:-$$($(BIN)/pip config get global.index-url 2>/dev/null || true)}; if [ -n "$$index" ]; then export UV_DEFAULT_INDEX="$$index"; fi; \
	for name in broker tools replay:replay dev:replay,dev docs:docs; do \
	    case $$name in *:*) extras="pyproject.toml $$(echo "$${name#*:}" | sed 's/[^,][^,]*/--extra &/g; s/,/ /g')" ;; *) extras= ;; esac; \
	    name=$${name%%:*}; echo "requirements/$$name.txt"; \
	    $(BIN)/python -c '$(REQUIRED)' $$name \
	    | $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --custom-compile-command 'make lock' $(UPGRADE) \
	        $$extras --output-file "requirements/$$name.txt" - || exit 1; \
	done
