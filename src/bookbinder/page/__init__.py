"""What Sphinx makes of a chapter.

- `bookbinder.page.extension`: the Sphinx extension, which makes plain `jupyter-book build .` as
  reliable as ours
- `bookbinder.page.terms`: link terms to the glossary, and note where they are defined
- `bookbinder.page.search`: the sections of all pages, for the search of the site
- `bookbinder.page.cards`: draw a page's key figure as a PNG, for previews of links
- `bookbinder.page.pages`: what stands on a page besides its text; `theme` lays it out, with
  templates and styles
- `bookbinder.page.questions`: make predictions questions, whose answer opens when the reader has
  picked one
- `bookbinder.page.teaching`: all exercises with their times, and the errors that predictions look
  for
- `bookbinder.page.home`: what the home page says of the whole book, and the films that it shows
- `bookbinder.page.core`: the sections that are read in an hour or in an evening, and what leads
  along them
- `bookbinder.page.moved`: old addresses of sections that are on another page now
- `bookbinder.page.contracts`: how the functions that readers copy are tested
- `bookbinder.page.reference`: the page of every public name of a package, from its docstrings
"""
