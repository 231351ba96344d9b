"""Sections that have moved to another page: their old addresses lead on.

`moved_sections` in _config.yml has for each old place the new one, `your_model#lora: loading#lora`,
with the anchors of sections or of labels. The old page has the old anchors at its end. Each says
where its section is now, and is shown to whoever comes for it; book.js goes there at once.
"""

import difflib
import html

from sphinx.errors import ExtensionError

from bookbinder.page import search
from bookbinder.read.book import FOLDER

SETTING = "moved_sections"  # in _config.yml, below sphinx: config


def setup(app):
    """Called by the extension."""
    app.add_config_value(SETTING, {}, "html", types=[dict])
    app.connect("env-updated", _check)
    app.connect("html-page-context", _lead_on, priority=900)  # when the page's text is as it stays


def places(env):
    """What addresses may lead to: `{"training#donation": its title}`, of sections and labels."""
    found = {
        f"{page.removeprefix(f'{FOLDER}/')}#{section.anchor}": section.heading
        for page, sections in search.known_sections(env).items()
        for section in sections
    }
    for page, anchor in env.get_domain("std").anonlabels.values():
        found.setdefault(f"{page.removeprefix(f'{FOLDER}/')}#{anchor}", "")
    return found


def check(moved, known):
    """Reject a setting that does not fit the book.

    Args:
      moved: the setting, `{old: new}`.
      known: all places that there are.

    Raises:
      ExtensionError: the new place is not there, or the old one still is, or its page is not.
    """
    pages = {place.partition("#")[0] for place in known}
    for old, new in moved.items():
        said = ""
        if new not in known:
            near = difflib.get_close_matches(new, known, 1, 0.3)
            said = f"there is no section {new}" + (f"; did you mean {near[0]}?" if near else "")
        elif old in known:
            said = f"{old} is still there; remove its line"
        elif old.partition("#")[0] not in pages or not old.partition("#")[2]:
            said = f"{old} is no place on a page; write page#anchor"
        if said:
            raise ExtensionError(f"_config.yml: {SETTING}: {said}")


def _check(app, env):
    if app.builder.format == "html":
        check(app.config[SETTING], places(env))


def _lead_on(app, pagename, templatename, context, doctree):
    moved, page = app.config[SETTING], pagename.removeprefix(f"{FOLDER}/")
    mine = {
        old.partition("#")[2]: new for old, new in moved.items() if old.partition("#")[0] == page
    }
    if not mine or not doctree:
        return
    known = places(app.env)
    for anchor, new in mine.items():
        place = html.escape(new.replace("#", ".html#"))
        title = html.escape(_named(app.env, new, known[new]))
        context["body"] += (
            f'<p class="moved" id="{html.escape(anchor)}">This section has moved: '
            f'<a href="{place}">{title}</a></p>\n'
        )


def _named(env, place, heading):
    """The heading there, without what is filled in later; else the title of its page."""
    page = place.partition("#")[0]
    title = env.titles.get(f"{FOLDER}/{page}", env.titles.get(page))
    return heading if heading and "\0" not in heading else title.astext()
