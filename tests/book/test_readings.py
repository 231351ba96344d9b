"""What no machine can judge is read again when it or its cells change
(tests/tools/chapters/readings.py).
"""

import re
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
import readings
from places import ROOT
from repository import BOOK, git

from bookbinder.read.book import Chapter

pytestmark = pytest.mark.reads(
    "book",
    "src",
    "_config.yml",
    "_toc.yml",
    "pyproject.toml",
    ".gitattributes",
    "tests/book/readings",
)


@pytest.mark.parametrize("chapter", BOOK.chapters, ids=lambda chapter: chapter.name)
def test_what_no_machine_can_judge_was_read(chapter):
    unread = readings.unread(chapter.path, readings.units(chapter))
    assert not unread, readings.asked(chapter.path, unread)


def test_published_runs_were_looked_up():
    units = list(readings.published())
    unread = readings.unread(readings.PUBLISHED, units)
    assert len(units) > 80 and not unread, readings.asked(readings.PUBLISHED, unread)


def test_all_are_found():
    for chapter in BOOK.chapters:
        units = list(readings.units(chapter))
        kinds = [unit.kind for unit in units]
        assert kinds.count("prediction") == chapter.text.count("\n**Predict.**")
        assert kinds.count("takeaway") == chapter.text.count("{admonition} Takeaway")
        assert kinds.count("hint") == chapter.text.count("{hint}")
        assert kinds.count("summary") == chapter.text.count("\n## Summary\n")
        for unit in units:
            assert unit.text and unit.line <= unit.end, (chapter.path, unit)
            assert unit.cells or unit.kind != "prediction", (chapter.path, unit)
            assert unit.kind != "prediction" or unit.text.count("- [x]") <= 1
    glossary = BOOK.chapter("glossary")
    entries = [unit for unit in readings.units(glossary) if unit.kind == "entry"]
    terms = re.findall(r"^\S.*\n  \S", glossary.text, re.MULTILINE)
    assert len(entries) == len(terms) > 100


def test_each_file_of_signatures_belongs_to_a_source_and_has_no_other_lines():
    """Messages of shardlab are none: tests say what they are."""
    known = readings.sources()
    files = {readings.signature_file(path): path for path in known}
    assert len(files) == len(known)
    for file in (ROOT / readings.FOLDER).iterdir():
        assert file in files, f"{file.relative_to(ROOT)} is of no chapter: delete it"
        for one in readings.signatures(files[file]).values():
            datetime.fromisoformat(one.day)
    modules = [path for path in known if path.startswith("src/")]
    assert modules == [readings.PUBLISHED]


TEXT = """---
kernelspec: {name: python3}
---
# A title

## One

**Predict.** How many?

- [ ] one
- [x] two

```{code-cell} ipython3
a = 2
```

Two. Now what?

```{code-cell} ipython3
b = 3
```

:::{admonition} Takeaway
There are two.
:::

:::{hint}
Count them.
:::

| one | two |
|---|---|
| 1 | 2 |

It takes a third more. And 2 TiB. It was shown by {cite:t}`gauss1801`, in
[the section on two](#two).

## Summary

- There are two.
- Now twice
  as many.

## Two

```{code-cell} ipython3
c = 4
```
"""


def line_of(text):
    """The number of the line of TEXT that begins with a text."""
    lines = TEXT.split("\n")
    return next(n for n, line in enumerate(lines, 1) if line.startswith(text))


@pytest.mark.parametrize(
    ("old", "new", "kinds"),
    [
        ("- [ ] one\n- [x] two", "- [x] one\n- [ ] two", ["prediction"]),
        ("a = 2", "a = 1", ["prediction", "takeaway"]),
        ("There are two.\n:::", "There are three.\n:::", ["takeaway"]),
        ("- There are two.", "- There are three.", ["summary"]),
        ("| 1 | 2 |", "| 1 | 3 |", ["table"]),
        ("Count them", "Do not count them", ["hint"]),
        ("gauss1801", "euler1748", ["citation or link"]),
        ("a third", "a quarter", ["amount"]),
        ("2 TiB", "2 GiB", ["amount"]),
        ("twice\n  as", "half\n  as", ["summary", "amount"]),
        ("(#two)", "(#one)", ["citation or link"]),
        ("c = 4", "c = 5", []),
        ("Two. Now what?", "Two, as it says. Now what?", []),
        ("- [ ] one\n- [x] two", "- [ ] one\n- [x]\n  two", []),
    ],
)
def test_a_change_asks_for_a_reading_of_what_it_concerns(tmp_path, old, new, kinds):
    clone = Clone(tmp_path)
    assert len(list(readings.units(clone.chapter))) == 9 and TEXT.count(old) == 1
    clone.sign_everything()
    clone.change(old, new)
    assert [unit.kind for unit in clone.unread()] == kinds


