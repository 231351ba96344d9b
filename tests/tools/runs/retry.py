"""Run the tests that failed once more, alone, at the end (`pytest --retry`, as `make test` does).

On a busy machine one answer among thousands comes late. A test that passes when it runs alone is
flaky: it is named with the outputs of both runs, and does not fail the run. More than three such
tests are a fault of their own, so where more fail, none runs again.

(pytest-rerunfailures runs a test again at once, beside all others, as often as any fails, and shows
neither output.)
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

MOST = 3  # tests that may be flaky; those in whose set-up the same failed count as one
FAILED = ("failed", "error")  # pytest's categories: of a test itself, and of its set-up and end


class Retry:
    """The plugin, in the process that reports."""

    def __init__(self):
        """Nothing has failed yet."""
        self.first = {}  # reports by test, of those that are flaky

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session):
        result = yield
        reporter = session.config.pluginmanager.getplugin("terminalreporter")

        def say(text):
            reporter.write_line(f"\nretry: {text}")

        reports = [report for category in FAILED for report in reporter.stats.get(category, ())]
        # not of reading a file
        reports = [report for report in reports if isinstance(report, pytest.TestReport)]
        causes = {place(report) if report.when == "setup" else report.nodeid for report in reports}
        if not causes:
            return result
        if len(causes) > MOST:
            say(
                f"{len(causes)} tests failed, more than the {MOST} that may be flaky: none "
                "runs again"
            )
            return result
        names = list(dict.fromkeys(report.nodeid for report in reports))
        say(f"{len(names)} that failed run once more, alone")
        passed, printed = alone(names, session.config.rootpath)
        reporter.write_line(printed)
        flaky = [report for report in reports if report.nodeid in passed]
        for category in FAILED:
            kept = [report for report in reporter.stats.pop(category, ()) if report not in flaky]
            reporter.stats |= {category: kept} if kept else {}
        self.first = {report.nodeid: report for report in flaky}
        reporter.stats |= {"flaky": list(self.first.values())} if flaky else {}
        session.testsfailed -= len(flaky)
        return result

    def pytest_terminal_summary(self, terminalreporter):
        for name, report in self.first.items():
            terminalreporter.write_sep("-", f"{name}, the first run ({report.when})")
            terminalreporter.write_line(report.longreprtext)
            for title, text in report.sections:
                terminalreporter.write_line(f"{title}:\n{text}")
        for name in self.first:
            terminalreporter.write_line(
                f"flaky: {name} (it passed when it ran alone; its second output stands above)"
            )


def place(report):
    """Where the set-up of a test failed; its text differs from process to process."""
    crash = getattr(report.longrepr, "reprcrash", None)
    return (crash.path, crash.lineno) if crash else report.longreprtext


def alone(names, root):
    """Run some tests in a process of their own, one after the other; returns those that passed, and
    what it printed.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "outcomes.json"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "--numprocesses",
            "0",
            "-rP",
            "--outcomes",
            str(file),
            *names,
        ]
        done = subprocess.run(
            command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        return set(json.loads(file.read_text())) if file.exists() else set(), done.stdout


class Outcomes:
    """Writes which tests have passed to a file, for the process that runs them again."""

    def __init__(self, file):
        """Write to `file` at the end."""
        self.file, self.passed, self.failed = Path(file), set(), set()

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.failed.add(report.nodeid)
        elif report.when == "call" and report.passed:
            self.passed.add(report.nodeid)

    def pytest_sessionfinish(self):
        self.file.write_text(json.dumps(sorted(self.passed - self.failed)))


def add_options(parser):
    """The options of this plugin."""
    parser.addoption(
        "--retry",
        action="store_true",
        help="run the tests that failed once more, alone, at the end",
    )
    parser.addoption(
        "--outcomes",
        metavar="FILE",
        help="write the names of the tests that passed to a file, as JSON",
    )


def configure(config):
    """Register the plugin, if it is asked for, in the process that reports."""
    if config.option.outcomes:
        config.pluginmanager.register(Outcomes(config.option.outcomes))
    if config.option.retry and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Retry())
