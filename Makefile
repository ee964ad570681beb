# `make book` builds and checks the book, `make test` runs every test; both install what they need on the first call.
# `make PYTHON=/path/to/python book` names the Python that makes the environment.

SHELL := /bin/sh
VENV := .venv
MACHINES := .venv-machines
PY := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed
JOBS := 2

# pip: say little, ask nothing, do not look for its own update
PIP := $(PY) -m pip -qq --no-input --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help install book check links serve lab pdf student slides datapack test machines test-machines federation-demo federation-simulation lint format sync lock clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(INSTALLED)  ## make .venv with the exact versions of requirements.lock

# Python 3.14 and later come last: the lock was made for 3.11 to 3.13.
$(PY):
	@for python in $(PYTHON) python3 python3.13 python3.12 python3.11 python; do \
	  if $$python -c 'import sys, venv, ensurepip; sys.exit(not sys.version_info >= (3, 11))' >/dev/null 2>&1; then \
	    echo "Making $(VENV) with $$($$python --version) ..."; \
	    $$python -m venv $(VENV) && exit 0; exit 1; \
	  fi; \
	done; \
	echo "No Python 3.11 or later with its venv module was found. Install one (on Debian and Ubuntu:" >&2; \
	echo "python3 and python3-venv), or name it: make PYTHON=/path/to/python3 book" >&2; exit 1

# The lock holds everything, each file by its hash, so pip need not resolve anything on the kind of machine it was made
# for; unpacking is what takes long, and two calls side by side use two cores. Elsewhere (macOS, ARM, other versions of
# Python) pip resolves requirements.txt, with the versions of the lock as far as they apply, and says so.
# `core` and `lab` are put on the path by one line in a .pth file, and the command `fedcon` beside Python, which needs
# no build step and no network.
$(INSTALLED): requirements.lock requirements.txt | $(PY)
	@echo "Installing the packages of requirements.lock (about 6 GB with PyTorch; two to three minutes) ..."
	@if $(PY) -c 'import sys, platform as p; sys.exit(not ((3, 11) <= sys.version_info < (3, 14) and p.system() == "Linux" and p.machine() == "x86_64"))'; then \
	  grep -E '^(nvidia|cuda)' requirements.lock > $(VENV)/gpu.lock; grep -vE '^(nvidia|cuda)' requirements.lock > $(VENV)/rest.lock; \
	  $(PIP) install --no-deps --require-hashes -r $(VENV)/gpu.lock & gpu=$$!; \
	  $(PIP) install --no-deps --require-hashes -r $(VENV)/rest.lock && wait $$gpu; \
	else \
	  echo "The lock is for Python 3.11 to 3.13 on Linux and x86-64; here pip resolves requirements.txt, without hashes."; \
	  sed 's/ --hash=[^ ]*//g' requirements.lock > $(VENV)/versions.txt; \
	  $(PIP) install -r requirements.txt -c $(VENV)/versions.txt || $(PIP) install -r requirements.txt; \
	fi
	@$(PY) -c 'import pathlib, sysconfig; pathlib.Path(sysconfig.get_path("purelib"), "book_of_this_folder.pth").write_text(str(pathlib.Path.cwd()) + "\n")'
	@printf '#!%s\nfrom lab.__main__ import begin\nbegin()\n' "$$PWD/$(PY)" > $(VENV)/bin/fedcon && chmod +x $(VENV)/bin/fedcon
	@touch $@

book: $(INSTALLED)  ## run the notebooks, build the site into _build/html, check it
	@$(PY) -m lab book build
	@$(MAKE) --no-print-directory check

# links, alternative text, nothing from other servers; in a browser too, where there is one
check: $(INSTALLED)  ## check the site that is already built
	@SITE=_build/html $(PY) -m pytest -q --no-header -n $(JOBS) tests/lab/site/test_built.py

links: $(INSTALLED)  ## ask other servers whether the site's links to them still lead somewhere
	@$(PY) -c 'from jupyter_book.cli.main import main; main()' build _build/staging --path-output . --builder linkcheck

serve: $(INSTALLED)  ## show the built site on this machine
	@$(PY) -m http.server --bind 127.0.0.1 --directory _build/html 8000

# JupyterLab is no part of the lock: who only builds the book does without it
lab: $(INSTALLED)  ## open the notebooks in JupyterLab, which the first call installs
	@$(PY) -c 'import jupyterlab' 2>/dev/null || $(PIP) install "jupyterlab>=4"
	@$(PY) -m jupyterlab notebooks/01_quickstart.ipynb

