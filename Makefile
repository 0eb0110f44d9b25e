# Each target sets up its environment by itself; nothing but Python >= 3.11 and make is needed.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
WORKERS ?= auto
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -q

# Each at the learning rate that the study found best: examples/study/pages/comparison.md, Books.
COMPARED := adamw@0.002,muon:scaling=max@0.008,muoneq@0.008,aro@0.008,racs@0.016,alice@0.008,sumo@0.008,poet@0.004

.PHONY: help demo compare test test-fast test-near test-study test-slow test-only-slow \
	test-optimized test-aot test-floor test-frameworks lint format docs dist notebooks address \
	bench bench-aot clean

help:
	@echo "make demo       AdamW, Muon and MuonEq on a tiny LLaMA, rates searched"
	@echo "make compare    the tiny LLaMA under eight optimizers, at the rates of the study"
	@echo "make test       the test suite (10 to 20 minutes on two cores)"
	@echo "make test-fast  the quick part of it (2 to 3 minutes)"
	@echo "make test-near  what the changes since main can reach (BASE=... for another base)"
	@echo "make test-study the tests of examples/study, which make test leaves out"
	@echo "make test-slow  everything that the others leave out (up to two hours)"
	@echo "make test-floor the tests with the lowest versions that pyproject.toml allows"
	@echo "make test-frameworks  training, sharding and restarts inside other frameworks (hours)"
	@echo "make lint       ruff and pyright;  make format  ruff's fixes"
	@echo "make docs       the documentation as HTML: .docs/_build/index.html (about two minutes)"
	@echo "make dist       wheel and sdist in dist/, installed and tried in a clean environment"
	@echo "make notebooks  all notebooks, by the wheel alone and outside of the clone (ONLY=... for some)"
	@echo "make bench-aot  one optimizer step compiled for a TPU pod: work, bytes, memory"
	@echo "make address    writes the address of the repository (pyproject.toml) into all texts"
	@echo "make clean      deletes environments, caches and everything that was built"
	@echo "make test-optimized, make test-aot  parts of make test-slow"
	@echo "make bench      compile and step time of the matrix side against optax.contrib.muon"

# pip says nothing for minutes while it downloads.
installing = echo "installing $(2): up to $(1), some minutes the first time"

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "optax_matrix needs Python >= 3.11: make PYTHON=python3.12 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(call installing,1.5 GB,for tests and examples)
	$(BIN)/python -m pip install -q -e '.[dev]'
	@touch $@

demo: $(STAMP)
	$(BIN)/python -m examples.demo

compare: $(STAMP)
	$(BIN)/python -m examples.study compare --size tiny --out runs/compare --optimizers "$(COMPARED)"

test: $(STAMP)
	$(PYTEST) -m "not slow"

# The tests that a change since this branch or commit can reach.
BASE ?= main

test-near: $(STAMP)
	$(BIN)/python tests/near.py --base $(BASE) -- -n $(WORKERS) --dist worksteal

# What XLA compiled before is read from here; all other targets compile everything.
CACHE := JAX_COMPILATION_CACHE_DIR=$(CURDIR)/.cache JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0

test-fast: $(STAMP)
	$(CACHE) $(PYTEST) -m "not slow and not broad"

# `pytest` without paths does not collect these: see `testpaths` in pyproject.toml.
STUDY_TESTS := examples/study/tests
ALL_TESTS := tests optax_matrix $(STUDY_TESTS)

test-study: $(STAMP)
	$(PYTEST) -m "not slow" $(STUDY_TESTS)

# The TPU compiler (0.7 GB) has an environment of its own: without a TPU it is noisy.
AOT := .venv-aot/bin/python
AOT_TESTS := $(addprefix $(STUDY_TESTS)/test_,aot.py unrolled.py tpu_kernels.py tpu_kernels_compile.py)
AOT_INSTALL = (test -x $(AOT) || $(PYTHON) -m venv .venv-aot) && $(AOT) -m pip install -q -e '.[aot,test]'

# A part that fails does not keep the next ones from running.
test-slow: $(STAMP)
	$(MAKE) -k test-only-slow test-optimized test-aot

test-only-slow: $(STAMP)
	$(PYTEST) --durations=40 -m slow $(ALL_TESTS)

# All other tests run without most of XLA's optimizations.
test-optimized: $(STAMP)
	JAX_DISABLE_MOST_OPTIMIZATIONS=0 $(PYTEST) --durations=40 -m optimized

