"""your_centre.md: every line to change is one of the batch script, and every row and symptom names its source."""

import re

import pytest
from places import ROOT

pytestmark = pytest.mark.reads("book/cluster", "book/your_centre.md", "book/index.md")


TEXT = (ROOT / "book/your_centre.md").read_text("utf-8")
SCRIPT = (ROOT / "book/cluster/two-nodes.sbatch").read_text("utf-8").splitlines()
CENTRES = dict(re.findall(r"^### ([^\n]*): lines to change\n(.*?)(?=^#|^:::)", TEXT, re.MULTILINE | re.DOTALL))
CAUSES = r"^### ([^\n]*)\n\n([^#]*?\*\*Cause\.\*\*.*?)(?=^#|^\(your|^```)"
SYMPTOMS = dict(re.findall(CAUSES, TEXT, re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("centre", CENTRES)
def test_a_line_to_change_is_in_the_script_and_has_a_source(centre):
    rows = re.findall(r"^\| (?!line of|---)(.*) \| (.*) \| (.*) \|$", CENTRES[centre], re.MULTILINE)
    assert len(rows) > 5
    for line, change, source in rows:
        assert line.startswith(("add", "or,")) or line.strip("`") in SCRIPT, f"not in two-nodes.sbatch: {line}"
        assert re.search(r"\]\(https?://|^the same", source), f"no source: {change}"


def test_the_opening_counts_the_symptoms_and_each_has_a_cure_and_a_source():
    assert len(CENTRES) == 4 and f"collected {len(SYMPTOMS)} such symptoms" in TEXT
    assert f"{len(SYMPTOMS)} symptoms" in (ROOT / "book/index.md").read_text("utf-8")
    for symptom, text in SYMPTOMS.items():
        assert "**Cure.**" in text, symptom
        assert re.search(r"\]\(https?://|cells? above", text), f"no source: {symptom}"