class Clone:
    """A repository of a chapter `book/x.md` and a published run, in which somebody signs."""

    def __init__(self, root):
        self.root = root
        for folder in ("book", "src/shardlab/costs"):
            (root / folder).mkdir(parents=True)
        for name in ("_config.yml", ".gitattributes"):
            shutil.copy(ROOT / name, root)
        (root / "_toc.yml").write_text("format: jb-book\nroot: book/x\n")
        (root / readings.PUBLISHED).write_text('# Runs.\nruns = [\n  { name = "one" },\n]\n')
        self.page = root / "book/x.md"
        self.page.write_text(TEXT)

    @property
    def chapter(self):
        """The chapter as it is now."""
        return Chapter(self.root, "x")

    def unread(self):
        """What nobody has read in the chapter as it is now."""
        return readings.unread("book/x.md", readings.units(self.chapter), self.root)

    def change(self, old, new):
        """Change the text of the chapter in one place."""
        self.page.write_text(self.page.read_text().replace(old, new))

    def sign(self, *units, who):
        """Sign units of the chapter by their lines."""
        places = [f"book/x.md:{unit.line}" for unit in units]
        assert readings.main([*places, "--who", who], self.root) == 0

    def sign_everything(self, who="Ada"):
        """Sign each unit of the chapter."""
        self.sign(*readings.units(self.chapter), who=who)

    def lines(self):
        """The lines of signatures of the chapter."""
        return readings.signature_file("book/x.md", self.root).read_text().splitlines()


@pytest.fixture
def clone(tmp_path):
    """A repository in which nothing is signed."""
    return Clone(tmp_path)


TODAY = f"{datetime.now(UTC).date()}"


@pytest.mark.parametrize(
    ("lines", "kinds"),
    [
        (["**Predict.**"], ["prediction"]),
        (["- [x] two"], ["prediction"]),
        (["There are two."], ["takeaway"]),
        (["Count them.", "| 1 | 2 |"], ["hint", "table"]),
        (["It takes a third"], ["amount", "amount", "citation or link"]),
        (["- There are two."], ["summary"]),
        (["- Now twice"], ["amount"]),  # the summary begins further above
        (["  as many."], ["amount"]),
    ],
)
def test_what_is_named_is_signed_and_nothing_else(clone, lines, kinds, capsys):
    places = [f"book/x.md:{line_of(line)}" for line in lines]
    assert readings.main([*places, "--who", " Ada  Lovelace "], clone.root) == 0
    said = capsys.readouterr()
    assert said.err == "" and len(said.out.splitlines()) == len(kinds)
    signed = clone.lines()
    parts = [line.split("  ") for line in signed]
    assert signed == sorted(signed) and sorted(kind for *_, kind in parts) == sorted(kinds)
    assert {(day, who) for _, day, who, _ in parts} == {(TODAY, "Ada Lovelace")}
    left = [unit.kind for unit in clone.unread()]
    assert len(left) == 9 - len(kinds)


def test_who_signs_by_default_is_whom_git_knows(clone, monkeypatch, capsys):
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", "/dev/null")
    git(clone.root, "init", "--quiet")
    assert readings.main(["book/x.md:8"], clone.root) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "--who" in error and len(clone.unread()) == 9
    git(clone.root, "config", "user.name", "Grace Hopper")
    assert readings.main(["book/x.md:8"], clone.root) == 0
    assert [readings.Signature(*line.split("  ")).who for line in clone.lines()] == ["Grace Hopper"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["book/y.md:3"], "book/y.md:3: there is no such file with anything to sign; is it book/x"),
        (["src/shardlab/cli.py:3"], "there is no such file with anything to sign"),
        (["book/x.md:2"], "nothing to sign is on this line; the nearest begin at book/x.md:8"),
        (["book/x.md:18"], "the nearest begin at book/x.md:8 and book/x.md:23"),
        (["book/x.md:9999"], "book/x.md:9999: nothing to sign is on this line; the nearest "),
        (["book/x.md"], "'book/x.md' is no place; write a file and a line"),
        (["book/x.md:0"], "'book/x.md:0' is no place"),
        (["book/x.md:eight"], "'book/x.md:eight' is no place"),
        ([":8"], "':8' is no place"),
        (["."], "'.' is no place"),
        (["book/x.md:8", "--who", "  "], "nobody to sign"),
    ],
)
def test_a_fault_is_said_in_a_line_and_nothing_is_written(clone, arguments, said, capsys):
    assert readings.main(["book/x.md:8", "--who", "Ada", *arguments], clone.root) == 2
    spoken = capsys.readouterr()
    assert said in spoken.err and spoken.err.count("\n") == 1 and spoken.out == ""
    assert not (clone.root / readings.FOLDER).exists()


