"""`shardlab explain --compare`: what a program sends and holds more than in another revision of its
repository.
"""

import json
import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

from shardlab.cli.arguments import Wrong

HERE = "."  # in place of a revision: the files as they are


def run(options):
    """Compare two revisions; returns the exit status: 1 if the second sends or holds more."""
    from shardlab.report.records import growth, growth_text

    if options.limit < 0:
        raise Wrong(f"--limit is {options.limit}; use a whole number of bytes, 0 or more")
    before, after = (_explained(revision, options) for revision in options.compare)
    rows = growth(before, after, options.limit)
    if options.json:
        print(json.dumps(rows, indent=1))
    else:
        for row in rows:
            print(growth_text(row))
        if not rows:
            print(
                f"{options.program}: no line sends more than in {options.compare[0]}, and a "
                "device holds no more"
            )
    return 1 if rows else 0


def _explained(revision, options):
    """What a revision's program sends by line of code, and holds."""
    from shardlab.report.records import line_of

    with _files_of(revision) as (top, folder):
        command = [
            sys.executable,
            "-m",
            "shardlab",
            "explain",
            options.program,
            "--json",
            "--chip",
            options.chip,
        ]
        for name in ("mesh", "pod", "devices"):
            if (value := getattr(options, name)) is not None:
                command += [f"--{name}", str(value)]
        done = subprocess.run(
            command, cwd=folder, capture_output=True, encoding="utf-8", errors="replace"
        )
        if done.returncode:
            reason = done.stderr.strip().rpartition("\n")[2]
            raise Wrong(f"{revision}: {reason}")
        report = json.loads(done.stdout[done.stdout.index("{") :])
        sent = {None: (report["memory"].get("peak", 0), options.program)}
        for move in report["moves"]:
            key, place = line_of(move["file"], move["line"], move["kind"], top)
            bytes_before, first = sent.get(key, (0, place))
            sent[key] = (bytes_before + (move["times"] or 0) * (move["bytes"] or 0), first)
    return sent


@contextmanager
def _files_of(revision):
    """The top of a repository, and the folder in it in which the command was given, with the files
    of a revision.
    """
    top, here = Path(_git("rev-parse", "--show-toplevel")), Path.cwd()
    if revision == HERE:
        yield top, here
        return
    commit = _git("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}", unknown=revision)
    with tempfile.TemporaryDirectory() as place:
        files = Path(place).resolve() / "files"
        _git("worktree", "add", "--quiet", "--detach", str(files), commit)
        try:
            folder = files / here.relative_to(top)
            if not folder.is_dir():
                raise Wrong(
                    f"{revision} has no folder {here.relative_to(top)}; run the command where "
                    "both have one"
                )
            yield files, folder
        finally:
            _git("worktree", "remove", "--force", str(files))


def _git(*arguments, unknown=None):
    try:
        done = subprocess.run(
            ["git", *arguments],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            env=os.environ | {"LC_ALL": "C"},
        )
    except FileNotFoundError:
        raise Wrong("--compare needs git, which is not installed") from None
    if done.returncode:
        if unknown:
            raise Wrong(
                f"--compare: there is no revision {unknown!r} here; give two, such as "
                "origin/main HEAD"
            )
        raise Wrong(f"--compare: git {arguments[0]} failed: {done.stderr.strip()}")
    return done.stdout.strip()
