# Every target sets up .venv first, if need be. PYTHON=/path/to/python chooses the interpreter.
python := .venv/bin/python

.PHONY: help setup book test chapter serve matrix links audit benchmark publish-notebooks lighthouse lint lock clean

help:
	@echo "make book                       the book, in _build/html/index.html, and its notebooks"
	@echo "make test                       every test"
	@echo "make chapter FILE=book/x.md     one chapter, fast"
	@echo "make serve                      the book on localhost, rebuilt and reloaded on save (PORT=8000)"
	@echo "make publish-notebooks          the notebooks to the branch from which Colab opens them (REMOTE=origin)"
	@echo "make matrix                     every chapter on every JAX that readers have (ARGS='--only colab')"
	@echo "make links                      every address elsewhere that chapters link to: is it still there?"
	@echo "make audit                      every package of the lock: is a vulnerability known?"
	@echo "make benchmark                  seconds of a build, and of stock Jupyter Book (ARGS='prose --runs 3')"
	@echo "make lighthouse                 weight, speed and access of the built pages, on a phone (ARGS='arrays --runs 5')"
	@echo "make lint                       style, spelling, unused code"
	@echo "make lock                       requirements.txt anew from pyproject.toml"
	@echo "make clean                      delete what was built, and .venv"

setup:
	@scripts/setup.sh

book: setup
	@$(python) -m bookbinder build

test: setup
	@scripts/system.sh
	@$(python) -m pytest --numprocesses auto --dist loadfile $(ARGS) # a file's costly fixtures are made once

chapter: setup
	@test -n "$(FILE)" || { echo "which chapter? make chapter FILE=book/arrays.md" >&2; exit 2; }
	@$(python) -m bookbinder chapter "$(FILE)"

serve: setup
	@$(python) -m bookbinder serve --port $(or $(PORT),8000)

publish-notebooks: setup
	@$(python) -m bookbinder publish-notebooks $(REMOTE)

matrix: setup
	@$(python) -m bookbinder matrix $(ARGS)

links: setup
	@$(python) -m bookbinder links

audit: setup
	@$(python) scripts/audit.py $(ARGS)

benchmark: setup
	@$(python) scripts/benchmark.py $(ARGS)

lighthouse: setup
	@scripts/system.sh
	@$(python) scripts/lighthouse.py $(ARGS)

lint: setup
	@$(python) -m ruff check
	@$(python) -m ruff format --check
	@$(python) -m codespell_lib

lock: setup
	@.venv/bin/uv pip compile pyproject.toml --extra chapters --group book --group test \
	  --universal --python-version 3.11 \
	  --generate-hashes --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" \
	  --upgrade --quiet --output-file requirements.txt
	@scripts/setup.sh

clean:
	rm -rf _build .venv