def test_a_name_without_a_place_is_a_fault(clone, capsys):
    assert readings.main(["--who", "Ada"], clone.root) == 2
    assert "name what you have read" in capsys.readouterr().err


def test_what_is_unread_is_listed_with_the_command_that_signs_it(clone, capsys):
    assert readings.main([], clone.root) == 0
    said = capsys.readouterr().out
    assert said.endswith("\n11 to read\n") and "book/x.md:8  prediction\n" in said
    commands = re.findall(rf"^  {re.escape(readings.COMMAND)} (.*)$", said, re.MULTILINE)
    assert len(commands) == 2 and commands[0] in readings.asked("book/x.md", clone.unread())
    assert not (clone.root / readings.FOLDER).exists()
    for places in commands:
        assert readings.main([*places.split(), "--who", "Ada"], clone.root) == 0
    assert "book/x.md:8: prediction, signed by Ada\n" in capsys.readouterr().out
    assert readings.main([], clone.root) == 0
    assert capsys.readouterr().out == "all has been read\n" and clone.unread() == []


def test_the_command_is_one_that_runs():
    script = readings.COMMAND.split()[1]
    command = [sys.executable, script, "book/arrays.md"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.splitlines()[-1].startswith("'book/arrays.md' is no place")
    with pytest.raises(SystemExit) as ended:
        readings.main(["--help"])
    assert ended.value.code == 0


@pytest.mark.parametrize("with_attributes", [True, False])
def test_two_authors_in_one_chapter_merge(clone, with_attributes):
    """Without .gitattributes they do not: so this would tell if they merged by chance."""
    if not with_attributes:
        (clone.root / ".gitattributes").unlink()
    clone.sign_everything("Eve")
    git(clone.root, "init", "--quiet", "--initial-branch", "main")
    git(clone.root, "add", ".")
    git(clone.root, "commit", "--quiet", "-m", "All is read")
    changes = {"Ada": ("a = 2", "a = 1"), "Ben": ("| 1 | 2 |", "| 1 | 3 |")}
    for who, change in changes.items():
        git(clone.root, "checkout", "--quiet", "-b", who, "main")
        clone.change(*change)
        hints = [unit for unit in readings.units(clone.chapter) if unit.kind == "hint"]
        clone.sign(*clone.unread(), *hints, who=who)
        assert clone.unread() == []
        git(clone.root, "commit", "--quiet", "-am", who)
    if not with_attributes:
        with pytest.raises(AssertionError):
            git(clone.root, "merge", "--quiet", "Ada")
        return
    git(clone.root, "merge", "--quiet", "-m", "Both", "Ada")
    assert "a = 1" in clone.page.read_text() and "| 1 | 3 |" in clone.page.read_text()
    assert clone.unread() == []
    digests = [line.split("  ")[0] for line in clone.lines()]
    assert len(digests) > len(set(digests))  # both have read the hint
    clone.sign(next(readings.units(clone.chapter)), who="Cem")
    signed = [readings.Signature(*line.split("  ")) for line in clone.lines()]
    there = {unit.digest for unit in readings.units(clone.chapter)}
    assert {one.digest for one in signed} == there and len(signed) == len(there)
    assert signed == sorted(signed) and {one.who for one in signed} >= {"Eve", "Ben", "Cem"}
    assert clone.unread() == []


def test_a_next_signing_drops_what_is_no_longer_there(clone):
    clone.sign_everything()
    file = readings.signature_file("book/x.md", clone.root)
    clone.change("Count them.", "Count all.")
    old = clone.lines()
    newer = old[0].replace("Ada", "Ben").replace(TODAY, "9999-01-01")
    file.write_text("\n".join([newer, *reversed(old), *old]) + "\n")
    clone.sign(*clone.unread(), who="Cem")
    left = clone.lines()
    assert newer in left and old[0] not in left and len(left) == 9 and left == sorted(left)
    assert [line for line in left if "Cem" in line] == [line for line in left if "hint" in line]


def test_a_line_that_is_no_signature_is_told(clone, capsys):
    clone.sign_everything()
    file = readings.signature_file("book/x.md", clone.root)
    file.write_text(file.read_text() + "<<<<<<< HEAD\n")
    before = file.read_bytes()
    capsys.readouterr()
    assert readings.main(["book/x.md:8", "--who", "Ada"], clone.root) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"{readings.FOLDER}/x.txt:10: '<<<<<<< HEAD' is no signature")
    assert said.count("\n") == 1 and file.read_bytes() == before


def test_nothing_signs_everything():
    said = Path(readings.__file__).read_text("utf-8")
    assert re.findall(r'add_argument\(\s*"([\w-]+)"', said) == ["places", "--who"]
