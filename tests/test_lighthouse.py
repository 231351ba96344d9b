"""scripts/lighthouse.py: what it reads from reports and makes of them. Lighthouse itself does not run here."""

import copy
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "scripts" / "lighthouse.py"
spec = importlib.util.spec_from_file_location("lighthouse_script", SCRIPT)
lighthouse = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = lighthouse
spec.loader.exec_module(lighthouse)

# Of a report by Lighthouse 12.8.2 on flax.html, all that is read.
RECORDED = json.loads((Path(__file__).parent / "browser" / "report.json").read_text("utf-8"))


@pytest.fixture
def good():
    """The recorded report, of a page without fault."""
    report = copy.deepcopy(RECORDED)
    for category in report["categories"].values():
        category["score"] = 1
    for audit in report["audits"].values():
        audit["score"] = 1
    return report


def test_numbers_are_those_of_the_report():
    found = dict(zip([column.head for column in lighthouse.COLUMNS], lighthouse.numbers([RECORDED]), strict=True))
    assert found == {
        "KiB": pytest.approx(RECORDED["audits"]["total-byte-weight"]["numericValue"] / 1024),
        "performance": 78,
        "accessibility": 100,
        "best practices": 96,
        "SEO": 100,
        "first paint, s": pytest.approx(0.94, abs=0.01),
        "layout shift": 0,
    }


def test_medians_of_many_runs_count(good):
    slow, fast = copy.deepcopy(good), copy.deepcopy(good)
    slow["categories"]["performance"]["score"] = 0.5
    fast["categories"]["performance"]["score"] = 0.98
    assert not lighthouse.misses({"flax": lighthouse.numbers([slow, good, fast])})
    assert lighthouse.misses({"flax": lighthouse.numbers([slow, good, slow])}) == [
        "flax: performance is 50, the target is 98 or more"
    ]


@pytest.mark.parametrize(
    ("audit", "value", "says"),
    [
        ("total-byte-weight", 250 * 1024, None),
        ("total-byte-weight", 251 * 1024, "KiB is 251, the target is at most 250"),
        ("first-contentful-paint", 1299, None),
        ("first-contentful-paint", 1300, "first paint, s is 1.30, the target is below 1.3"),
        ("cumulative-layout-shift", 0.0004, "layout shift is 0.0004, the target is 0"),
    ],
)
def test_targets_are_reached_or_missed_to_the_number(good, audit, value, says):
    good["audits"][audit]["numericValue"] = value
    assert lighthouse.misses({"flax": lighthouse.numbers([good])}) == ([f"flax: {says}"] if says else [])


@pytest.mark.parametrize("category", ["accessibility", "best-practices", "seo"])
def test_all_but_performance_must_be_whole(good, category):
    good["categories"][category]["score"] = 0.99
    (missed,) = lighthouse.misses({"flax": lighthouse.numbers([good])})
    assert missed.endswith("is 99, the target is 100")


def test_the_table_marks_what_misses_its_target(good):
    lines = lighthouse.table({"a": lighthouse.numbers([good]), "flax": lighthouse.numbers([RECORDED])}).splitlines()
    assert [line.split()[0] for line in lines] == ["page", "a", "flax", "target"]
    assert "!" not in lines[1] and lines[2].count("!") == 2 and "78!" in lines[2] and "96!" in lines[2]


def test_what_failed_is_named_with_its_place():
    (line,) = lighthouse.failed_audits(RECORDED)
    assert line.startswith("best-practices: image-aspect-ratio: ") and "img" in line


def test_a_page_that_did_not_load_or_a_broken_report_is_no_result(good):
    broken = copy.deepcopy(good)
    del broken["audits"]["first-contentful-paint"]
    with pytest.raises(lighthouse.CannotMeasure, match="incomplete: no 'first-contentful-paint'"):
        lighthouse.numbers([good, broken])
    good["runtimeError"] = {"code": "ERRORED_DOCUMENT_REQUEST", "message": "status code 404"}
    with pytest.raises(lighthouse.CannotMeasure, match="status code 404"):
        lighthouse.numbers([good])


def run(*arguments, **environment):
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env={"PATH": "", **environment})


def test_help_and_errors_say_what_to_do(tmp_path):
    assert run("--help").stdout.startswith("usage: make lighthouse")
    assert "--runs must be 1 or more, not 0" in run("--runs", "0").stderr
    done = run("--site", tmp_path)
    assert done.returncode == 2 and "make book" in done.stderr
    (tmp_path / "index.html").write_text("<title>x</title>")
    done = run("--site", tmp_path, "arrays")
    assert done.returncode == 2 and "no page arrays" in done.stderr and "there are index" in done.stderr
    done = run("--site", tmp_path)
    assert done.returncode == 2 and "apt-get install chromium" in done.stderr
    (tmp_path / "chromium").write_text("#!/bin/sh\n")
    (tmp_path / "chromium").chmod(0o755)
    done = run("--site", tmp_path, PATH=str(tmp_path))
    assert done.returncode == 2 and "apt-get install npm" in done.stderr
