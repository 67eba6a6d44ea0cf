# `make` alone lists the targets. Everything runs inside .venv, which `make setup` creates.
#
#   PYTHON=/path/to/python3   the interpreter to create .venv with (default: the first that works)
#   ARGS="..."                passed on to pytest or to the demo
#   FUSER_SYSTEM_PYTHON=1     install nothing and use python3 as it is: for a machine that has
#                             torch and no network

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup demo test opinfo check format clean

VENV := .venv
ARGS ?=

HAS_GPU := $(shell if nvidia-smi -L >/dev/null 2>&1 || test -e /dev/nvidia0; then echo yes; fi)

# Without a GPU, Triton runs kernels in its interpreter; it has to know before it is imported.
KERNEL_ENV := $(if $(HAS_GPU),,TRITON_INTERPRET=1)

ifeq ($(FUSER_SYSTEM_PYTHON),1)
RUN := PYTHONPATH=$(CURDIR) python3
LINT_IMPORTS := lint-imports
else
RUN := $(VENV)/bin/python
LINT_IMPORTS := $(VENV)/bin/lint-imports
endif

# The stamp names everything that the environment depends on, the folder included (the editable
# install records it): a change of any of them, or an interrupted set-up, has no stamp.
SETUP_INPUTS := pyproject.toml requirements/cpu.txt requirements/constraints.txt
SETUP_HASH := $(shell { cat $(SETUP_INPUTS); echo "$(CURDIR) $(HAS_GPU)"; } | cksum | cut -d' ' -f1)
STAMP := $(VENV)/.setup-$(SETUP_HASH)

# Tried by running, because a version manager can leave a python3.x on PATH that only says that
# it is not installed. Plain python3 comes first: it is the one whose wheels are likely at hand.
CANDIDATES := $(or $(PYTHON),python3 python3.13 python3.12 python3.11)
USABLE := import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))

help:
	@echo "fuser: operator fusion for PyTorch that explains itself"
	@echo
	@echo "  make setup    create .venv with torch, Triton and the tools (minutes the first time)"
	@echo "  make demo     compile a sentence-embedding model, show what was fused, check it"
	@echo "  make test     run the tests; some of them: make test ARGS='-k softmax -x'"
	@echo "  make opinfo   PyTorch's own samples of its operators: make opinfo ARGS='--help'"
	@echo "  make check    formatting, lint, types, import layers"
	@echo "  make format   rewrite the files the way 'make check' wants them"
	@echo "  make clean    remove caches and build results ('rm -rf $(VENV)' removes the rest)"
	@echo
	@echo "Start with 'make setup' and 'make demo'; README.md goes on from there."
	@echo "GPU: $(if $(HAS_GPU),found; kernels run on it,none; kernels run in Triton's interpreter)"

setup:
ifneq ($(FUSER_SYSTEM_PYTHON),1)
	@if [ -e $(STAMP) ] && $(RUN) -c '' 2>/dev/null; then exit 0; fi; \
	set -e; \
	if ! ls $(VENV)/.setup-* >/dev/null 2>&1 || ! $(RUN) -c '' 2>/dev/null; then \
	  rm -rf $(VENV); \
	fi; \
	rm -f $(VENV)/.setup-*; \
	if [ ! -d $(VENV) ]; then \
	  chosen=; \
	  for candidate in $(CANDIDATES); do \
	    if "$$candidate" -c '$(USABLE)' >/dev/null 2>&1; then chosen=$$candidate; break; fi; \
	  done; \
	  if [ -z "$$chosen" ]; then \
	    echo "make setup: none of '$(CANDIDATES)' is a Python 3.11 to 3.13 with venv." >&2; \
	    echo "  fix: install one, or name it: make setup PYTHON=/path/to/python3" >&2; \
	    exit 1; \
	  fi; \
	  echo "setup: creating $(VENV) with $$chosen ($$("$$chosen" --version))"; \
	  "$$chosen" -m venv $(VENV); \
	fi; \
	if [ -z "$(HAS_GPU)" ]; then \
	  echo "setup: no GPU found, installing the CPU build of torch"; \
	  $(RUN) -m pip install -qq -r requirements/cpu.txt; \
	fi; \
	echo "setup: installing fuser and its tools"; \
	$(RUN) -m pip install -qq -c requirements/constraints.txt -e '.[dev,examples,html,bench]'; \
	touch $(STAMP); \
	echo "setup: done"
endif

demo: setup
	$(KERNEL_ENV) $(RUN) examples/sentence_embeddings.py $(ARGS)

# Two workers with one thread each: torch's own threads would compete with the other worker.
test: setup
	$(KERNEL_ENV) FUSER_CHECK=1 OMP_NUM_THREADS=1 $(RUN) -m pytest -n 2 --dist worksteal $(ARGS)

# With the folder of the tests on the path, as pytest has it.
opinfo: setup
	PYTHONPATH=$(CURDIR):$(CURDIR)/tests $(KERNEL_ENV) FUSER_CHECK=1 OMP_NUM_THREADS=1 \
	  $(patsubst PYTHONPATH=%,,$(RUN)) -m opinfo $(ARGS)

check: setup
	$(RUN) -m ruff format --check .
	$(RUN) -m ruff check .
	$(RUN) -m mypy
	$(LINT_IMPORTS) --no-cache --no-logo

format: setup
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

clean:
	rm -rf build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
