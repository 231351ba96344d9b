"""Reports in files, and what grew since: the rules of `shardlab explain --compare` and of pytest's
fixture `explained`.
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from linecache import getline
from pathlib import Path
from typing import Any

import jax

from shardlab.arrays.layout import bytes_text
from shardlab.report.findings import Finding
from shardlab.report.moves import Move
from shardlab.report.reports import Comparison, Report

__all__ = ["Change", "Record", "change_since", "growth", "growth_text", "line_of"]

Sent = Mapping[tuple[str, str, str] | None, tuple[int, str]]


def growth(before: Sent, after: Sent, limit: float = 0, share: float = 0) -> list[dict[str, Any]]:
    """What grew by more than a limit, the most first: dicts of "place", "kind", "before", "after"
    and "code".

    >>> from shardlab.report.records import growth
    >>> line = ("train.py", "h = x @ w", "all-gather")
    >>> [row["after"] for row in growth({line: (4096, "train.py:9")}, {line: (8192, "train.py:12")})]
    [8192]

    Args:
      before, after: of each program the bytes that a device sends by (file, code, kind), each with
        the place, and under None what it holds at most at once.
      limit: bytes by which a line, and what is held, may grow.
      share: the same as a part of all that was sent, and of what was held.
    """  # noqa: E501
    rows = []
    sent = sum(size for key, (size, _) in before.items() if key is not None)
    for key, (size, place) in after.items():
        old = before[key][0] if key in before else 0
        if size - old > max(limit, share * (old if key is None else sent)):
            file, code, kind = key or ("", "", "peak")
            rows.append(
                {"place": place or file, "kind": kind, "before": old, "after": size, "code": code}
            )
    return sorted(rows, key=lambda row: row["before"] - row["after"])


def growth_text(row: Mapping[str, Any]) -> str:
    """A row of `growth` as a line of text."""
    what = "holds at once" if row["kind"] == "peak" else f"sends {row['kind']}"
    then = f"before {bytes_text(row['before'])}" if row["before"] else "before nothing"
    return f"{row['place']}: {what} {bytes_text(row['after'])}, {then}: {row['code']}".rstrip(": ")


def line_of(file: str | None, line: int, kind: str, top: Path) -> tuple[tuple[str, str, str], str]:
    """The line of code for which a program sends something, the same when lines are added above it;
    and its place.

    Args:
      file, line: of the source, as a `Move` has them.
      kind: of the collective.
      top: the folder from which files are named.
    """
    path, code = Path(file or "unknown"), ""
    if line and path.is_file():
        lines = path.read_text("utf-8", "replace").splitlines()
        code = lines[line - 1].strip() if line <= len(lines) else ""
    name = path.relative_to(top).as_posix() if path.is_relative_to(top) else path.name
    return (name, code, kind), f"{name}:{line}"


@dataclass(frozen=True)
class Record:
    """A report as it was, in a file.

    Attributes:
      jax: the version that compiled the program.
      report: of the program, without its arrays.
      code: the line of the source of each of its moves.
    """

    jax: str
    report: Report
    code: tuple[str, ...]

    @classmethod
    def of(cls, report: Report, top: Path) -> "Record":
        """What is recorded of a report.

        Args:
          report: of a program compiled by this process.
          top: the folder from which files are named.
        """
        keys = [line_of(move.file, move.line, move.kind, top)[0] for move in report.moves]
        moves = (
            replace(move, file=name if move.file else "", made="", callers=())
            for move, (name, _, _) in zip(report.moves, keys, strict=True)
        )
        findings = (Finding(one.title, one.says) for one in report.findings)
        alone = replace(
            report, moves=tuple(moves), arrays=(), findings=tuple(findings), temporaries=()
        )
        return cls(jax.__version__, alone, tuple(code for _, code, _ in keys))

    @classmethod
    def read(cls, text: str) -> "Record":
        """A record from the text of its file.

        Raises:
          ValueError: the text is none of a record.
        """
        try:
            said = json.loads(text)
            known = {one.name for one in fields(Report)}
            values = {name: value for name, value in said["report"].items() if name in known}
            values["moves"] = tuple(_made(Move, move) for move in values["moves"])
            values["findings"] = tuple(
                Finding(one["title"], one["says"]) for one in values["findings"]
            )
            left_out = {"arrays": (), "temporaries": ()}
            return cls(said["jax"], Report(**{**values, **left_out}), tuple(said["code"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from None

    def text(self) -> str:
        """The text of its file: JSON."""
        report = json.loads(self.report.to_json())
        del report["arrays"], report["temporaries"]
        report["findings"] = [
            {"title": one.title, "says": one.says} for one in self.report.findings
        ]
        said = {"jax": self.jax, "code": self.code, "report": report}
        return json.dumps(said, indent=1, sort_keys=True) + "\n"

    @property
    def sent(self) -> Sent:
        """What it sends by line of code, and holds, as `growth` takes it."""
        keys = (
            ((move.file or "unknown", code, move.kind), f"{move.file or 'unknown'}:{move.line}")
            for move, code in zip(self.report.moves, self.code, strict=True)
        )
        sent = {None: (self.report.memory.get("peak", 0), self.report.name)}
        for move, (key, place) in zip(self.report.moves, keys, strict=True):
            before, first = sent.get(key, (0, place))
            sent[key] = before + (move.total or 0), first
        return sent


@dataclass(frozen=True)
class Change:
    """What a program does more than in its record.

    Attributes:
      worse: a line of text for each line of the source that sends more, for what it holds more, and
        for each new finding.
      comparison: of all that changed; None where only the titles of findings can be compared.
      note: why that is so; else "".
    """

    worse: tuple[str, ...]
    comparison: Comparison | None
    note: str = ""


def change_since(record: Record, report: Report, top: Path, share: float = 0.01) -> Change:
    """Compare a program with its record.

    With another version of JAX, or for another backend, other bytes are no fault of the program:
    then the titles of findings are compared alone.

    Args:
      record: of the program as it was.
      report: of the program as it is.
      top: the folder from which the record names files.
      share: growth that is allowed, as a part of all that was sent, and of what was held.
    """
    gained = Counter(one.title for one in report.findings)
    gained -= Counter(one.title for one in record.report.findings)
    known = {(one.title, one.says) for one in record.report.findings}
    ordered = sorted(report.findings, key=lambda one: (one.title, one.says) in known)
    new = []
    for finding in ordered:
        if gained[finding.title] > 0:
            gained[finding.title] -= 1
            new.append(f"+ {finding.title}: {finding.says}")
    now = Record.of(report, top)
    was, is_ = ((one.jax, one.report.compiled_for) for one in (record, now))
    if was != is_:
        note = (
            f"the record is of JAX {was[0]} for {was[1]}, and this is JAX {is_[0]} for {is_[1]}: "
            "only the titles of findings are compared"
        )
        return Change(tuple(new), None, note)
    rows = growth(record.sent, now.sent, share=share)
    before = replace(record.report, moves=tuple(_at_home(record, top)))
    return Change((*map(growth_text, rows), *new), Comparison(before, report))


def _at_home(record, top):
    """The moves of a record with the numbers that its lines have now."""
    for move, code in zip(record.report.moves, record.code, strict=True):
        file = str(top / move.file)
        if move.line and getline(file, move.line).strip() != code and Path(file).is_file():
            lines = enumerate(Path(file).read_text("utf-8", "replace").splitlines(), 1)
            same = [number for number, line in lines if line.strip() == code]
            line = min(same, key=lambda number: abs(number - move.line), default=move.line)
            move = replace(move, line=line)
        yield replace(move, file=file) if move.file else move


def _made(kind, values):
    """A dataclass from its JSON, in which lists are tuples."""
    known = {one.name for one in fields(kind)}
    return kind(
        **{
            name: tuple(value) if isinstance(value, list) else value
            for name, value in values.items()
            if name in known
        }
    )
