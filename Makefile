# trainrig from a fresh clone: `make qualify` measures this machine, `make test` proves the parts.
#
# The environment is .venv, made by python3 and pip with the pins of constraints.txt, in stages:
# light (enough for `trainrig inspect`, seconds), full (torch and scipy), test, dev.
# A stage writes its stamp last, so the next `make` mends one that was interrupted.

PYTHON ?= python3
ARGS   ?=

ifeq ($(TORCH),existing)
# The user's torch is seen from an environment of our own; see tools/existing_torch.py.
VENV   := .venv-existing
NOTE   := $(VENV).txt
PINS   := $(NOTE)
FULL   := .
ENGINES := .[engines]
TEST   := .[engines,test]
DEV    := .[engines,dev]
else
VENV   := .venv
NOTE   :=
# constraints.txt with the torch for this machine, or for TORCH=; what was installed stays.
WHEEL  := $(if $(TORCH),$(VENV)/.torch-$(TORCH),$(or $(wildcard $(VENV)/.torch-*),$(VENV)/.torch-auto))
PINS   := constraints.txt
FULL   := .[torch]
ENGINES := .[torch,engines]
TEST   := .[torch,engines,test]
DEV    := .[torch,engines,dev]
endif

BIN    := $(VENV)/bin
PIP_AS := $(BIN)/python -m pip --disable-pip-version-check --no-input install -c
PIP    := $(PIP_AS) $(or $(WHEEL),$(PINS))
# pip is silent but for a terminal, where torch's several GB deserve their progress bar.
HUSH   := $(shell test -t 1 || echo -qq)
# What `trainrig inspect` needs; the rest follows in the full stage.
LIGHT  := click humanize jinja2 nvidia-ml-py pydantic rich tomli_w

.DEFAULT_GOAL := help
.PHONY: help setup engines qualify test smoke acceptance mutate lint docs messages bench clean FORCE

help: ## list what there is to make
	@sed -nE 's/^([a-z-]+):.*## (.*)/make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "%-16s %s\n", $$1, $$2}'
	@echo
	@echo 'make qualify ARGS="--budget 1m"     passes options to trainrig qualify'
	@echo 'make qualify TORCH=existing         uses the torch that PYTHON=python3 has, and leaves it as it is'
	@echo 'make qualify TORCH=cpu              another torch than the one for this machine: cpu, cu126, rocm7.2, xpu, 2.9.1'
	@echo 'make qualify TORCH_INDEX=URL        an index with a folder per build of torch, beside those of pip'

setup: $(VENV)/.full ## make the environment and install trainrig in it

engines: $(VENV)/.engines ## install Hugging Face, DeepSpeed and Megatron-Core, as they are tested

qualify: $(VENV)/.full ## measure this machine: a verdict and report.html
	@$(BIN)/trainrig qualify $(ARGS)

test: $(VENV)/.test ## run the tests; what this machine lacks is skipped and counted
	@$(BIN)/python -m pytest -q -n auto --maxprocesses 8 --dist worksteal $(ARGS)

smoke: $(VENV)/.test ## train once by each framework and layout, for minutes
	@TRAINRIG_GATE=smoke $(BIN)/python -m pytest -q -m smoke $(ARGS)

acceptance: $(VENV)/.test ## everything that takes long, resumable; a summary at the end
	@$(BIN)/python tools/acceptance.py $(ARGS)

mutate: $(VENV)/.test ## break the judging modules by mutations: each has to fail a test
	@$(BIN)/python tools/mutate.py $(ARGS)

lint: $(VENV)/.dev ## ruff, mypy and the import rules
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

docs: $(VENV)/.dev ## the pages of docs/ as a site in build/docs, and a man page in build/man
	@$(BIN)/python -m sphinx -q -W --keep-going -b html docs build/docs
	@$(BIN)/python -m sphinx -q -W --keep-going -b man docs build/man
	@echo "build/docs/index.html, build/man/trainrig.1"

messages: $(VENV)/.dev ## find what is shown and not yet translated (src/trainrig/locale)
	@$(BIN)/python tools/messages.py --update

bench: $(VENV)/.full ## measure trainrig itself against the usual way, in ratios
	@status=0; for file in perf/[!_]*.py; do echo "== $$file"; $(BIN)/python $$file || status=1; done; exit $$status

clean: ## remove environments and caches; runs are kept
	rm -rf .venv .venv-* build dist src/*.egg-info
	rm -rf .acceptance .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache

# A python that has gone from under its environment is found here: the link to it dangles.
$(BIN)/python:
	@rm -rf $(VENV)
	@command -v $(PYTHON) >/dev/null || { echo "trainrig: there is no $(PYTHON); hint: sudo apt install python3 python3-venv" >&2; exit 3; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "trainrig: $(PYTHON) is older than 3.11; hint: name a newer one with PYTHON=python3.12" >&2; exit 3; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "trainrig: $(PYTHON) -m venv cannot work here; hint: sudo apt install python3-venv" >&2; exit 3; }

# Python keeps no bytecode where it is told so (PYTHONDONTWRITEBYTECODE, as in many containers), and
# would compile what is installed --editable for every command: a sixth of a short one's time.
$(VENV)/.light: $(BIN)/python $(NOTE) pyproject.toml constraints.txt
	@test -e $@ || { echo "making $(VENV)" >&2; $(PYTHON) -m venv --clear $(VENV); }
	@$(if $(NOTE),$(BIN)/python tools/existing_torch.py link $(NOTE) $(VENV))
	@$(PIP_AS) $(PINS) -qq 'setuptools>=77' $(LIGHT)
	@$(PIP_AS) $(PINS) -qq --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m compileall -q src
	@touch $@

# The light stamp is gone while a later stage is at work, and an environment without it is made
# anew: so one that was left half-made never passes for whole.
install = @mv $(VENV)/.light $(VENV)/.held; $(PIP) $(1); status=$$?; mv $(VENV)/.held $(VENV)/.light; exit $$status
LOCAL   = --no-build-isolation --editable

# The first look at the machine comes before the heavy packages.
$(VENV)/.looked: $(VENV)/.light
	@test -e $@ || $(BIN)/trainrig inspect || echo "inspect failed; the set-up goes on" >&2
	@touch $@

# What was chosen before is named by a file: .torch-cu126.
$(VENV)/.torch-%: $(VENV)/.looked
	@rm -f $(VENV)/.torch-*
	@TORCH_INDEX='$(TORCH_INDEX)' $(BIN)/python -m trainrig.install.torch_wheel $* constraints.txt >$@ || { rm -f $@; exit 3; }

$(VENV)/.full: $(VENV)/.looked $(WHEEL)
	@echo "installing $(if $(NOTE),the rest,torch and the rest)" >&2
	$(call install,$(HUSH) $(LOCAL) '$(FULL)')
	@$(if $(NOTE),$(BIN)/python tools/existing_torch.py check $(NOTE))
	@touch $@

# DeepSpeed's source is built without an environment of its own: it wants to see this torch.
$(VENV)/.engines: $(VENV)/.full
	@echo "installing other engines" >&2
	$(call install,-qq 'setuptools>=77' wheel)
	$(call install,$(HUSH) $(LOCAL) '$(ENGINES)')
	@touch $@

$(VENV)/.test: $(VENV)/.engines
	@echo "installing what the tests need" >&2
	$(call install,-qq $(LOCAL) '$(TEST)')
	@touch $@

$(VENV)/.dev: $(VENV)/.test
	$(call install,-qq $(LOCAL) '$(DEV)')
	@touch $@

ifdef NOTE
$(NOTE): FORCE
	@$(PYTHON) tools/existing_torch.py find $@
endif
