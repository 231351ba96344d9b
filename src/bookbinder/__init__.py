"""bookbinder: bind chapters that are programs into a site.

- `bookbinder.book`: read the table of contents and the chapters, and refuse what is broken
- `bookbinder.execute`: run the chapters side by side, reusing outputs that are still true
- `bookbinder.site`: turn the executed chapters into HTML, replacing the old site only by a good one
- `bookbinder.extension`: the same for whoever types plain `jupyter-book build .`
- `bookbinder.matrix`: run the chapters on every JAX that readers have, a table of chapters by versions
- `bookbinder.environments`: those versions, and an environment for each
- `bookbinder.run_notebook`: run one notebook with any Python; stands alone
- `bookbinder.progress`: what is going on, as a live table or as plain lines

Of JAX it knows only the versions. `python -m bookbinder --help` says what it can do.
"""