# The CUDA compiler (3 GB) likewise.
CUDA := .venv-aot-cuda/bin/python
CUDA_TESTS := $(addprefix $(STUDY_TESTS)/test_,account.py kernels_compile.py)
CUDA_INSTALL = (test -x $(CUDA) || $(PYTHON) -m venv .venv-aot-cuda) && $(CUDA) -m pip install -q -e '.[aot-cuda,test]'

test-aot:
	@$(call installing,0.7 and 3 GB,the compilers of TPUs and CUDA)
	@if $(AOT_INSTALL); then $(AOT) -m pytest -q -m slow $(AOT_TESTS); \
	else echo "$(AOT_TESTS) skipped: the TPU compiler could not be installed"; fi
	@if $(CUDA_INSTALL); then $(CUDA) -m pytest -q -m slow $(CUDA_TESTS); \
	else echo "$(CUDA_TESTS) skipped: the CUDA compiler could not be installed"; fi

bench-aot:
	@$(call installing,0.7 and 3 GB,the compilers of TPUs and CUDA)
	$(AOT_INSTALL)
	$(AOT) -m examples.study aot
	$(AOT) -m examples.study training
	$(CUDA_INSTALL)
	$(CUDA) -m examples.study aot --platform h200

# The lowest versions that pyproject.toml allows, in an environment of their own.
FLOORS = $(PYTHON) -c "import tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
	o = p['optional-dependencies']; every = p['dependencies'] + o['examples'] + o['test']; \
	print(*(d.replace('>=', '==') for d in every if '>=' in d))"

test-floor: pyproject.toml
	test -x .venv-floor/bin/python || $(PYTHON) -m venv .venv-floor
	@$(call installing,1.5 GB,the lowest versions)
	.venv-floor/bin/python -m pip install -q -e . $$($(FLOORS))
	.venv-floor/bin/python -m pytest -n $(WORKERS) --dist worksteal -q -m "not slow" $(ALL_TESTS)

# An environment for each framework, deleted after its run: gigabytes to download.
test-frameworks:
	$(PYTHON) -m examples.frameworks

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

DOCS_MADE := $(addprefix .docs/,_build api gallery jupyter_execute notebooks results releases.md catalogue.rst)

docs: pyproject.toml
	test -x .venv-docs/bin/python || $(PYTHON) -m venv .venv-docs
	@$(call installing,1 GB,for the documentation)
	.venv-docs/bin/python -m pip install -q -e '.[docs]'
	rm -rf $(DOCS_MADE)
	.venv-docs/bin/python -m sphinx -q -W --keep-going .docs .docs/_build

# The wheel is built from the sdist.
dist: pyproject.toml
	test -x .venv-build/bin/python || $(PYTHON) -m venv .venv-build
	@$(call installing,a few MB,to build)
	.venv-build/bin/python -m pip install -q build
	rm -rf dist .venv-dist
	.venv-build/bin/python -m build --outdir dist
	$(PYTHON) -m venv .venv-dist
	@$(call installing,0.5 GB,the wheel in a clean environment)
	.venv-dist/bin/python -m pip install -q dist/*.whl
	.venv-dist/bin/python -I .ci/installed.py dist

# Their first cell installs the wheel into an environment that has only a kernel. Both lie
# outside of the clone, and so do the copies that run. ONLY="notebooks/01_*.ipynb --write"
# runs one, and replaces its committed outputs.
ONLY ?=
OUTSIDE = $(shell $(PYTHON) -c "import tempfile; print(tempfile.gettempdir())")/optax_matrix_notebooks

notebooks: pyproject.toml
	rm -rf $(OUTSIDE)
	$(PYTHON) -m venv $(OUTSIDE)/env
	@$(call installing,0.5 GB,a kernel and then the wheel)
	$(OUTSIDE)/env/bin/python -m pip wheel -q --no-deps --wheel-dir $(OUTSIDE) .
	$(OUTSIDE)/env/bin/python -m pip install -q ipykernel nbclient nbformat pillow
	$(OUTSIDE)/env/bin/python -I .ci/notebooks.py $(OUTSIDE)/*.whl $(ONLY)
	rm -rf $(OUTSIDE)

address:
	$(PYTHON) .ci/address.py

bench: $(STAMP)
	$(BIN)/python -m examples.study step

clean:
	rm -rf $(VENV) .venv-* $(DOCS_MADE) dist runs .cache .pytest_cache .ruff_cache
