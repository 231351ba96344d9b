"""The command line: `python -m bookbinder --help`."""

import argparse
import signal
import sys
from pathlib import Path

from bookbinder import disk, progress
from bookbinder.notebook import publish
from bookbinder.read import book as books
from bookbinder.show import site
from bookbinder.stopping import Stopped


def main(arguments=None):
    """Run a command; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="bookbinder", description="Execute the chapters of a book and build its site."
    )
    parser.add_argument(
        "--root", default=".", help="the folder of the book, with _toc.yml in it (default: here)"
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    build = commands.add_parser(
        "build", help="execute changed chapters, and build the site and the notebooks in _build"
    )
    build.add_argument(
        "--without",
        nargs="+",
        default=(),
        metavar="NAME",
        help=(
            "chapters that need not run, such as arrays: without valid outputs, the page of one "
            "shows none"
        ),
    )
    chapter = commands.add_parser("chapter", help="execute one chapter, and build its page only")
    chapter.add_argument("file", help="such as book/arrays.md")
    live = commands.add_parser(
        "serve", help="serve the site on localhost; rebuild and reload on every save"
    )
    live.add_argument("--port", type=_port, default=8000, help="default: 8000")
    push = commands.add_parser(
        "publish-notebooks", help="publish the notebooks on a branch, for Colab"
    )
    push.add_argument(
        "remote", nargs="?", default="origin", help="as for git push (default: origin)"
    )
    commands.add_parser("links", help="check every external link of the chapters")
    every = commands.add_parser(
        "matrix", help="run the chapters on every supported JAX version, and print a table"
    )
    every.add_argument(
        "--only", nargs="+", metavar="VERSION", help="such as colab newest (default: all)"
    )
    every.add_argument(
        "--chapters", nargs="+", metavar="FILE", help="such as book/arrays.md (default: all)"
    )
    every.add_argument(
        "--fresh", action="store_true", help="ignore earlier results, and run everything again"
    )
    every.add_argument(
        "--record",
        action="store_true",
        help="for a release: also store the table in book/recordings",
    )
    again = commands.add_parser(
        "compare", help="run the chapters anew, and compare what they show with the pages"
    )
    again.add_argument(
        "--chapters", nargs="+", metavar="FILE", help="such as book/arrays.md (default: all)"
    )
    for command in (build, live, every, again):
        text = (
            "chapters to run at once (default: one more than there are processors, as memory "
            "allows)"
        )
        command.add_argument("--jobs", type=_positive, help=text)
    options = parser.parse_args(arguments)
    try:
        run = {
            "build": _build,
            "chapter": _chapter,
            "serve": _serve,
            "publish-notebooks": _publish,
            "links": _links,
            "matrix": _matrix,
            "compare": _compare,
        }
        return run[options.command](options)
    except (books.BookError, publish.PublishError) as error:
        print(error, file=sys.stderr)
        return 1
    except site.SiteError as error:
        left = (
            "no link was checked"
            if options.command == "links"
            else "the pages were not made; the site is unchanged"
        )
        print(f"{error}\n{left}", file=sys.stderr)
        return 1
    except OSError as error:
        build = Path(options.root) / "_build"
        if said := disk.in_the_way(error, build):
            print(said, file=sys.stderr)
            return 1
        if not (refused := disk.refused(error)):
            raise
        print(disk.said(*refused, build), file=sys.stderr)
        return 1
    except (Stopped, KeyboardInterrupt) as stop:
        name = str(stop) or "SIGINT"
        left = (
            "finished runs will be reused"
            if options.command == "matrix"
            else "the site is unchanged"
        )
        print(f"stopped ({name}); {left}", file=sys.stderr)
        return 128 + getattr(signal, name)


def _port(text):
    number = int(text)
    if not 0 < number < 2**16:
        raise argparse.ArgumentTypeError(
            f"{number} is no port; use one from 1 to 65535, such as 8001"
        )
    return number


def _positive(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, not {number}")
    return number


def _build(options):
    book = books.load(options.root)
    for name in options.without:
        book.chapter(name)  # or it says which there are
    results = site.build(
        book, without=options.without, jobs=options.jobs, progress=progress.for_this_terminal()
    )
    print(progress.table(results))
    failed = [result.failure for result in results if result.failure]
    for failure in failed:
        _print_failure(failure)
    if failed:
        left = "the site is unchanged" if site.is_complete(book) else "there is no complete site"
        print(f"{len(failed)} of {len(results)} chapters failed; {left}", file=sys.stderr)
        return 1
    print(progress.processor_time(results))
    print(f"the site: {_shown(book.build_folder / 'html' / 'index.html')}")
    print(f"the notebooks: {_shown(book.build_folder / 'notebooks')}")
    return 0


def _chapter(options):
    book = books.load(options.root)
    chapter = book.chapter(options.file)
    result, page = site.build_chapter(book, chapter, progress=progress.for_this_terminal())
    print(progress.table([result]))
    if result.failure:
        _print_failure(result.failure)
        return 1
    print(f"the page: {_shown(page)}")
    return 0


def _publish(options):
    book = books.load(options.root)
    commit = publish.publish(book, options.remote, site.is_current(book))
    count = len(list((book.build_folder / "notebooks").glob("*.ipynb")))
    print(f"{count} notebooks are on the branch notebooks of {options.remote}, as {commit[:12]}")
    return 0


def _links(options):
    dead = site.dead_links(books.load(options.root))
    print("\n".join(dead) if dead else "no link is broken")
    return 1 if dead else 0


def _matrix(options):
    from bookbinder.run import environments, matrix

    book = books.load(options.root)
    versions = environments.environments(book.root)
    known = [version.name for version in versions]
    for name in options.only or ():
        if name not in known:
            raise books.BookError(
                "--only",
                None,
                f"{name} is not a version of the matrix; known are {', '.join(known)}",
            )
    chosen = [version for version in versions if version.name in (options.only or known)]
    chapters = [book.chapter(file) for file in options.chapters] if options.chapters else None
    result = matrix.run(
        book,
        chosen,
        chapters=chapters,
        jobs=options.jobs,
        fresh=options.fresh,
        progress=progress.for_this_terminal(),
    )
    for outcome in result.outcomes:
        if outcome.failure:
            _print_failure(outcome.failure, f"{outcome.column}: ")
    print(matrix.table(result))
    whole = len(chosen) == len(versions) and not chapters
    if whole:
        matrix.save(result, book.build_folder / "matrix" / "matrix.json")
    if options.record and (chapters or not result.good):
        print("not recorded: some chapters were left out, or failed", file=sys.stderr)
    elif options.record:
        matrix.record(result, book.root / books.FOLDER / "recordings" / "matrix.txt")
    reused = sum(outcome.reused for outcome in result.outcomes)
    failed = sum(bool(outcome.failure) for outcome in result.outcomes)
    missing = sum(bool(column.error) for column in result.columns)
    print(
        f"\n{len(result.outcomes)} results, {reused} reused, {failed} failed, {missing} "
        "versions missing"
    )
    return 0 if result.good else 1


def _compare(options):
    from bookbinder.run import compare

    book = books.load(options.root)
    chapters = [book.chapter(file) for file in options.chapters] if options.chapters else None
    compared, differences, failures = compare.run(
        book, chapters=chapters, jobs=options.jobs, progress=progress.for_this_terminal()
    )
    for failure in failures:
        _print_failure(failure)
    for difference in differences:
        print(difference)
    print(f"{compared:,} cells compared; {len(differences)} differ, {len(failures)} runs failed")
    return 1 if differences or failures else 0


def _print_failure(failure, where=""):
    print(f"\n{where}{failure}", file=sys.stderr)
    if failure.traceback:
        shown = failure.traceback if sys.stderr.isatty() else progress.plain(failure.traceback)
        print(shown.rstrip(), file=sys.stderr)


def _shown(path):
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _serve(options):
    from bookbinder.show.serve import serve

    return serve(books.load(options.root), options.port, options.jobs)


if __name__ == "__main__":
    sys.exit(main())
