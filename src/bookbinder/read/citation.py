"""How the book is cited: from the CITATION.cff at its root, which reference managers read."""

from functools import cache

import yaml

from bookbinder.read.book import BookError

FILE = "CITATION.cff"


@cache
def of(root):
    """The content of the file; {} where there is none."""
    try:
        cited = yaml.safe_load((root / FILE).read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise BookError(FILE, None, f"not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(cited, dict):
        raise BookError(
            FILE, None, f"is {type(cited).__name__}; use keys such as title: and values"
        )
    if missing := {"title", "authors", "version", "date-released"} - set(cited):
        raise BookError(FILE, None, f"has no {min(missing)}")
    authors = cited["authors"] if isinstance(cited["authors"], list) else [None]
    for author in authors:
        keys = author.keys() if isinstance(author, dict) else set()
        if "name" not in keys and not {"family-names", "given-names"} <= keys:
            message = f"authors: {str(author)[:80]} has no family-names and given-names, or name"
            raise BookError(FILE, None, message)
    return cited


def people(cited):
    """The names of the authors that the file's content names."""
    return [
        one.get("name") or f"{one['given-names']} {one['family-names']}"
        for one in cited.get("authors", ())
    ]


def edition(root):
    """The version, and the day on which it was released: "0.2.0 of 2026-11-26"; "" if nothing says
    so.
    """
    cited = of(root)
    return f"{cited['version']} of {cited['date-released']}" if cited else ""


def bibtex(root, address):
    """The entry for BibTeX."""
    cited = of(root)
    if not cited:
        return ""
    names = (
        author.get("name") or f"{author['family-names']}, {author['given-names']}"
        for author in cited["authors"]
    )
    entry = {
        "title": f"{{{cited['title']}}}", "author": " and ".join(f"{{{name}}}" for name in names),
        "year": str(cited["date-released"])[:4], "version": cited["version"], "url": address.site,
        "note": f"Source: {address.repository}",
    }  # fmt: skip
    lines = ",\n".join(f"  {key} = {{{value}}}" for key, value in entry.items())
    return f"@misc{{{address.name.split('/')[-1]},\n{lines}\n}}"
