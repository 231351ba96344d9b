"""A Sphinx extension that makes plain `jupyter-book build .` as reliable as `make book`.

Stock Jupyter Book reuses outputs as long as a chapter's own code is the same, whatever else has
changed, and publishes pages whose cells failed. With this extension in `_config.yml`,
`bookbinder.run.execute` runs the chapters before Sphinx reads them, and a failure ends the build.
Jupyter Book's button for Colab leads to the chapter's source, which Colab cannot open; ours leads
to the notebook.
"""

import json
import os
import platform
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from docutils import nodes
from latex2mathml.converter import convert
from sphinx import addnodes
from sphinx.errors import ExtensionError
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.docutils import SphinxRole

from bookbinder import disk
from bookbinder.notebook import notebooks
from bookbinder.page import (
    contracts,
    core,
    home,
    moved,
    pages,
    questions,
    reference,
    search,
    teaching,
    terms,
)
from bookbinder.progress import Lines
from bookbinder.read import address, book as books, citation, package
from bookbinder.read.core import FILES
from bookbinder.run import execute, stale
from bookbinder.stopping import Stopped

SHOWN = "shown"  # beside the pages: a digest of what they show of each other


def setup(app):
    """Called by Sphinx."""
    app.add_html_math_renderer("mathml", (_inline_math, None), (_block_math, None))
    app.add_role("colab", _Colab())
    app.add_role("minutes", _Minutes())
    app.add_role("brief", _Minutes("brief_time"))
    app.add_role("reading", _Minutes("times"))
    app.add_post_transform(_RunsByTitle)
    app.connect("config-inited", _name_the_repository, priority=400)
    app.connect("env-get-outdated", _execute)
    app.connect("env-updated", _note_used)
    app.connect("env-get-updated", _what_others_change, priority=900)  # when all is numbered
    app.connect("doctree-read", _leave_out_comments, priority=400)
    app.connect("doctree-read", _make_ids_unique)
    app.connect("doctree-read", _use_short_titles)
    app.connect("doctree-read", _note_definitions)
    app.connect("doctree-resolved", _link_terms)
    app.connect("build-finished", _name_dependencies)
    app.connect("build-finished", _note_shown)
    contracts.setup(app)
    core.setup(app)
    home.setup(app)
    moved.setup(app)
    pages.setup(app)
    questions.setup(app)
    reference.setup(app)
    search.setup(app)
    teaching.setup(app)
    # What another version of this package has left in Sphinx's environment is not read.
    version_of_ours = int(stale.builder()[:8], 16)
    return {
        "parallel_read_safe": True,
        "parallel_write_safe": True,
        "version": "1",
        "env_version": version_of_ours,
    }


def _leave_out_comments(app, doctree):
    """Comments are for authors: none stands between a question and its choices."""
    for comment in list(doctree.findall(nodes.comment)):
        comment.parent.remove(comment)


def _name_the_repository(app, config):
    """Links lead to the repository of _config.yml; in GitHub's CI to the one being built, so a
    fork's to the fork.

    What chapters name as {{ repository }} and the like is said in `substitutions`.
    """
    config.html_math_renderer = "mathml"
    # of Jupytext: paired with chapters, beside them
    config.exclude_patterns = [*config.exclude_patterns, "**.ipynb"]
    app.bookbinder_address = where = _address(config)
    ours = substitutions(_root(app), where)
    config.myst_substitutions = {**config.myst_substitutions, **ours}


def substitutions(root, where):
    """What chapters name as {{ repository }} and the like, in MyST.

    Args:
      root: the folder of the book.
      where: its `bookbinder.read.address.Address`.
    """
    return {
        "repository": f"<{where.repository}>",
        "pdf": f"<{where.pdf}>",  # the book as one file
        **_core_files(where),
        "slides": f"[the decks](<{where.site}slides/index.html>)",
        "install": f"```sh\n{where.install}\n```",  # how the package is installed
        "install_starters": f"```sh\n{where.install_starters}\n```",
        "minimum_jax": package.of(root).minimum_jax,
        "versions": _versions(),  # what chapters are executed with
        "edition": citation.edition(root),
        "bibtex": f"```bibtex\n{citation.bibtex(root, where)}\n```",  # how the book is cited
    }


def _core_files(where):
    """Links to the files of the paths through the core: {{ hour_pdf }}, {{ evening_epub }}."""
    return {
        f"{path}_{kind}": f"[{words}](<{where.site}{path}.{kind}>)"
        for path in FILES
        for kind, words in (("pdf", "a PDF"), ("epub", "an EPUB"))
    }


def _root(app):
    """The folder with `_toc.yml`: that of the sources, or the one above."""
    source = Path(app.srcdir)
    return source if (source / "_toc.yml").exists() else source.parent


def _versions():
    """What chapters are executed with, in words."""
    names = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
    installed = [f"{name} {version(name)}" for name in names if find_spec(name.split("-")[0])]
    return f"Python {platform.python_version()}, {', '.join(installed)}"


