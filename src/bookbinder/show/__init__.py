"""Make the site, and show it to whoever writes.

- `bookbinder.show.site`: turn the executed chapters into HTML, replacing the old site only with a
  complete one
- `bookbinder.show.articles`: pages made ready to stand together in one file
- `bookbinder.show.slides`: slides of a path or a chapter
- `bookbinder.show.epub`: write bound pages as an EPUB
- `bookbinder.show.serve`: serve the site while someone writes, and rebuild it on every save
"""
