"""What XProf said of the traces of watch.md: recorded from its cells, and as the page tells it."""

import importlib.util
import json
import re

import pytest
from places import ROOT

pytestmark = pytest.mark.reads(
    "scripts/record_xprof.py", "book/watch.md", "book/cluster/recordings"
)

spec = importlib.util.spec_from_file_location("record_xprof", ROOT / "scripts" / "record_xprof.py")
script = importlib.util.module_from_spec(spec)
spec.loader.exec_module(script)


def test_the_program_that_is_traced_is_that_of_the_chapter():
    program = script.program()
    compile(program, "traced", "exec")
    assert "time.sleep(0.6 if rank == 2 else 0.1)" in program and "initialize(" in program
    assert program.index("def train(W, x)") < program.index("trace(folder / str(rank))")


def test_the_page_tells_what_was_recorded():
    head, *lines = script.FILE.read_text("utf-8").splitlines()
    assert re.match(r"# \d{4}-\d\d-\d\d, JAX [\d.]+, Python [\d.]+, XProf [\d.]+: four ", head)
    seconds, rank = {}, None
    for line in lines:
        if asked := re.match(r"\$ xprof aggregate_xplane_events traces/(\d) ", line):
            rank = int(asked[1])
        else:
            one = json.loads(line)
            assert one["count"] == 3
            seconds[rank, one["event"]] = one["total_duration_ps"] / 1e12
    told = re.search(
        r"Process 0 spends ([\d.]+) s in three all-reduces. Process 2 spends only ([\d.]+) s in "
        r"them,\s+because it arrives last, having spent ([\d.]+) s",
        (ROOT / "book" / "watch.md").read_text("utf-8"),
    )
    found = seconds[0, "all-reduce"], seconds[2, "all-reduce"], seconds[2, "load"]
    assert told.groups() == tuple(f"{one:.2f}" for one in found)