def _address(config):
    """The book's addresses, from what Jupyter Book made of `_config.yml`."""
    options = config.html_theme_options
    repository = {"url": options.get("repository_url"), "branch": options.get("repository_branch")}
    return address.of({"repository": repository, "html": {"baseurl": config.html_baseurl}})


def _execute(app, env, added, changed, removed):
    """Execute the chapters; returns those whose outputs or texts have changed since Sphinx read
    them.
    """
    source, root = Path(app.srcdir), _root(app)
    prefix = f"{books.FOLDER}/" if source == root else ""
    book = app.bookbinder_book = books.load(root)
    if env.mystnb_config.execution_mode != "cache":
        return []
    chapters = [chapter for chapter in book.chapters if prefix + chapter.name in env.found_docs]
    without = ()
    if execute.CALLED in os.environ:
        without = [chapter.name for chapter in chapters]
    else:
        book.check()
        notebooks.make(book, chapters)  # says what Colab would not show
    try:
        results = execute.run(
            book,
            env.mystnb_config.execution_cache_path,
            chapters=chapters,
            without=without,
            progress=Lines(),
        )
    except Stopped:
        raise KeyboardInterrupt from None  # which Sphinx knows
    failures = [str(result.failure) for result in results if result.failure]
    if failures:
        raise ExtensionError("\n".join(["cells failed:", *failures]))
    facts = execute.facts(chapters, results)
    env.bookbinder_notebooks = {name for name, fact in facts.items() if fact["outputs"]}
    env.bookbinder_chapters = {
        name: pages.Chapter(fact["devices"], fact["day"], _versions(), *_facts(book, name))
        for name, fact in facts.items()
    }
    # Sphinx itself compares times, and a file that was copied or restored may have its old time.
    now = {name: (fact["outputs"], fact["text"]) for name, fact in facts.items()}
    read = getattr(env, "bookbinder_records", {})
    env.bookbinder_records = now
    others = getattr(env, "bookbinder_used", {})
    outdated = {prefix + name for name in now if now[name] != read.get(name)}
    outdated |= {name for name, used in _used(app).items() if used != others.get(name, used)}
    glossary = terms.entries(book)
    if (glossary, book.titles) != getattr(env, "bookbinder_names", (glossary, book.titles)):
        outdated |= env.found_docs  # they may stand in any chapter
    env.bookbinder_names = glossary, book.titles
    env.bookbinder_glossary = glossary
    if outdated & {prefix + name for name in home.film_pages(book)}:
        outdated.add(app.config.root_doc)  # which shows them
    times = {
        chapter.name: (chapter.minutes, chapter.prediction_minutes, chapter.exercise_minutes)
        for chapter in book.chapters
    }
    if times != getattr(env, "bookbinder_times", times):
        outdated |= {app.config.root_doc, prefix + books.PATHS}  # which say them
    env.bookbinder_times = times
    if book.paths != getattr(env, "bookbinder_paths", book.paths):
        outdated |= {prefix + name for name in now}  # each says where it stands on them
    env.bookbinder_paths = book.paths
    return sorted(outdated & env.found_docs - added)


def _facts(book, name):
    """What `pages.Chapter` says of a chapter from its minutes on."""
    chapter = book.chapter(name)
    paths = {
        title: (names.index(name) + 1, len(names))
        for title, names in book.paths.items()
        if name in names
    }
    after = {before: book.titles.get(before, before) for before in chapter.after}
    return (
        chapter.minutes,
        chapter.exercise_minutes,
        books.LEVELS.get(chapter.level, ""),
        after,
        paths,
    )


def _used(app):
    """For each page the digests of files that were read for it besides its own text, such as
    pictures.
    """
    folder = Path(app.srcdir)
    return {
        name: stale.besides(folder / file for file in files if (folder / file).is_file())
        for name, files in app.env.dependencies.items()
    }


def _note_used(app, env):
    env.bookbinder_used = _used(app)


def _what_others_change(app, env):
    """The pages to write again: all of them, if the theme or anything that one page shows of
    another has changed.
    """
    std, math, cited = env.get_domain("std"), env.get_domain("math"), env.domaindata.get("cite", {})
    shown = (
        disk.folder_digest(pages.THEME),
        {name: title.astext() for name, title in env.titles.items()},
        env.toctree_includes, env.toc_secnumbers, env.toc_fignumbers,
        std.labels, std.anonlabels, math.equations, getattr(app.env, "bookbinder_glossary", ()),
        sorted((
            f"{reference.docname} "
            f"{reference.targets}"
        ) for reference in cited.get("citation_refs", ())),
        [(Path(app.srcdir) / file).read_text("utf-8") for file in getattr(app.config,
                "bibtex_bibfiles", ())],
    )  # fmt: skip
    app.bookbinder_shown = stale.shown(*shown)
    file = Path(app.outdir).parent / SHOWN
    return [] if file.exists() and file.read_text() == app.bookbinder_shown else env.found_docs


