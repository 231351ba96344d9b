"""The command line of shardlab: layouts, plans, what programs send, what was measured, grades, and
upgrades, as text or JSON.
"""

import argparse
import sys
from contextlib import suppress

from shardlab import __version__
from shardlab._arguments import nearest, plain
from shardlab.cli import explanation, grade, measurements, meshes, shards, upgrade
from shardlab.cli.arguments import Wrong

MOST_SAID = 1_500  # characters of what is wrong
# The modules of the commands, by the names that users write.
COMMANDS = {
    "layout": shards,
    "plan": meshes,
    "explain": explanation,
    "ledger": measurements,
    "grade": grade,
    "upgrade": upgrade,
}


class _Parser(argparse.ArgumentParser):
    """Errors take one line."""

    def error(self, message):
        message = plain(message, MOST_SAID)
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def main(arguments: list[str] | None = None) -> int:
    """Run a command.

    Args:
      arguments: as on the command line, without the program's name; by default those of this
        process.

    Returns:
      The exit status: 0; or 1, if no mesh of a plan fits or lines of a program are listed. Wrong
      arguments exit with 2, after one line on stderr.
    """
    parser = _Parser(prog="shardlab", description=__doc__.replace("\n", " "))
    parser.add_argument("--version", action="version", version=f"shardlab {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)
    for name, module in COMMANDS.items():
        about = module.ABOUT
        command = commands.add_parser(
            name,
            help=about,
            description=f"{about[0].upper()}{about[1:]}.",
            epilog=module.EXAMPLES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_argument("--json", action="store_true", help="print JSON instead of text")
        command.set_defaults(run=module.run, parser=command)
        module.add_arguments(command)
    arguments = sys.argv[1:] if arguments is None else arguments
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError):  # a terminal in ASCII
            stream.reconfigure(errors="backslashreplace")
    if arguments and not arguments[0].startswith("-") and arguments[0] not in commands.choices:
        known = commands.choices
        parser.error(
            f"no command is called {arguments[0]!r}; use "
            f"{', '.join(known)}{nearest(arguments[0], known)}"
        )
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help()
        return 0
    try:
        return options.run(options)
    except Wrong as wrong:
        options.parser.error(str(wrong))
