"""bookbinder: turn chapters that are programs into a site and into notebooks.

- `bookbinder.book`: read the table of contents and the chapters, and reject what is broken
- `bookbinder.execute`: run the chapters for the site, reusing outputs that are still valid
- `bookbinder.runs`: run notebooks, several at once; what was run under a key is not run again under it
- `bookbinder.run_notebook`: run one notebook with any Python; imports nothing of ours
- `bookbinder.stopping`: end what runs when a signal comes
- `bookbinder.disk`: locks, files and folders that are replaced at once, digests
- `bookbinder.site`: turn the executed chapters into HTML, replacing the old site only when the new one is complete
- `bookbinder.extension`: the Sphinx extension that does the same for plain `jupyter-book build .`
- `bookbinder.terms`: link terms to the glossary, and note where they are defined
- `bookbinder.search`: the sections of all pages, for the search of the site
- `bookbinder.pages`: what stands on a page besides its text; `bookbinder/theme` lays it out, with templates and styles
- `bookbinder.questions`: make predictions questions, whose answer opens when the reader has picked one
- `bookbinder.reference`: the page of every public name of a package, from its docstrings
- `bookbinder.notebooks` and `bookbinder.plain`: make chapters notebooks that Colab shows
- `bookbinder.publish`: push the notebooks as the branch from which Colab opens them
- `bookbinder.serve`: serve the site while someone writes, and rebuild it on every save
- `bookbinder.address`: the links to the repository, the site and the notebooks
- `bookbinder.matrix`: run the chapters on every JAX that readers have: a table of chapters by versions
- `bookbinder.environments`: those versions, and an environment for each
- `bookbinder.progress`: report which chapters are running, as a live table or as plain lines

It knows nothing of JAX but its versions. `python -m bookbinder --help` lists its commands.
"""