def _note_shown(app, exception):
    """Remember what pages show of each other, for the next build."""
    if exception is None and app.builder.format == "html":
        (Path(app.outdir).parent / SHOWN).write_text(app.bookbinder_shown)


class _RunsByTitle(SphinxPostTransform):
    """The table of runs, {nb-exec-table}, names chapters by their titles and in the order of the
    book.
    """

    default_priority = 9  # MyST-NB has made the table, and Sphinx has not yet resolved its links

    def run(self, **options):
        """Called by Sphinx for each page that it writes."""
        book = self.app.bookbinder_book
        order = {chapter.name: place for place, chapter in enumerate(book.chapters)}
        for table in self.document.findall(nodes.table):
            head, body = table.next_node(nodes.thead), table.next_node(nodes.tbody)
            if head is None or head.next_node(nodes.entry).astext() != "Document":
                continue
            table["classes"].append("runs")  # its columns do not move when a later row comes in
            head.next_node(nodes.entry)[:] = [nodes.paragraph(text="Chapter")]
            places = {}
            for row in body.children:
                link = row.next_node(addnodes.pending_xref)
                document = link.astext()
                name = document.removeprefix(f"{books.FOLDER}/")
                link[:] = [
                    nodes.inline(text=book.titles.get(name) or self.env.titles[document].astext())
                ]
                places[row] = order.get(name, len(order))
            body[:] = sorted(body.children, key=places.get)


class _Minutes(SphinxRole):
    """How long chapters take to read: {minutes}`arrays auto`, or {minutes}`all`; in a list
    {brief}`arrays`; with {reading} also how long with their predictions, and with their exercises.
    """

    def __init__(self, kind="reading_time"):
        """`kind` names the method of the book that says it."""
        super().__init__()
        self.kind = kind

    def run(self):
        try:
            words = getattr(self.env.app.bookbinder_book, self.kind)(self.text)
        except KeyError as error:
            return [], [
                self.inliner.reporter.error(f"there is no chapter {error}", line=self.lineno)
            ]
        return [nodes.inline("", words, classes=["minutes"])], []


class _Colab(SphinxRole):
    """A link that opens a chapter's notebook: {colab}`its words <arrays>`."""

    def run(self):
        words, _, name = self.text.rstrip(">").rpartition("<")
        return [
            nodes.reference("", words.strip(), refuri=self.env.app.bookbinder_address.colab(name))
        ], []


def _inline_math(translator, node):
    """Write formulas as MathML, which browsers show without scripts or fonts from elsewhere."""
    translator.body.append(convert(node.astext()))
    raise nodes.SkipNode


def _block_math(translator, node):
    text = node.astext().strip()
    text = (
        f"\\begin{{split}}{text}\\end{{split}}" if r"\\" in text and r"\begin" not in text else text
    )
    number = f'<span class="eqno">({node["number"]})</span>' if node["number"] else ""
    formula = convert(text, display="block")
    translator.body.append(
        f"{translator.starttag(node, 'div', CLASS='math notranslate nohighlight')}{number}{formula}</div>"  # noqa: E501
    )
    raise nodes.SkipNode


def _make_ids_unique(app, doctree):
    """Number the ids of exercises and solutions: sphinx-exercise gives all of them the same two."""
    repeated = [
        s
        for s in doctree.findall(nodes.section)
        if s["ids"] in (["exercise-content"], ["solution-content"])
    ]
    for number, section in enumerate(repeated, 1):
        section["ids"] = [f"{section['ids'][0]}-{number}"]


def _use_short_titles(app, doctree):
    """A link to a chapter shows its short title, unless it has words of its own."""
    for link in doctree.findall(addnodes.pending_xref):
        if link["reftype"] == "doc" and not link["refexplicit"]:
            name = link["reftarget"].rpartition("/")[2]
            if title := app.bookbinder_book.titles.get(name):
                link["refexplicit"] = True
                link[:] = [nodes.inline(title, title, classes=["std", "std-doc"])]


def _note_definitions(app, doctree):
    glossary = getattr(app.env, "bookbinder_glossary", ())
    terms.note_definitions(doctree, glossary, app.env.docname.removeprefix(f"{books.FOLDER}/"))


def _link_terms(app, doctree, docname):
    """Link the first use of each term to the glossary."""
    places = {
        name: where
        for (kind, name), where in app.env.get_domain("std").objects.items()
        if kind == "term"
    }

    def address(term):
        page, anchor = places.get(term, (None, None))
        return page and f"{app.builder.get_relative_uri(docname, page)}#{anchor}"

    glossary = getattr(app.env, "bookbinder_glossary", ())
    terms.link_first_uses(doctree, glossary, docname.removeprefix(f"{books.FOLDER}/"), address)


def _name_dependencies(app, exception):
    """Write a list of the files from which pages were made besides the chapters, such as included
    ones.
    """
    if exception is None:
        files = {
            str((Path(app.srcdir) / file).resolve())
            for used in app.env.dependencies.values()
            for file in used
        }
        (Path(app.outdir).parent / "dependencies.json").write_text(json.dumps(sorted(files)))
