"""Look up at arXiv and Crossref what book/references.bib cites, and compare title, year and first
author.

    make citations

Exits with 1 if one differs, each in one line. If nothing can be reached, nothing is checked, and
one line says so; only in CI does that count as a failure. References without an arXiv number or a
DOI are left out and counted.
"""

import argparse
import json
import os
import re
import sys
import unicodedata
import urllib.error
import urllib.parse
import urllib.request
import xml.etree.ElementTree as ET
from pathlib import Path

from pybtex.database import parse_file

FILE = Path(__file__).parent.parent / "book" / "references.bib"
ARXIV = re.compile(r"arxiv(?:\.org/abs/|:)\s*(\d{4}\.\d{4,5})", re.IGNORECASE)
ATOM = {"a": "http://www.w3.org/2005/Atom"}
PATIENCE = 60  # seconds that an answer may take


def plain(text):
    """A title or a name without what catalogues write differently: accents, braces, case and
    punctuation.
    """
    letters = unicodedata.normalize("NFKD", re.sub(r"\\[a-z]+\b|\\.", "", text))
    return re.sub(r"[^a-z0-9]", "", letters.encode("ascii", "ignore").decode().lower())


def cited(entry):
    """What a reference says: (title, year, family name of its first author)."""
    authors = entry.persons.get("author", [])
    family = "".join([*authors[0].prelast_names, *authors[0].last_names]) if authors else ""
    return plain(entry.fields["title"]), entry.fields.get("year", ""), plain(family)


def fetched(address):
    """What an address answers."""
    request = urllib.request.Request(
        address, headers={"User-Agent": "citations.py of a book; weekly"}
    )
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        return answer.read()


def of_arxiv(server, numbers):
    """By number what arXiv says: (titles, years, family name of the first author)."""
    query = urllib.parse.urlencode({"id_list": ",".join(numbers), "max_results": len(numbers)})
    known = {}
    for entry in ET.fromstring(fetched(f"{server}?{query}")).iterfind("a:entry", ATOM):
        number = re.search(r"abs/(\d{4}\.\d+)", entry.findtext("a:id", "", ATOM))
        if number:
            title = plain(entry.findtext("a:title", "", ATOM))
            years = {entry.findtext(f"a:{when}", "", ATOM)[:4] for when in ("published", "updated")}
            name = entry.findtext("a:author/a:name", "", ATOM)
            known[number[1]] = [title], years, plain(name)
    return known


def of_crossref(server, doi):
    """What Crossref says of a DOI: (titles, years, family name of the first author)."""
    work = json.loads(fetched(server + urllib.parse.quote(doi)))["message"]
    titles = [
        plain(" ".join(part))
        for part in (work["title"], [*work["title"], *work.get("subtitle", ())])
    ]
    dates = (
        work.get(when, {}).get("date-parts", [[""]])
        for when in ("issued", "published-print", "published-online")
    )
    author = (work.get("author") or [{}])[0]
    return titles, {str(date[0][0]) for date in dates} - {""}, plain(author.get("family", ""))


def differences(mine, theirs):
    """In what a reference differs from a catalogue's entry, in words."""
    (title, year, family), (titles, years, name) = mine, theirs
    if title not in titles:
        yield f"the title there is {titles[0]!r}, here {title!r}"
    if year not in years:
        yield f"the year there is {' or '.join(sorted(years))}, here {year}"
    if family and name and not name.endswith(family) and not family.endswith(name):
        yield f"the first author there is {name!r}, here {family!r}"


def main(arguments=None):
    """Compare all references; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--arxiv", default="https://export.arxiv.org/api/query", help="the address of arXiv's"
    )
    parser.add_argument(
        "--crossref", default="https://api.crossref.org/works/", help="that of Crossref's"
    )
    parser.add_argument("--file", type=Path, default=FILE, help="the references")
    options = parser.parse_args(arguments)
    lines = options.file.read_text("utf-8").split("\n")
    entries = parse_file(str(options.file)).entries
    numbers = {key: ARXIV.search(" ".join(entry.fields.values())) for key, entry in entries.items()}
    numbers = {key: number[1] for key, number in numbers.items() if number}
    dois = {key: entry.fields["doi"] for key, entry in entries.items() if "doi" in entry.fields}
    faults, asked = [], 0
    try:
        known = of_arxiv(options.arxiv, sorted(set(numbers.values())))
        theirs = {key: known.get(number) for key, number in numbers.items()}
        theirs |= {key: of_crossref(options.crossref, doi) for key, doi in dois.items()}
    except (OSError, ValueError, ET.ParseError) as error:
        print(
            f"citations: nothing was checked, because a catalogue cannot be reached: {error}",
            file=sys.stderr,
        )
        return 1 if os.environ.get("CI") else 0
    for key, entry in theirs.items():
        line = next(
            n for n, text in enumerate(lines, 1) if re.match(rf"@\w+\{{{re.escape(key)},", text)
        )
        said = (
            differences(cited(entries[key]), entry) if entry else [f"{numbers[key]} is not there"]
        )
        faults += [f"book/references.bib:{line}: {key}: {words}" for words in said]
        asked += 1
    print(*faults, sep="\n", end="\n" * bool(faults))
    left = len(entries) - asked
    print(
        f"{asked} references compared, {len(faults)} differences; {left} have no number",
        file=sys.stderr,
    )
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
