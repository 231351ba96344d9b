"""`make audit` with a database of our own in the place of OSV."""

import json
import os
import re
import subprocess
import sys
from contextlib import contextmanager

import pytest
from places import ROOT
from servers import answering

pytestmark = [pytest.mark.reads("scripts", "requirements.txt"), pytest.mark.slow]


LOCK = (ROOT / "requirements.txt").read_text()
VERSION = re.search(r"^jinja2==(\S+)", LOCK, re.MULTILINE)[1]


@contextmanager
def database(known):
    """A database that knows these vulnerabilities of packages; gives its address, and who was asked
    for.
    """
    asked = []

    def answer(path, body):
        asked.append(json.loads(body))
        return json.dumps({"vulns": known.get(asked[-1]["package"]["name"].lower(), [])}).encode()

    with answering(answer) as address:
        yield f"{address}/", asked


def audit(address, **environment):
    command = [sys.executable, ROOT / "scripts/audit.py", "--osv-url", address]
    ours = {
        name: value
        for name, value in os.environ.items()
        if name != "CI" and "proxy" not in name.lower()
    }
    done = subprocess.run(command, capture_output=True, text=True, env=ours | environment)
    return done.returncode, done.stdout, done.stderr


def flaw(fixed):
    ranges = [
        {
            "type": "ECOSYSTEM",
            "events": [{"introduced": "0"}, *({"fixed": version} for version in fixed)],
        }
    ]
    package = {"ecosystem": "PyPI", "name": "jinja2"}
    about = {
        "id": "PYSEC-2031-1",
        "summary": "It runs what it should show.",
        "published": "2031-02-03T00:00:00Z",
    }
    return about | {
        "modified": "2031-02-03T00:00:00Z",
        "affected": [{"package": package, "ranges": ranges}],
    }


def test_every_package_is_asked_for_and_what_is_known_is_named():
    with database({"jinja2": [flaw(["99.1"])]}) as (address, asked):
        status, out, err = audit(address)
    assert (
        status == 1 and f"requirements.txt: jinja2 {VERSION}: PYSEC-2031-1: fixed in 99.1\n" == out
    ), out + err
    assert {"jax", "jaxlib", "jupyter-book"} <= {question["package"]["name"] for question in asked}
    assert re.fullmatch(r"\d{3} packages checked; known vulnerabilities: 1\n", err), err
    with database({}) as (address, _):
        assert audit(address)[:2] == (0, "")


def test_a_database_that_is_not_there_is_a_failure_in_ci_alone():
    status, out, err = audit("http://127.0.0.1:9/")
    assert (
        status == 0
        and not out
        and err.startswith("audit: nothing was checked")
        and err.count("\n") == 1
    ), err
    assert audit("http://127.0.0.1:9/", CI="true")[0] == 1
