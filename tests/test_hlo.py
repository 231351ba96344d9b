"""shardlab.hlo: every recorded program is read as XLA itself reads it, and a reader with a fault would be found.

conftest.py compares in the same way every program that other tests compile and read.
"""

import re

import oracle
import pytest
from tpu_programs import recordings

from shardlab import hlo

RECORDED = recordings()


@pytest.mark.parametrize("file", sorted({file for file, _ in RECORDED}))
def test_recorded_programs_are_read_as_xla_reads_them(file):
    programs = {name: text for (there, name), text in RECORDED.items() if there == file}
    assert programs
    assert {name: found for name, text in programs.items() if (found := oracle.differences(text))} == {}


@pytest.mark.parametrize(
    ("pattern", "wrong", "shown"),
    [
        (r"all-gather\(", "all-reduce(", "kind='all-reduce'"),
        (r"ROOT ", "", "root=False"),
        (r"fusion\(%?([\w.-]+), %?([\w.-]+)", r"fusion(\2, \1", "operands="),
        (r"= f32\[", "= bf16[", "types=('bf16["),
        (r"body=%?[\w.-]+", "body=elsewhere", "calls="),
        (r"\n[^\n]* all-gather\([^\n]*", "", "None, XLA says"),
    ],
)
def test_a_fault_in_our_reader_would_be_found(monkeypatch, pattern, wrong, shown):
    text = next(text for text in RECORDED.values() if re.search(pattern, text) and " while(" in text)
    read = hlo.Program
    changed = re.sub(pattern, wrong, text, count=1)
    changed += "\nelsewhere {\n  ROOT nothing = s32[] constant(0)\n}\n" * ("elsewhere" in wrong)
    monkeypatch.setattr(hlo, "Program", lambda _: read(changed))
    assert any(shown in difference for difference in oracle.differences(text))
