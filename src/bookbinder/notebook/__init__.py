"""Make chapters notebooks that Colab shows.

- `bookbinder.notebook.markdown`: turn MyST into the Markdown that Colab shows
- `bookbinder.notebook.notebooks`: make each chapter a notebook
- `bookbinder.notebook.core`: a path through the core of the book as one notebook
- `bookbinder.notebook.publish`: push the notebooks as the branch from which Colab opens them
"""
