"""Publish the notebooks as a branch, from which Colab opens them and readers download them."""

import json
import os
import subprocess
import tempfile

from bookbinder.progress import AS_TEXT
from bookbinder.read import address as addresses


class PublishError(Exception):
    """The notebooks cannot be published; the message says why, and what to do."""


def publish(book, remote, is_current):
    """Put what is in `_build/notebooks` on the branch `notebooks` of a remote, as one commit
    without a parent.

    Args:
      book: the `bookbinder.read.book.Book`.
      remote: the name or address of a repository, as `git push` takes it.
      is_current: whether the last build was made from the sources as they are now.

    Returns:
      The commit, 40 digits. The same notebooks give the same one.

    Raises:
      PublishError: something is not committed, the build is missing or old, or git failed.
    """
    folder, root = book.build_folder / "notebooks", book.root
    head = addresses.commit(root)
    if not head:
        raise PublishError(f"{root} is not a git repository with a commit; publishing needs one")
    if dirty := _git(root, "status", "--porcelain").strip():
        raise PublishError(f"not committed yet:\n{dirty}\nCommit, make book, and publish again")
    version = (
        json.loads((folder / "VERSION.json").read_text())
        if (folder / "VERSION.json").exists()
        else {}
    )
    if not is_current or version.get("commit") != head:
        built = f"of {version['commit'][:12]}" if version.get("commit") else "missing"
        raise PublishError(
            f"the last good build is {built}, not of {head[:12]}: make book, and publish again"
        )

    with tempfile.TemporaryDirectory() as temporary:
        index = {"GIT_INDEX_FILE": f"{temporary}/index"}
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            blob = _git(root, "hash-object", "-w", "--no-filters", str(file)).strip()
            entry = f"100644,{blob},{file.relative_to(folder).as_posix()}"
            _git(root, "update-index", "--add", "--cacheinfo", entry, environment=index)
        tree = _git(root, "write-tree", environment=index).strip()
    date = _git(root, "show", "-s", "--format=%cI", head).strip()
    who = {
        "NAME": book.config.get("title", "The book"),
        "EMAIL": "notebooks@localhost",
        "DATE": date,
    }
    identity = {
        f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER") for key, value in who.items()
    }
    message = f"Notebooks of {head}"
    commit = _git(root, "commit-tree", tree, "-m", message, environment=identity).strip()
    _git(root, "push", "--quiet", "--force", remote, f"{commit}:refs/heads/{addresses.BRANCH}")
    return commit


def _git(root, *arguments, environment=None):
    settings = os.environ | (environment or {})
    process = subprocess.run(
        ["git", *arguments], cwd=root, capture_output=True, **AS_TEXT, env=settings
    )
    if process.returncode:
        raise PublishError(f"git {arguments[0]} failed: {process.stderr.strip()}")
    return process.stdout
