# Every target is one line that can also be typed by hand; `make` alone lists them.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
PYTHON ?= python3
BIN    := .venv/bin
# People get a random order and the reasons for skips; CI the order of the files, and one line about what was missing.
HOW    := $(if $(CI),-r fE -p no:randomly,-r fEs)
PYTEST := $(BIN)/pytest -n 2 --dist worksteal $(HOW)
# Tests of one process: what only a killed child covers, or only luck, does not count.
COVERING := $(addprefix tests/,unit queue layouts peers disk tools/test_discover.py space/test_space.py space/test_worker.py space/test_tasks.py space/test_records.py space/test_sides.py space/test_neighbours.py) $(addprefix tests/reliability/,test_kill_points.py test_races.py)
# Releases of EntroQ's client that are tried against ours, beside the newest one, which is installed.
ENTROQS := 0.13.1
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: help demo test test-all test-spark test-pythons check format reference docs bench bench-quick campaign soak mutants coverage clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: .venv/.demo ## 1,000 messages, four workers, one of them killed: nothing is lost
	@$(BIN)/python examples/demo.py

test: check docs test-pythons .venv/.spark ## check, docs, test-pythons, then every test that is not marked slow, the short ones of Spark too
	$(PYTEST) -m 'not slow and not spark'
	$(BIN)/pytest -n 0 $(HOW) -m 'spark and not slow'

test-pythons: ## the core suite with every other Python from 3.12 on that is installed, about a minute each
	@for python in $$($(PYTHON) scripts/other_pythons.py); do \
	  venv=.venv-$$($$python -c 'import sys; print("%d.%d" % sys.version_info[:2])'); echo "$$venv:"; \
	  { [ $$venv/.done -nt pyproject.toml ] || { $$python -m venv --upgrade-deps $$venv && $$venv/bin/pip install -q --group core -e '.[watch]' && touch $$venv/.done; }; } && \
	  $$venv/bin/pytest -q -r fE tests/unit tests/queue -k 'not vsqs and not dirq' -m 'not slow and not spark' || exit 1; done

test-all: check .venv/.spark ## check, then every test, the slow ones too
	$(PYTEST)

test-spark: .venv/.spark ## every test with Spark: killed drivers, a cluster, Connect, pipelines (half an hour)
	$(BIN)/pytest -n 0 -r fEs -m spark

check: .venv/.test ## lint, formatting, types, import contract, spelling
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --check --quiet || { $(BIN)/ruff format --check; exit 1; }
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports > .venv/imports.log 2>&1 || { cat .venv/imports.log; exit 1; }
	@$(BIN)/codespell

format: .venv/.test ## let ruff rewrite the code
	@$(BIN)/ruff check --quiet --fix-only && $(BIN)/ruff format

reference: .venv/.test ## write docs/reference and the man page from the code
	@$(BIN)/python scripts/reference.py && $(BIN)/python scripts/api_reference.py && $(BIN)/python scripts/comparison.py

docs: .venv/.test ## the documentation as a site in site/, without a warning
	@$(BIN)/sphinx-build -q -W --keep-going -j 2 -c docs/site -d .venv/doctrees . site

bench: .venv-bench/.done ## measure against the floor and every peer, a quarter of an hour; writes docs/benchmarks.md
	.venv-bench/bin/python benchmarks/run.py

bench-quick: .venv-bench/.done ## the same with few messages, about a minute; writes benchmarks/results/quick/
	.venv-bench/bin/python benchmarks/run.py --quick

campaign: .venv/.test ## crash and fault campaigns, all seeds
	$(BIN)/python scripts/campaign.py

soak: .venv/.test ## producers, consumers, a purger and a killer: make soak HOURS=8
	$(BIN)/python scripts/soak.py --hours $(or $(HOURS),1)

mutants: .venv/.test ## break the code on purpose; the tests must notice
	$(BIN)/python scripts/mutants.py

coverage: .venv/.test ## measure the layouts and what they stand on; fails below 100 % of the branches
	@$(BIN)/coverage erase && $(BIN)/coverage run -m pytest -n 0 -q -p no:randomly -m 'not slow and not spark' $(COVERING) && $(BIN)/coverage combine -q && $(BIN)/coverage report

clean: ## remove everything that the other targets made
	rm -rf .venv .venv-* site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage* dist build

.venv/.demo: pyproject.toml
	@$(PYTHON) -m venv .venv && $(BIN)/pip install -q -e . && touch $@
.venv/.test: pyproject.toml
	@$(PYTHON) -m venv --upgrade-deps .venv && $(BIN)/pip install -q --group test -e '.[cli,watch,metrics,entroq]' && \
	for version in $(ENTROQS); do $(BIN)/pip install -q --no-deps --upgrade --target .venv/entroq/$$version entroq==$$version || exit 1; done && \
	touch .venv/.demo $@
.venv-bench/.done: pyproject.toml
	@$$($(PYTHON) scripts/quickest_python.py) -m venv --upgrade-deps .venv-bench && .venv-bench/bin/pip install -q --group bench -e '.[cli,watch,spark,entroq]' && touch $@
.venv/.spark: .venv/.test
	@$(BIN)/pip install -q -e '.[cli,watch,metrics,entroq,connect]' && touch $@
