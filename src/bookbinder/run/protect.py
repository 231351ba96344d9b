"""Run a command that can neither write nor delete what is in some folders, where the system can.

    python protect.py /book/src /book/book -- python run_notebook.py ...

On Linux the folders are bound read-only in a namespace that the command has for itself, which takes
root or a kernel that lets users make namespaces. Elsewhere the command runs as it is. The process
becomes the command. It needs nothing of ours, and runs with any Python.
"""

import compileall
import ctypes
import os
import sys
from contextlib import suppress

NEW_MOUNTS, NEW_USERS = 0x20000, 0x10000000  # of unshare(2)
# of mount(2)
READ_ONLY, REMOUNT, BIND, RECURSIVE, PRIVATE = 1, 32, 4096, 16384, 1 << 18
# What a user may not take from a mount, as statvfs and as mount call it.
KEPT = {2: 2, 4: 4, 8: 8, 1024: 1024, 2048: 2048, 4096: 1 << 21}


def namespace():
    """Give this process mounts of its own; OSError where that is not allowed."""
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.geteuid(), os.getegid()
    if libc.unshare(NEW_MOUNTS):
        if libc.unshare(NEW_MOUNTS | NEW_USERS):
            raise OSError(ctypes.get_errno(), "unshare")
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)

    def mount(source, place, flags):
        source, place = (os.fsencode(name) if name else None for name in (source, place))
        if libc.mount(source, place, None, ctypes.c_ulong(flags), None):
            raise OSError(ctypes.get_errno(), "mount")

    mount(None, "/", RECURSIVE | PRIVATE)
    return mount


def bind(mount, place, flags):
    """Mount a folder or a file on itself, with more flags."""
    has = os.statvfs(place).f_flag
    kept = sum(flag for mask, flag in KEPT.items() if has & mask)
    mount(place, place, BIND | RECURSIVE)
    mount(None, place, REMOUNT | BIND | kept | flags)


def main():
    """Protect the places before --, except those that begin with +, and become what comes after."""
    end = sys.argv.index("--")
    places, command = sys.argv[1:end], sys.argv[end + 1 :]
    with suppress(OSError, AttributeError):
        for place in places:  # what is compiled later could not be kept
            if os.path.basename(place) == "src":
                compileall.compile_dir(place, quiet=2)
        mount = namespace()
        for place in places:
            with suppress(OSError):
                bind(mount, place.removeprefix("+"), 0 if place.startswith("+") else READ_ONLY)
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
