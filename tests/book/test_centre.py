"""your_centre.md: what is looked up there leads somewhere, and every row, symptom and task says
where it is from.
"""

import ast
import importlib.util
import re
from calendar import month_name
from datetime import date, timedelta

import pytest
from places import ROOT

pytestmark = pytest.mark.reads("book/cluster", "book/your_centre.md", "scripts/centres.py")
spec = importlib.util.spec_from_file_location("centres", ROOT / "scripts" / "centres.py")
centres = importlib.util.module_from_spec(spec)
spec.loader.exec_module(centres)


TEXT = (ROOT / "book/your_centre.md").read_text("utf-8")
SCRIPT = (ROOT / "book/cluster/two-nodes.sbatch").read_text("utf-8")
OPENING, INDEX, LINES, TASKS = (
    TEXT[TEXT.index(start) : TEXT.index(end)]
    for start, end in (
        ("# Your centre", "What the cells print is"),
        ("(your_centre-index)=", "(your_centre-lines)="),
        ("(your_centre-lines)=", "(your_centre-install)="),
        ("(your_centre-tasks)=", "(your_centre-no-gpu)="),
    )
)
ENTRY = r"^\((your_centre-[\w-]+)\)=\n### ([^\n]*)\n\n(.*?)(?=^\(your|^#+ |^::::?\{|\Z)"
ENTRIES = re.findall(ENTRY, TEXT, re.MULTILINE | re.DOTALL)
SYMPTOMS = {label: f"{title}\n{text}" for label, title, text in ENTRIES if "**Cause.**" in text}
DATE = rf"undated|(?:{'|'.join(month_name[1:])}) 20\d\d"


def rows(heading):
    """The cells of the table under a heading, the titles of its columns first."""
    table = re.search(rf"^### {heading}.*?((?:^\|[^\n]*\n)+)", LINES, re.MULTILINE | re.DOTALL)[1]
    header, _, *lines = table.splitlines()
    return [re.split(r" \| ", line.strip("| ")) for line in (header, *lines)]


@pytest.mark.parametrize("heading", ["What to ask for", "How to start"])
def test_a_row_of_a_centre_has_sources_with_their_dates(heading):
    columns, *centres = rows(heading)
    for option in re.findall(r"--[\w-]+", " ".join(columns)):
        assert f"SBATCH {option}=" in SCRIPT, f"not a line of two-nodes.sbatch: {option}"
    for row in centres:
        assert len(row) == len(columns) and all(row), f"empty or missing cells: {row}"
        *_, sources, day = row
        assert date.fromisoformat(day) <= date.today(), f"not a day on which it was read: {row[0]}"
        assert re.search(r"\]\(https://\S+\)", sources), f"no source: {row[0]}"
        for source in sources.split(";"):
            assert re.search(DATE, source), f"no date: {source}"
    for name in re.search(r"tables for (.*?)\.", OPENING)[1].replace(" and ", ", ").split(", "):
        assert any(name in row[0] for row in centres), f"no row of {name}"


def test_rows_that_were_read_more_than_half_a_year_ago_are_named():
    count = sum(len(rows(heading)) - 1 for heading in ("What to ask for", "How to start"))
    days = sorted(day for _, _, day in centres.read_on(TEXT))
    assert len(days) == count
    assert not centres.old(TEXT, days[0] + timedelta(days=centres.DAYS))
    assert len(centres.old(TEXT, days[-1] + timedelta(days=centres.DAYS + 1))) == count
    (first, *_) = centres.old(TEXT, date(2099, 1, 1))
    assert re.fullmatch(
        r"book/your_centre.md:\d+: Jean-Zay \(IDRIS\), H100: its sources were read on 20\d\d-.*",
        first,
    )


def test_the_opening_counts_the_symptoms_and_each_has_a_cure_and_a_source():
    assert f"[Error messages](#your_centre-index): {len(SYMPTOMS)}," in OPENING
    assert TEXT.count("**Cause.**") == len(SYMPTOMS), "a symptom without an anchor cannot be linked"
    for symptom, text in SYMPTOMS.items():
        assert "**Cure.**" in text, symptom
        assert re.search(r"\]\(https?://|cells? above", text), f"no source: {symptom}"


def test_the_index_leads_from_each_message_to_its_symptom():
    lines = re.findall(r"^\| \[(.*)\]\(#(your_centre-[\w-]+)\) \| (.+) \|$", INDEX, re.MULTILINE)
    assert len(lines) == INDEX.count("\n| ") - 1  # all but the titles
    assert {label for _, label, _ in lines} == set(SYMPTOMS)
    for message, label, _ in lines:
        symptom = " ".join(SYMPTOMS[label].split())
        for part in re.findall(r"`(.*?)`", message):
            for words in part.split("..."):
                assert words.strip() in symptom, f"{words} is not in {label}"
    found = [
        re.sub(r"\W", "", message).lower() for message, _, _ in lines if message.startswith("`")
    ]
    assert found == sorted(found)


def test_a_task_says_what_to_type_what_to_see_and_whether_it_was_run():
    tasks = re.findall(ENTRY, TASKS, re.MULTILINE | re.DOTALL)
    assert f"[Tasks](#your_centre-tasks): {len(tasks)}," in OPENING and len(tasks) == TASKS.count(
        "\n### "
    )
    for label, _, text in tasks:
        for part in (r"\*\*Type\.\*\*", r"\*\*See\.\*\*", r"^\*(Run here|Not run)\*"):
            assert len(re.findall(part, text, re.MULTILINE)) == 1, f"{label}: {part}"


def error_lines():
    """What the programs of this part say when they end a process, and the errors in recordings."""
    for name in ("join", "watchdog", "on_ray"):
        text = (ROOT / "book" / "cluster" / f"{name}.py").read_text("utf-8")
        for node in ast.walk(ast.parse(text)):
            called = isinstance(node, ast.Call) and getattr(node.func, "id", "")
            if called == "SystemExit" or (called == "print" and name == "join"):
                parts = [part for part in ast.walk(node.args[0]) if isinstance(part, ast.Constant)]
                yield f"{name}.py:{node.lineno}", " ".join(str(part.value) for part in parts)
    for file in (ROOT / "book" / "cluster" / "recordings").iterdir():
        if file.name == "gpu.txt":  # whose errors other chapters explain
            continue
        for line in file.read_text("utf-8").splitlines():
            if re.search("(?i)error|has not ended|failed: |failure", line) and line[0] != "#":
                yield file.name, line


def test_every_line_of_an_error_is_in_the_index():
    found = re.findall(r"^\| \[(.*)\]\(#your_centre-", INDEX, re.MULTILINE)
    parts = [re.findall("`(.*?)`", message) for message in found]
    known = [part.split("...") for inner in parts for part in inner]
    lines = list(error_lines())
    assert len(lines) > 25
    for where, line in lines:
        listed = any(all(words.strip() in line for words in one) for one in known)
        assert listed or "SystemExit: " in line, f"{where}: not in the index: {line}"
