# Everything is installed into .venv here; Slurm comes from the distribution's packages.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
FRAMEWORKS := .cache/frameworks
CONTAINER_PACKAGES := gcc libc6-dev libslurm-dev squashfs-tools curl docker-registry
SLURM_PACKAGES := slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge
MPI_PACKAGES := openmpi-bin libopenmpi-dev libpmix-dev gcc libc6-dev
# nodes of the sandbox with a network and an sshd of their own; accounting. libpam-slurm-adopt is a file that no PAM stack names
NODE_PACKAGES := openssh-server openssh-client iproute2 libpmix-dev libpam-slurm-adopt
ACCOUNTING_PACKAGES := slurmdbd slurm-wlm-mysql-plugin mariadb-server-core mariadb-client-core
# promtool for metrics, and what the monitoring suite looks at
MONITORING_PACKAGES := prometheus prometheus-node-exporter
# kubectl, for the kubernetes suite; a kubectl from another source conflicts with the distribution's package
KUBERNETES_PACKAGES := $(if $(shell command -v kubectl),,kubernetes-client)
# the HTML report is tested in a real browser
BROWSER_PACKAGES := chromium
# Tcl Environment Modules, which excludes lmod: what Lmod prints is recorded in tests/data/software
SOFTWARE_PACKAGES := environment-modules
# the shells and awks that nodes have; dash is there
SHELL_PACKAGES := busybox gawk mawk
# a fabric in user space with real tools
IBFABRIC_PACKAGES := ibsim-utils opensm infiniband-diags lldpd
HOROVOD_PACKAGES := cmake g++ libopenmpi-dev
# the storage suite measures by fio; faults of storage are a FUSE file system
STORAGE_PACKAGES := fio fuse3
TEST_PACKAGES := $(CONTAINER_PACKAGES) $(MPI_PACKAGES) $(NODE_PACKAGES) $(ACCOUNTING_PACKAGES) $(MONITORING_PACKAGES) \
	$(BROWSER_PACKAGES) $(SHELL_PACKAGES) $(HOROVOD_PACKAGES) $(IBFABRIC_PACKAGES) $(KUBERNETES_PACKAGES) $(SOFTWARE_PACKAGES) $(STORAGE_PACKAGES)
# The smallest build of torch that the tests have been run with; they need no GPU.
TORCH ?= torch==2.13.0
REFRAME ?= ReFrame-HPC==4.10.4
MKDOCS ?= mkdocs>=1.6,<2 mkdocs-material>=9.5,<10

.PHONY: help demo test test-all test-rest corpus messages mutation oldest lint format docs release bench fuzz chaos clean slurm packages reframe

help:
	@echo "make demo    run the acceptance suites against a sandbox: a real Slurm of virtual nodes"
	@echo "make test    the unit tests, and what is essential on one real Slurm: minutes (RECORD=1: record how long each module takes)"
	@echo "make test-all  make test, and all other tests: frameworks, containers, browser, accounting, fabric (half an hour on 2 cores)"
	@echo "make messages  write what the checks of each suite say to tests/suites/*/messages.txt"
	@echo "make corpus  judge recorded output of real machines; prints sensitivity and specificity (NAMES='dcgm nvlink': some of it; SITES=1: also every site of tests/first_night, hours)"
	@echo "make mutation  change functions a little with mutmut, print each change that no test of the module detects (SEED, COUNT, MINUTES, PACKAGES)"
	@echo "make oldest  the plugin's tests with the lowest releases that pyproject.toml allows (OLDEST=python3.10)"
	@echo "make lint    ruff, mypy and shellcheck"
	@echo "make docs    build the documentation site in site/; a broken link or anchor fails"
	@echo "make release  build in dist/ sdists, wheels, and files that install without internet; run each; uploads nothing (PYTHONS='python3.12': for it too)"
	@echo "make fuzz    many random inputs to every reader, half an hour (FUZZ_EXAMPLES=2000)"
	@echo "make bench   print the cost ratios (FULL=1: at all sizes; ONLY=controller.py)"
	@echo "make chaos   kill runs at random moments, look at what they leave (KILLS=300 SEED=1: about half an hour)"

$(VENV)/.ready: pyproject.toml slurm-sandbox/pyproject.toml src/pytest_gpucluster/__init__.py
	@./tools/make-venv $(PYTHON) $(VENV)
	@echo "installing Python packages into $(VENV) (once)"
	@$(BIN)/pip install -q --disable-pip-version-check -e ./slurm-sandbox -e '.[dev]'
	@touch $@

