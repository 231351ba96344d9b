"""What these tests share: a page of one chapter, named by CHAPTER in their file, for the explorer
and the planner; and pages of the site, for home and the paths.
"""

import subprocess
import sys

import pytest
from places import ROOT
from waiting import SOON


@pytest.fixture(scope="module")
def chapter(request):
    """The chapter's page as `make chapter` builds it."""
    name = request.module.CHAPTER
    command = [sys.executable, "-m", "bookbinder", "chapter", f"book/{name}.md"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return ROOT / "_build" / "chapter" / name / "_build" / "html" / f"{name}.html"


@pytest.fixture
def visit(browser, chapter):
    """Opens the page from its file, perhaps with an address; what fails in its scripts fails the
    test.
    """
    errors, contexts = [], []

    def open_page(address="", **how):
        contexts.append(browser.new_context(**how))
        page = contexts[-1].new_page()
        page.on("pageerror", lambda error: errors.append(error.stack or str(error)))
        page.goto(chapter.as_uri() + address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not [error for error in errors if "/explorer/" in error]


@pytest.fixture
def open_page(browser, home):
    """Open a page of the site as a new reader, with Playwright's options for who reads; an error in
    its scripts fails the test.
    """
    contexts = []

    def page_of(address, **options):
        contexts.append(browser.new_context(**options))
        page = contexts[-1].new_page()
        page.set_default_timeout(SOON * 1000)
        page.on("pageerror", lambda error: pytest.fail(str(error)))
        page.goto(f"{home}{address}")
        return page

    yield page_of
    for context in contexts:
        context.close()
