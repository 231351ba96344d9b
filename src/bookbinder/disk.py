"""What touches the disk: one run at a time in a folder, files and folders replaced at once, digests
of contents.
"""

import errno
import hashlib
import os
import re
import secrets
import shutil
import sqlite3
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:
    raise SystemExit(
        "bookbinder needs Linux or macOS; on Windows, use it in WSL: https://aka.ms/wsl"
    ) from None

# The errors of systems where something of another kind is in the place of a folder or a file.
IN_THE_WAY = {errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ELOOP}
# The errors of systems and of SQLite when a disk is full, or may not be written.
DATABASE = "a database"
FULL = {errno.ENOSPC, errno.EDQUOT}
REFUSALS = {*FULL, errno.EROFS, errno.EACCES, errno.EPERM}
OF_SQLITE = {
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_READONLY: errno.EROFS,
    sqlite3.SQLITE_PERM: errno.EACCES,
    sqlite3.SQLITE_CANTOPEN: errno.EACCES,
}


def refused(error):
    """What the system refused, as its number, and the file or None or DATABASE, if an exception is
    due to it.
    """
    while error:
        inner = getattr(error, "orig", error)  # SQLAlchemy wraps SQLite's
        code = OF_SQLITE.get(getattr(inner, "sqlite_errorcode", -1) & 0xFF)
        if code:
            return code, DATABASE
        if isinstance(error, OSError) and error.errno in REFUSALS:
            return error.errno, error.filename
        if isinstance(error, shutil.Error) and (several := refused_in(str(error))):
            return several
        error = error.__cause__ or error.__context__
    return None


def refused_in(text):
    """As `refused`, from the text of an exception, or from what another Python has written."""
    if of_database := re.search(
        r"(database or disk is full)|attempt to write a readonly database", text
    ):
        return errno.ENOSPC if of_database[1] else errno.EROFS, DATABASE
    found = re.findall(r"\[Errno (\d+)\] [^:\n']*(?:: '([^'\n]*)')?", text)
    found = [(int(number), file or None) for number, file in found if int(number) in REFUSALS]
    return next((one for one in found if one[1]), found[0] if found else None)


def said(number, file, place):
    """One line on what the system refused, and what to do.

    Args:
      number, file: as from `refused`.
      place: the folder in which it was, a `Path`.
    """
    where, why = Path(os.fsdecode(file or place)), os.strerror(number)
    if number in FULL:
        return f"{where}: {why}; free some space, and build again"
    if number != errno.EROFS and place.exists() and os.geteuid():
        return (
            f"{where}: {why}; if a command with sudo has made it, run sudo chown -R $USER "
            f"{place}, and build again"
        )
    return f"{where}: {why}; make it writable, and build again"


def in_the_way(error, place):
    """One line on what stands where a folder or a file below a place should be, if an OSError is
    due to it; else "".
    """
    path = Path(os.path.abspath(os.fsdecode(error.filename or "")))
    if error.errno not in IN_THE_WAY or not path.is_relative_to(os.path.abspath(place)):
        return ""
    there = next((one for one in [*reversed(path.parents), path] if not one.is_dir()), path)
    if there.is_symlink() and not there.exists():
        return f"{there}: a link that leads nowhere; delete it, and build again"
    wanted = "file" if there.is_dir() else "folder"
    is_now = "folder" if there.is_dir() else "file"
    return f"{there}: a {is_now}, where a {wanted} should be; delete it, and build again"


@contextmanager
def alone(folder, progress, stop, what="build"):
    """Allow one run at a time in a folder; others wait, and report that they do.

    Yields the lock's file descriptor, which holds the lock in every process that inherits it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "a") as lock:
        if not _locked(lock):
            progress.say(f"waiting for another {what} of this book to end")
            while not _locked(lock):
                time.sleep(0.2)
                stop.check()
        yield lock.fileno()


@contextmanager
def watched(folder):
    """Make a folder, unless it is there. Yields a function that says whether it still is, and is
    the same.
    """
    folder.mkdir(parents=True, exist_ok=True)
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)  # while it is open, none has its number

    def still():
        try:
            return os.path.samestat(os.fstat(held), folder.stat())
        except OSError:
            return False

    try:
        yield still
    finally:
        os.close(held)


@contextmanager
def one_of(count, folder, stop):
    """Allow `count` blocks at a time for a folder, in whatever processes; others wait."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        slots = [stack.enter_context(open(folder / f".slot{n}", "a")) for n in range(count)]
        while not any(map(_locked, slots)):
            time.sleep(0.2)
            stop.check()
        yield


def _locked(file):
    with suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def write(path, text):
    """Write a file so that it is never seen half-written; others may write the same file now."""
    # processes in two containers, or on two machines, may have the same number
    part = path.with_name(f"{path.name}.{secrets.token_hex(8)}.part")
    try:
        part.write_text(text, "utf-8", newline="")
        if path.is_dir() and not path.is_symlink():  # forged, or made by mistake
            shutil.rmtree(path)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def swap(place):
    """Replace the folder `place` by the finished `place.new`, if there is one."""
    new, old = (place.with_name(f"{place.name}.{end}") for end in ("new", "old"))
    if new.exists():
        if place.exists():
            place.rename(old)
        new.rename(place)
        shutil.rmtree(old, ignore_errors=True)


def finish_swap(place):
    """Clean up after a build that was killed; between the two renames of `swap` it left the only
    good folder aside.
    """
    new, old = (place.with_name(f"{place.name}.{end}") for end in ("new", "old"))
    if old.exists() and not place.exists():
        old.rename(place)
    for leftover in (old, new):
        shutil.rmtree(leftover, ignore_errors=True)


def digest(*texts):
    """A digest of texts."""
    return hashlib.sha256("\0".join(texts).encode("utf-8", "surrogateescape")).hexdigest()


def bytes_digest(content):
    """A digest of a content, which is that of a file that holds it."""
    return hashlib.sha256(content).hexdigest()


def file_digest(path):
    """A digest of a file's content; "gone" if there is no such file."""
    try:
        # unlike Path's, this is False for whatever is no name of a file
        return bytes_digest(path.read_bytes()) if os.path.isfile(path) else "gone"
    except FileNotFoundError:  # gone meanwhile
        return "gone"


def files(folder, pattern="*"):
    """The files in a folder and below it, as sorted paths relative to it; without hidden ones."""
    names = (path.relative_to(folder) for path in folder.rglob(pattern) if path.is_file())
    return sorted(
        name
        for name in names
        if not any(p == "__pycache__" or p.startswith(".") for p in name.parts)
    )


def folder_digest(folder, pattern="*"):
    """A digest of the names and contents of the files in a folder and below it, except hidden
    ones.
    """
    digest_so_far = hashlib.sha256()
    for name in files(folder, pattern):
        content = (folder / name).read_bytes()
        digest_so_far.update(os.fsencode(f"{name} {len(content)}\n") + content)
    return digest_so_far.hexdigest()
