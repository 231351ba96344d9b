"""Read a book: its table of contents, its chapters, and what the project says of itself.

- `bookbinder.read.book`: read the table of contents and the chapters, and reject what is broken
- `bookbinder.read.core`: the sections of the paths through the book's core
- `bookbinder.read.statements`: which names statements make and use, and which they depend on
- `bookbinder.read.excerpts`: the functions that readers copy, each with all that it needs
- `bookbinder.read.address`: the links to the repository, the site and the notebooks
- `bookbinder.read.citation`: how the book is cited
- `bookbinder.read.package`: what is special to the package that chapters import
"""
