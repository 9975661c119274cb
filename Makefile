# The course. `make start` opens it; `make test` checks it; CONTRIBUTING.md says more.
#
#   make start ARGS="--no-browser --port 8899"    options are passed on
#   make start PYTHON=/path/to/python3.12         choose the Python that .venv is made with
#   make start TORCH_INDEX=https://...            choose where PyTorch comes from

BIN := .venv/bin
INSTALL := @sh tools/python.sh tools/install.py
SITE_TOOLS := tests/site/node_modules/.package-lock.json
ESLINT := tests/site/node_modules/eslint/bin/eslint.js

export PYTHON TORCH_INDEX

.PHONY: help start test test-all test-gpu site record lint lint-and-site bench clean course tools

help:
	@echo "make start     install what is missing, then open the site and JupyterLab"
	@echo "make test      the tests, quickly   make test-all  all of them"
	@echo "make test-gpu  those for NVIDIA GPUs"
	@echo "make site      build the pages      make record    run their cells and record the outputs"
	@echo "make lint      ruff, mypy, import-linter, the list of words, ESLint"
	@echo "make bench     measure              make clean     remove what was built, keep .venv"

start: course
	@$(BIN)/python -m multigpu start $(ARGS)

# A third of a test is waiting for other processes, so two cores serve three test processes; each
# more collects all tests once more. Thousands of processes import the same modules: compiled once,
# even where Python is told to keep none. One thread each: more would only wait for a core, and busily.
PYTEST := $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder
# Most tests say what happens on a machine without GPUs, so they see none. Those marked `gpu` come
# afterwards, where there is one.
TEST_GPUS := ! nvidia-smi -L >/dev/null 2>&1 || $(MAKE) --no-print-directory test-gpu
test test-all: export PYTHONDONTWRITEBYTECODE =
test test-all: export OMP_NUM_THREADS = 1

test: lint-and-site
	@CUDA_VISIBLE_DEVICES= $(PYTEST) -m "not slow" $(ARGS)
	@$(TEST_GPUS)

test-all: lint-and-site
	@CUDA_VISIBLE_DEVICES= $(PYTEST) $(ARGS)
	@$(TEST_GPUS)

# Side by side, as each keeps one core busy.
lint-and-site: tools $(SITE_TOOLS)
	@$(MAKE) --no-print-directory --output-sync=target -j 2 lint site

test-gpu: tools
	@$(BIN)/python -m pytest -m "gpu or multi_gpu" --require-gpu $(ARGS)

site: course
	@$(BIN)/python -m multigpu.commands.site

# make record lessons/one_gpu notebooks/ddp: what follows `record` names pages, not targets.
ifeq (record,$(firstword $(MAKECMDGOALS)))
ifdef PAGE
$(error without PAGE=, which would record every page: make record $(PAGE))
endif
PAGES := $(wordlist 2,$(words $(MAKECMDGOALS)),$(MAKECMDGOALS))
.PHONY: $(PAGES)
$(PAGES):
	@:
endif

record: course
	@$(BIN)/python tools/record.py $(PAGES) $(ARGS)

lint: tools $(SITE_TOOLS)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports --no-logo --no-cache
	@$(BIN)/mypy
	@$(BIN)/python tools/check_words.py
	@if command -v node >/dev/null && [ -e $(ESLINT) ]; \
	then node $(ESLINT) --config tests/site/eslint.config.mjs docs/_static/course.js; \
	else echo "JavaScript was not checked: that needs npm"; [ "$$CI" != true ]; fi

bench:
	$(INSTALL) course test bench
	@$(BIN)/python -m pytest tests/benchmarks -s $(ARGS)

clean:
	rm -rf docs/_build docs/_notebooks .pytest_cache .mypy_cache .ruff_cache .coverage

course:
	$(INSTALL) course

tools:
	$(INSTALL) course test

# Checks of the pages and their script: axe-core, html-validate, ESLint. What is missing is said.
$(SITE_TOOLS): tests/site/package-lock.json
	-@if command -v npm >/dev/null; \
	then npm ci --silent --no-audit --no-fund --prefix tests/site && touch $@; fi
