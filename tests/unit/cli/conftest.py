"""What tests of the command line share."""

import pytest

from shardlab.__main__ import main


@pytest.fixture
def run(capsys):
    """Run a command in this process; returns its status, and what it printed on stdout and
    stderr.
    """

    def command(*arguments):
        try:
            status = main(list(arguments))
        except SystemExit as left:
            status = left.code
        return status, *capsys.readouterr()

    return command


@pytest.fixture
def refused(run):
    """The line on stderr of a command that is refused."""

    def command(*arguments):
        status, out, err = run(*arguments)
        assert status == 2 and not out and err.endswith("--help)\n") and err.count("\n") == 1, (
            status,
            out,
            err,
        )
        return err

    return command
