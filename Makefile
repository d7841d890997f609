# make demo   fit and draw the synthetic examples into demo/
# make test   lint, types, tests
# make slow   the tests that take minutes, and properties on new examples
# make peers  the packages that `bali-benchmarks tables` and `peers` and the Laplace baselines compare with
# make docs   run the commands in docs/command-line.md and put in what they print
# make site   the site, tutorials run, into build/site
# make site-test   every page of it in a browser, and all code on it
# make release     sdist and wheel, checked, and tried in empty environments

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# In which a release is tried: make release OLDEST_PYTHON=python3.11 NEWEST_PYTHON=python3.13
OLDEST_PYTHON ?= $(BIN)/python
NEWEST_PYTHON ?= $(BIN)/python
# One test process per core, each with one thread: threads of small matrices would only wait for each other.
ONE_THREAD := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1

.PHONY: demo test lint types tests slow peers docs site site-test release format clean

demo: $(INSTALLED)
	$(BIN)/bali-benchmarks demo --out demo

test: lint types tests

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED)
	$(BIN)/mypy

tests: $(INSTALLED)
	$(ONE_THREAD) $(BIN)/pytest -n auto --dist worksteal -rs

slow: $(INSTALLED)
	$(ONE_THREAD) BALI_EXAMPLES=new $(BIN)/pytest -m slow
	$(ONE_THREAD) BALI_EXAMPLES=new $(BIN)/pytest -n auto --dist worksteal -m hypothesis

# laplace-torch asks for torchvision and does not use it; one that was built for another torch cannot be imported beside it.
peers: $(INSTALLED)
	$(BIN)/pip install -c constraints.txt -e . -e './benchmarks[peers]'
	$(BIN)/python -c 'import torchvision' || $(BIN)/pip uninstall -y torchvision

docs: $(INSTALLED)
	$(BIN)/python docs/transcripts.py

# Tutorials that were run before with the same code are not run again.
site: $(INSTALLED)
	$(ONE_THREAD) NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

site-test: site
	$(ONE_THREAD) $(BIN)/pytest tests/site -m 'slow or not slow' -rs

# zopfli makes the wheel 2 % smaller; a release can be made without it.
release: $(INSTALLED)
	-$(BIN)/pip install --quiet zopfli
	$(ONE_THREAD) $(BIN)/python tools/release.py --oldest-python $(OLDEST_PYTHON) --newest-python $(NEWEST_PYTHON)

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf build dist demo .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src benchmarks tests -type d -name __pycache__ -prune -exec rm -rf {} +

# Built again only when what is to be installed changes.
$(INSTALLED): pyproject.toml benchmarks/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "bali needs Python 3.11 or newer, and '$(PYTHON)' is $$($(PYTHON) --version 2>&1)." >&2; \
	  echo "Name a newer one: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]' -e ./benchmarks
	@touch $@
