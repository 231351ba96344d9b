"""bookbinder: turn chapters that are programs into a site and into notebooks.

Each package imports only from those before it:

- `bookbinder.disk`: locks, files and folders that are replaced at once, digests
- `bookbinder.stopping`: end what runs when a signal comes
- `bookbinder.progress`: report which chapters are running, as a live table or as plain lines
- `bookbinder.read`: the table of contents, the chapters, and what the project says of itself
- `bookbinder.run`: run chapters, for the site and on every JAX that readers have, and keep what
  they put out
- `bookbinder.notebook`: make chapters notebooks that Colab shows, and publish them
- `bookbinder.page`: the Sphinx extension, and all that stands on a page; its theme
- `bookbinder.show`: make the site and serve it

It knows nothing of JAX but its versions, and of the package that chapters import what the table
`[tool.bookbinder]` of pyproject.toml says. `python -m bookbinder --help` lists its commands.
"""
