# Targets set up .venv first, if need be. PYTHON=/path/to/python chooses the interpreter.
python := .venv/bin/python
# The tests of a file, which share what is expensive, run in one process; files begin in the order of tests/conftest.py.
parallel := --numprocesses auto --dist loadfile --no-loadscope-reorder

.PHONY: help setup book pdf slides check test chapter serve matrix links citations centres audit perturb compare scoreboard libraries benchmark publish-notebooks lighthouse lint lock clean

help:
	@echo "make book                       build the book, _build/html/index.html, and its notebooks"
	@echo "make pdf                        bind the book into one PDF with page numbers, _build/book.pdf"
	@echo "make slides                     make slides of each path through the book, _build/slides (ARGS=arrays)"
	@echo "make check                      check style, rules and shardlab, and the exercises of changed chapters"
	@echo "make test                       run the tests that the last changes concern (ARGS=tests: all)"
	@echo "make chapter FILE=book/x.md     run one chapter and make its page"
	@echo "make serve                      serve the book on localhost, rebuild and reload on save (PORT=8000)"
	@echo "make publish-notebooks          push the notebooks to the branch that Colab opens (REMOTE=origin)"
	@echo "make matrix                     run every chapter on every JAX that readers have (ARGS='--only colab')"
	@echo "make links                      check every external link of the chapters"
	@echo "make citations                  compare title, year and author of each reference with arXiv and Crossref"
	@echo "make centres                    name the rows of your_centre that were read more than half a year ago"
	@echo "make audit                      look up known vulnerabilities of every locked package"
	@echo "make perturb                    list assertions of chapters that pass with another number (ARGS=memory)"
	@echo "make compare                    run the chapters anew, compile all anew, and compare what the pages show (ARGS='--chapters zero')"
	@echo "make scoreboard                 explain the public reports anew, and record what is said of them (ARGS=--check)"
	@echo "make libraries                  run programs of libraries on Auto and Explicit axes, and record the results (ARGS=--check)"
	@echo "make benchmark                  time a build, and one by stock Jupyter Book (ARGS='prose --runs 3')"
	@echo "make lighthouse                 measure size, speed and accessibility of the built pages (ARGS=--collect.numberOfRuns=5)"
	@echo "make lint                       check style, spelling, unused code and types"
	@echo "make lock                       renew requirements.txt from pyproject.toml"
	@echo "make clean                      delete what was built, and .venv"

setup:
	@scripts/setup.sh

book: setup
	@$(python) -m bookbinder build

pdf: book
	@scripts/system.sh
	@$(python) scripts/pdf.py $(ARGS)

slides: book
	@$(python) scripts/slides.py $(ARGS)

check: lint
	@$(python) -m pytest --quick $(parallel) $(ARGS)

test: setup
	@scripts/system.sh
	@$(python) -m pytest --retry --proofs $(if $(ARGS),renew,use) $(parallel) $(ARGS)

chapter: setup
	@test -n "$(FILE)" || { echo "which chapter? For example: make chapter FILE=book/arrays.md" >&2; exit 2; }
	@$(python) -m bookbinder chapter "$(FILE)"

serve: setup
	@$(python) -m bookbinder serve --port $(or $(PORT),8000)

publish-notebooks: setup
	@$(python) -m bookbinder publish-notebooks $(REMOTE)

matrix: setup
	@$(python) -m bookbinder matrix $(ARGS)

links: setup
	@$(python) -m bookbinder links

citations: setup
	@$(python) scripts/citations.py $(ARGS)

centres: setup
	@$(python) scripts/centres.py

audit: setup
	@$(python) scripts/audit.py $(ARGS)

perturb: setup
	@$(python) scripts/perturb.py $(ARGS)

compare: setup
	@$(python) -m bookbinder compare $(ARGS)

scoreboard: setup
	@$(python) scripts/record_reports.py $(ARGS)

libraries: setup
	@$(python) scripts/record_libraries.py $(ARGS)

benchmark: setup
	@$(python) scripts/benchmark.py $(ARGS)

lighthouse: book
	@scripts/system.sh
	@mkdir -p _build/lighthouse
	@cd _build/lighthouse && { cmp -s ../../scripts/lighthouse/package-lock.json node_modules/locked || \
	  { cp ../../scripts/lighthouse/*.json . && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error && \
	    cp package-lock.json node_modules/locked; }; }
	@cd _build/lighthouse && \
	  CHROME_PATH=$$(command -v chromium || command -v chromium-browser || command -v google-chrome) \
	  node_modules/.bin/lhci autorun --config=../../scripts/lighthouse/lighthouserc.json $(ARGS)

lint: setup
	@$(python) -m ruff check
	@$(python) -m ruff format --check
	@$(python) -m codespell_lib
	@$(python) -m pyrefly check --progress-bar no

lock: setup
	@.venv/bin/uv pip compile pyproject.toml --extra chapters --group book --group test \
	  --universal --python-version 3.11 \
	  --generate-hashes --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" \
	  --upgrade --quiet --output-file requirements.txt
	@scripts/setup.sh

clean:
	rm -rf _build .venv