# the recipe is tools/make-frameworks; about 4 minutes on 2 cores, most of it the wheel of Horovod, which is kept
$(FRAMEWORKS)/.ready: tools/make-frameworks tools/build-horovod | packages
	@./tools/make-frameworks $(PYTHON) $(FRAMEWORKS) $(TORCH)
	@touch $@

slurm:
	@./tools/install-slurm $(SLURM_PACKAGES)

# tests that need what could not be installed say so
packages:
	@./tools/install-missing $(sort $(TEST_PACKAGES)) || true

demo: $(VENV)/.ready
	@./tools/demo

# needs Slurm's packages and Python's alone; containers of Debian and Ubuntu lack procps
test: $(VENV)/.ready slurm
	@command -v ps >/dev/null || ./tools/apt-install "the tests need ps, pgrep and sysctl" procps
	@./tools/run-tests $(BIN)/python first $(RECORDED)

test-all: test test-rest

# what `make test` leaves out
test-rest: $(VENV)/.ready slurm packages $(FRAMEWORKS)/.ready
	@./tools/run-tests $(BIN)/python rest $(RECORDED)

RECORDED := $(if $(RECORD),--record-durations)

# what the checks of each suite say, as one file per suite that a reviewer reads
messages: $(VENV)/.ready
	@$(BIN)/python -m pytest -q tests/suites --write-messages

corpus: $(VENV)/.ready $(if $(SITES),slurm packages)
	@$(BIN)/python tools/corpus.py $(NAMES)
	@[ -z '$(SITES)' ] || GPUCLUSTER_EVERY_SITE=1 $(BIN)/python -m pytest -q tests/first_night

# PACKAGES: below src/pytest_gpucluster, as `drain kit/gpu/xid.py`
COUNT ?= 300
MINUTES ?= 10
mutation: $(VENV)/.ready
	@$(BIN)/pip install -q --disable-pip-version-check 'mutmut>=3.8,<4'
	@$(BIN)/python tools/mutation.py --seed $(SEED) --count $(COUNT) --minutes $(MINUTES) $(PACKAGES)

# a bound in pyproject.toml that nobody runs is a guess
OLDEST ?= $(PYTHON)
oldest: slurm packages
	@rm -rf .cache/oldest
	@./tools/test-oldest $(OLDEST) .cache/oldest

# the shell scripts of both packages and of this checkout; tests/core/test_scripts.py parses those that nodes run
SHELL_SCRIPTS = grep -rlIE --exclude='*.py' --exclude-dir=__pycache__ '^(\#!/bin/(ba)?sh|\#!/usr/bin/env bash|\# shellcheck shell=(ba)?sh)' \
	.ci tools slurm-sandbox/src src/pytest_gpucluster
lint: $(VENV)/.ready
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(SHELL_SCRIPTS) | xargs $(BIN)/shellcheck

format: $(VENV)/.ready
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

docs: .cache/docs/.ready
	@NO_MKDOCS_2_WARNING=1 .cache/docs/bin/mkdocs build --strict

# in a venv of its own, so that the development environment stays small
.cache/docs/.ready: Makefile
	@mkdir -p .cache && ./tools/make-venv $(PYTHON) .cache/docs
	@.cache/docs/bin/pip install -q --disable-pip-version-check $(foreach one,$(MKDOCS),'$(one)')
	@touch $@

release:
	@./tools/release $(PYTHON) $(PYTHONS)

FUZZ_EXAMPLES ?= 2000
fuzz: $(VENV)/.ready slurm
	@GPUCLUSTER_FUZZ_EXAMPLES=$(FUZZ_EXAMPLES) $(BIN)/python -m pytest -q tests/project/test_readers_fuzz.py tests/project/test_environment_fuzz.py tests/config/test_loader.py \
	  tests/system/test_bad_input.py

# quick: the smallest sizes, a few minutes; FULL=1: all sizes, hours where ReFrame takes part; ONLY: some of the benchmarks
bench: $(VENV)/.ready slurm reframe
	@PATH=$$PATH:/usr/sbin $(BIN)/python benchmarks/all.py $(if $(FULL),--full) $(ONLY)

# for the comparison only, in a venv of its own
reframe: .cache/reframe/.ready
.cache/reframe/.ready: Makefile
	@mkdir -p .cache && ./tools/make-venv $(PYTHON) .cache/reframe
	@.cache/reframe/bin/pip install -q --disable-pip-version-check '$(REFRAME)'
	@touch $@

KILLS ?= 300
SEED ?= 1
chaos: $(VENV)/.ready slurm packages $(FRAMEWORKS)/.ready
	@$(BIN)/python tools/chaos.py --kills $(KILLS) --seed $(SEED)

clean:
	@-$(BIN)/gpucluster sandbox down 2>/dev/null
	@rm -rf $(VENV) .cache reports build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis
