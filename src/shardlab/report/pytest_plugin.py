"""A plugin for pytest, loaded with the other one: a test fails when a program sends more than in
its record, or gains a finding.

    def test_step(explained):
        explained(train_step, state, batch)

The first time, and whenever a change is meant, `pytest --shardlab-record` writes what the program
sends and holds, and its findings, into the folder `explained` beside the test. The file belongs to
the project's sources. Nothing else writes it. JAX is imported by the first test that explains.
"""

import itertools
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

__all__ = ["explained"]

FOLDER = "explained"
_SAID = "shardlab"  # the property under which a test says what its user should see


def pytest_addoption(parser):
    """Add the options, and the line in the configuration."""
    group = parser.getgroup("shardlab")
    group.addoption(
        "--shardlab-record",
        action="store_true",
        help="write the records of programs that tests explain, in place of comparing (shardlab)",
    )
    text = "percent by which what a program sends and holds may grow (shardlab)"
    group.addoption("--shardlab-tolerance", metavar="PERCENT", help=text)
    parser.addini("shardlab_tolerance", text + "; --shardlab-tolerance goes before", default="1")


def _share(config):
    """The growth that is allowed, as a part of all."""
    given = config.getoption("shardlab_tolerance") or config.getini("shardlab_tolerance")
    if not re.fullmatch(r"\d+(\.\d+)?", given):
        raise pytest.UsageError(
            f"--shardlab-tolerance is {given!r}; use a number of percent, 0 or more, such as 1"
        )
    return float(given) / 100


def pytest_configure(config):
    """Refuse a tolerance that is no number before any test runs."""
    _share(config)


def pytest_terminal_summary(terminalreporter):
    """Say which records were written, and which could only be compared in part."""
    reports = itertools.chain.from_iterable(terminalreporter.stats.values())
    said = [
        text
        for report in reports
        if getattr(report, "when", "") == "call"
        for name, text in getattr(report, "user_properties", ())
        if name == _SAID
    ]
    if said:
        terminalreporter.section("shardlab")
        for text in said:
            terminalreporter.line(text)


@pytest.fixture
def explained(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """A function that explains a program, and fails the test if it is worse than its record.

        def test_step(explained):
            explained(train_step, state, batch)

    Worse is a line of the source for which a device sends more, more memory at once, or a finding
    more; by default 1 % of all bytes is allowed (`--shardlab-tolerance`). The rules are those of
    `shardlab explain --compare`. With another version of JAX or another backend than that of the
    record the titles of findings are compared alone, and pytest's summary says so.

    The record of the test `test_step` in `tests/test_train.py` is the file
    `tests/explained/test_train.test_step.json`; a second call in one test has `-2` after the name.

    Args:
      request: pytest's own fixture, which knows the test.

    Returns:
      The function. It takes what `shardlab.explain` takes, as in
      `explained(step, state, batch, mesh=Pod("v5e:2x4"))`, and returns its `Report`.
    """
    numbers = itertools.count(1)

    def explain_and_compare(f, *args, **kwargs):
        __tracebackhide__ = True
        from shardlab.report.explain import explain

        report = explain(f, *args, **kwargs)
        _compared(request, _file(request, next(numbers)), report)
        return report

    yield explain_and_compare


def _file(request, number):
    """The file of the record of a call."""
    name = ".".join(request.node.nodeid.split("::")[1:]) or request.node.name
    name = re.sub(r"[^\w.,=+-]+", "_", name).strip("_")
    end = f"-{number}" if number > 1 else ""
    return request.path.parent / FOLDER / f"{request.path.stem}.{name}{end}.json"


def _compared(request, file, report):
    """Compares a report with its record, or writes it; what a user should know is said at the
    end."""
    __tracebackhide__ = True
    from shardlab.report.records import Record, change_since

    top, shown = request.config.rootpath, os.path.relpath(file)
    say = lambda text: request.node.user_properties.append((_SAID, text))  # noqa: E731
    command = f"pytest {request.node.nodeid!r} --shardlab-record".replace("'", '"')
    if request.config.getoption("shardlab_record"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(Record.of(report, top).text(), "utf-8")
        say(f"{shown} written")
        return
    if not file.is_file():
        pytest.fail(
            f"there is no record of what {report.name} sends: write {shown} with\n  {command}\n"
            "and add it to the project's sources",
            pytrace=False,
        )
    record = _read(file, shown, command, Record)
    change = change_since(record, report, Path(top), _share(request.config))
    if change.note:
        say(f"{shown}: {change.note}; renew it with {command}")
    if change.worse:
        details = f"\n\n{change.comparison!r}" if change.comparison else f"\n{change.note}"
        pytest.fail(
            f"{report.name} does more than in its record {shown}:\n"
            + "\n".join(change.worse)
            + details
            + f"\n\nIf this is meant, renew the record:\n  {command}",
            pytrace=False,
        )


def _read(file, shown, command, record):
    __tracebackhide__ = True
    try:
        return record.read(file.read_text("utf-8"))
    except ValueError as error:
        pytest.fail(
            f"{shown} holds no record ({error}); write it anew with\n  {command}", pytrace=False
        )
