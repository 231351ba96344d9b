"""`make citations` with catalogues of our own in the place of arXiv and Crossref; and what needs no
catalogue.
"""

import json
import os
import re
import subprocess
import sys
from contextlib import contextmanager
from urllib.parse import parse_qs, urlsplit

import pytest
from places import ROOT
from pybtex.database import parse_file
from servers import answering

pytestmark = pytest.mark.reads("scripts/citations.py", "book/references.bib")

BIB = """
@misc{one,
  author = {Lebr{\\'o}n, Federico and Sanghai, Sumit},
  title  = {{GQA}: Training Generalized Models},
  url    = {https://arxiv.org/abs/2305.13245},
  year   = {2023},
}

@article{two,
  author = {van der Berg, A.},
  title  = {Checkpoints: an estimate},
  doi    = {10.1016/j.x.2004},
  year   = {2006},
}

@misc{three,
  author = {{The authors}},
  title  = {A page},
}
"""
ENTRY = """<entry xmlns="http://www.w3.org/2005/Atom"><id>http://arxiv.org/abs/2305.13245v3</id>
<published>2023-05-22T17:16:38Z</published><updated>2023-12-23T17:55:11Z</updated>
<title>GQA: Training\n  Generalized Models</title><author><name>Federico Lebrón</name></author></entry>"""  # noqa: E501
WORK = {"title": ["Checkpoints"], "subtitle": ["An estimate"],
    "issued": {"date-parts": [[2006, 2]]},
        "author": [{"family": "van der Berg"}]}  # fmt: skip


@contextmanager
def catalogues(entry=ENTRY, work=WORK):
    """The options for a server that knows one entry of each."""

    def answer(path, _):
        parts = urlsplit(path)
        if parts.path == "/arxiv":
            assert parse_qs(parts.query)["id_list"] == ["2305.13245"]
            return f'<feed xmlns="http://www.w3.org/2005/Atom">{entry}</feed>'.encode()
        assert parts.path == "/works/10.1016/j.x.2004"
        return json.dumps({"message": work}).encode()

    with answering(answer) as address:
        yield ["--arxiv", f"{address}/arxiv", "--crossref", f"{address}/works/"]


def citations(tmp_path, options, bib=BIB, **environment):
    (tmp_path / "references.bib").write_text(bib, "utf-8")
    ours = {
        name: value
        for name, value in os.environ.items()
        if name != "CI" and "proxy" not in name.lower()
    }
    command = [
        sys.executable,
        ROOT / "scripts/citations.py",
        "--file",
        tmp_path / "references.bib",
        *options,
    ]
    done = subprocess.run(command, capture_output=True, text=True, env=ours | environment)
    return done.returncode, done.stdout, done.stderr


def test_what_agrees_up_to_accents_case_and_subtitles_is_no_fault(tmp_path):
    with catalogues() as options:
        status, out, err = citations(tmp_path, options)
    assert (status, out) == (0, ""), out + err
    assert err == "2 references compared, 0 differences; 1 have no number\n"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            "Generalized",
            "Specialized",
            r"references\.bib:2: one: the title there is 'gqatraininggeneralizedmodels'",
        ),
        ("{2023}", "{2024}", r"references\.bib:2: one: the year there is 2023, here 2024"),
        (
            "Lebr{\\'o}n, Federico and Sanghai, Sumit",
            "Sanghai, Sumit",
            r"one: the first author there is 'federicoleb",
        ),
        ("{2006}", "{2005}", r"references\.bib:9: two: the year there is 2006, here 2005"),
        ("van der Berg", "van der Burg", r"two: the first author there is 'vanderberg'"),
    ],
)
def test_what_differs_is_named_with_its_line(tmp_path, old, new, says):
    assert BIB.count(old) == 1
    with catalogues() as options:
        status, out, err = citations(tmp_path, options, BIB.replace(old, new))
    assert status == 1 and re.search(says, out), out + err


def test_a_number_that_is_not_there_is_a_fault_and_a_catalogue_that_is_not_one_in_ci_alone(
    tmp_path,
):
    with catalogues(entry="") as options:
        status, out, _ = citations(tmp_path, options)
    assert status == 1 and "one: 2305.13245 is not there" in out
    nowhere = ["--arxiv", "http://127.0.0.1:9/", "--crossref", "http://127.0.0.1:9/"]
    status, out, err = citations(tmp_path, nowhere)
    assert (
        status == 0
        and not out
        and err.startswith("citations: nothing was checked")
        and err.count("\n") == 1
    )
    assert citations(tmp_path, nowhere, CI="true")[0] == 1


# Appeared so many years after its number, or was submitted before it.
APPEARED = {"micikevicius2018": 1, "gpipe2019": 1, "zerobubble2023": -1, "pope2022": 1,
    "leviathan2023": 1,
            "splitwise2024": 1, "nanoflow2024": 1, "tsqr2012": 4, "halko2011": 2,
            "rhat2021": 2, "stich2019": 1}  # fmt: skip


def test_an_arxiv_number_is_of_the_year_of_its_reference():
    entries, compared = parse_file(str(ROOT / "book/references.bib")).entries, 0
    for key, entry in entries.items():
        number = re.search(
            r"arxiv(?:\.org/abs/|:)\s*(\d\d)(\d\d)\.\d{4,5}", " ".join(entry.fields.values()), re.I
        )
        if number:
            later = int(entry.fields["year"]) - (2000 + int(number[1]))
            assert 1 <= int(number[2]) <= 12 and later == APPEARED.get(key, 0), key
            compared += 1
    assert compared > 30
