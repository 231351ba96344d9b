"""bookbinder: bind chapters that are programs into a site.

- `bookbinder.book`: read the table of contents and the chapters, and refuse what is broken
- `bookbinder.execute`: run the chapters side by side, reusing outputs that are still true
- `bookbinder.site`: turn the executed chapters into HTML, replacing the old site only by a good one
- `bookbinder.extension`: the same for whoever types plain `jupyter-book build .`
- `bookbinder.progress`: what is going on, as a live table or as plain lines

It knows chapters, not JAX. `python -m bookbinder --help` says what it can do.
"""