pdf: $(INSTALLED)  ## print the built site into one file, _build/book.pdf (needs Chromium)
	@$(PY) -m lab book pdf --out _build/book.pdf

student: $(INSTALLED)  ## notebooks without solutions that check answers themselves, into _build/student
	@$(PY) -m lab book student --out _build/student

slides: $(INSTALLED)  ## slides of six lessons, which need no network, into _build/slides
	@$(PY) -m lab book slides --out _build/slides

datapack: $(INSTALLED)  ## the real data sets that fit 50 MB and may be passed on: _build/datapack.zip
	@$(PY) -m lab data pack _build/datapack.zip

# pages whose outputs follow from records alone, which nbval executes; `make book` executes all the others
PAGES := 12_fedvck_results 18_fedmk_results 25_gddfl_results 29_fediod_results
NBVAL = -p tests.notebooks.keeping --nbval --nbval-current-env --nbval-sanitize-with tests/notebooks/sanitize.cfg \
  --keep _build/executed $(PAGES:%=notebooks/%.ipynb)

# Each worker gets one thread, so that two of them fill two cores, and the files in the order of tests/conftest.py. A
# worker that dies ends the tests with the name of the one that killed it; pytest-xdist would wait for ever if it
# started another. Notebooks that were executed are kept for `make book`, and compared with by the next `make test`.
test: $(INSTALLED)  ## all tests, and the notebooks of results
	@OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(PY) -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder \
	  --max-worker-restart 0 $(NBVAL) tests

# Flower holds back versions of packages that the book has newer, so both stand in an environment of their own, which
# sees .venv behind it.
$(MACHINES)/.installed: requirements-machines.lock $(INSTALLED)
	@$(PY) -m venv $(MACHINES)
	@$(MACHINES)/bin/python -m pip -qq --no-input --disable-pip-version-check install --no-deps --require-hashes \
	  -r requirements-machines.lock
	@$(PY) -c 'import pathlib, sysconfig; print(sysconfig.get_path("purelib"), pathlib.Path.cwd(), sep="\n")' > \
	  $$($(MACHINES)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/book.pth
	@touch $@

machines: $(MACHINES)/.installed  ## Ray and Flower, in .venv-machines

test-machines: $(MACHINES)/.installed  ## the tests with real Ray nodes and a real federation
	@OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(MACHINES)/bin/python -m pytest \
	  tests/lab/test_sweep.py tests/lab/test_flower.py \
	  tests/lab/test_flower_hospital.py tests/e2e/test_federation.py

federation-demo: $(MACHINES)/.installed  ## three hospitals and a server on this machine, with TLS and keys
	@$(MACHINES)/bin/python -m lab.flower.demo

federation-simulation: $(MACHINES)/.installed  ## three hospitals that Flower simulates on this machine
	@$(MACHINES)/bin/python -m lab.flower.demo --simulated

lint: $(INSTALLED)  ## ruff and mypy
	@$(PY) -m ruff format --check --quiet . || { $(PY) -m ruff format --check . ; echo "make format mends this"; exit 1; }
	@$(PY) -m ruff check .
	@$(PY) -m mypy

format: $(INSTALLED)  ## lay out the code: 100 columns, 80 in notebooks
	@$(PY) -m ruff format .

sync: $(INSTALLED)  ## write every notebooks/*.ipynb, and its plain copy, again from its .py
	@$(PY) -c "from lab.report import classroom, notebooks; print(*notebooks.sync(), *classroom.sync_plain(), sep=\"\\n\")"

# The GPU libraries exist for Linux on x86-64 only; uv asks the package index for the hash of every file of a version.
lock:  ## write requirements.lock from what is installed in .venv
	@$(PY) -m uv --version >/dev/null 2>&1 || $(PIP) install uv
	@$(PY) -m pip freeze --all --exclude pip --exclude wheel --exclude uv | grep -v '^-e' | \
	   sed -E 's/ @ .*//; /^(nvidia|cuda|triton)/ s/$$/ ; sys_platform == "linux" and platform_machine == "x86_64"/' \
	   > $(VENV)/versions.txt
	@{ sed -n '/^#/p;/^[^#]/q' requirements.lock; \
	   $(PY) -m uv pip compile -q $(VENV)/versions.txt --generate-hashes --no-deps --universal --python-version 3.11.9 \
	     --no-header --no-annotate | sed -e ':a' -e '/\\$$/{N;s/ *\\\n */ /;ba' -e '}'; \
	 } > requirements.lock.new && mv requirements.lock.new requirements.lock
	@touch $(INSTALLED)

clean:  ## remove what was built; .venv and measured records stay
	rm -rf _build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
