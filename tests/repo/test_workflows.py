"""The workflows on GitHub: what linters say of them, and their shell steps run as by a runner, from
a clean clone.
"""

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from fnmatch import fnmatch
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import pytest
import yaml
from markdown_it import MarkdownIt
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from places import ROOT
from repository import copy_sources, git
from tiny_book import chapter

from bookbinder.notebook.notebooks import colab_version

FILES = sorted((ROOT / ".github" / "workflows").iterdir())
FOR_READERS = ROOT / "book" / "recipes" / "pull_request.yml"
DEPENDABOT = ROOT / ".github" / "dependabot.yml"
TOOLS = Path(sys.executable).parent
spec = importlib.util.spec_from_file_location(
    "upstream_report", ROOT / "scripts" / "upstream_report.py"
)
report = importlib.util.module_from_spec(spec)
spec.loader.exec_module(report)


def load(file):
    """A workflow, with `on` as it is written, which YAML takes for a truth."""
    return {
        "on" if key is True else key: value
        for key, value in yaml.safe_load(file.read_text()).items()
    }


WORKFLOWS = {file.stem: load(file) for file in FILES}
JOBS = {
    f"{name}: {job}": body
    for name, workflow in WORKFLOWS.items()
    for job, body in workflow["jobs"].items()
}


# --- What is written in them ----------------------------------------------------------------------


def test_zizmor_finds_nothing():
    command = [
        TOOLS / "zizmor",
        "--offline",
        "--persona",
        "pedantic",
        "--strict-collection",
        "--no-ignores",
        ".github",
    ]
    command.append(FOR_READERS)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "No findings" in done.stdout + done.stderr, (
        done.stdout + done.stderr
    )


@pytest.mark.parametrize(
    ("schema", "files"),
    [("github-workflows", [*FILES, FOR_READERS]), ("dependabot", [DEPENDABOT])],
    ids=["workflows", "dependabot"],
)
def test_they_follow_their_schema(schema, files):
    command = [TOOLS / "check-jsonschema", "--builtin-schema", f"vendor.{schema}", *files]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("file", [*FILES, FOR_READERS], ids=lambda file: file.stem)
def test_actions_are_pinned_with_their_version(file):
    used = re.findall(r"\buses: (.*)", file.read_text())
    pinned = [
        use for use in used if re.fullmatch(r"actions/[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", use)
    ]
    assert used and set(used) - set(pinned) <= {"$/.github/workflows/ci.yml"}


def test_an_action_has_one_version_in_all_of_them():
    used = {
        use
        for file in (*FILES, FOR_READERS)
        for use in re.findall(r"\buses: (actions/.*)", file.read_text())
    }
    assert len(used) == len({use.partition("@")[0] for use in used})


@pytest.mark.parametrize("workflow", WORKFLOWS.values(), ids=WORKFLOWS)
def test_a_workflow_gives_no_rights_and_does_not_run_beside_itself(workflow):
    assert workflow["permissions"] == {} and workflow["concurrency"]["group"]
    assert workflow["defaults"]["run"]["shell"] == "bash"
    assert "pull_request_target" not in workflow["on"] and "workflow_run" not in workflow["on"]


def test_no_job_of_the_recipe_runs_a_pull_request_and_may_write():
    jobs = load(FOR_READERS)["jobs"].values()
    assert sum("write" in job["permissions"].values() for job in jobs) == 1
    for job in jobs:
        runs_it = any("actions/checkout@" in step.get("uses", "") for step in job["steps"])
        may_write = "write" in job["permissions"].values()
        has_token = "github.token" in str(job["steps"])
        assert runs_it != may_write and has_token == may_write


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_a_job_has_one_right_and_a_time_limit(job):
    writes = {right for right, how in job["permissions"].items() if how != "read"}
    assert writes in (
        set(),
        {"contents"},
        {"issues"},
        {"actions"},
        {"pages", "id-token"},
        {"id-token"},
    ) or (
        writes == {"id-token", "attestations"} and not any("run" in step for step in job["steps"])
    )
    assert "uses" in job or 0 < job["timeout-minutes"] <= 150
    for step in job.get("steps", ()):
        assert "${{" not in step.get("run", ""), "what others may have written reaches a shell"
        if "actions/checkout@" in step.get("uses", ""):
            settings = {"persist-credentials": False} | (
                {"fetch-depth": 0} if "fetch-depth" in step["with"] else {}
            )
            # where a job may write to others: data, and no program
            only = {"sparse-checkout": "requirements.txt"}
            assert step["with"] in (settings, settings | only)
            assert writes <= {"issues"} or (
                step["with"].items() >= only.items() and writes == {"id-token"}
            )


TESTS = sorted((ROOT / "tests").rglob("test_*.py"))


def test_the_parts_of_the_tests_are_all_tests_and_none_runs_twice():
    parts = WORKFLOWS["ci"]["jobs"]["test"]["strategy"]["matrix"]["include"]
    listed = [word for part in parts for word in part["tests"].split() if not word.startswith("--")]
    assert sorted(listed) == sorted(
        {f"tests/{path.relative_to(ROOT / 'tests').parts[0]}" for path in TESTS}
    )


def test_what_starts_a_workflow():
    assert {name: workflow["on"] for name, workflow in WORKFLOWS.items()} == {
        "ci": {"pull_request": None, "workflow_call": WORKFLOWS["ci"]["on"]["workflow_call"]},
        "publish": {"push": {"branches": ["main"]}, "workflow_dispatch": None},
        "release": {"push": {"tags": ["v*"]}},
        "upstream": {"schedule": [{"cron": "17 4 * * 1"}], "workflow_dispatch": None},
    }
    # Chapters that differ from main are known only where main is: what `make check` runs of their
    # exercises.
    (checkout,) = (
        step for step in JOBS["ci: check"]["steps"] if "actions/checkout@" in step.get("uses", "")
    )
    assert checkout["with"]["fetch-depth"] == 0


def test_each_week_and_for_a_release_nothing_is_left_out():
    """Otherwise what is proved is said and not run again."""
    asked = {
        place: job.get("with", {}).get("all")
        for place, job in JOBS.items()
        if job.get("uses", "").endswith("ci.yml")
    }
    assert asked == {"publish: check": None, "release: check": True, "upstream: everything": True}
    (step,) = (
        step
        for step in WORKFLOWS["ci"]["jobs"]["test"]["steps"]
        if "make test" in step.get("run", "")
    )
    assert (
        step["env"]["PROOFS"] == "${{ inputs.all && 'renew' || 'use' }}"
        and "--proofs $PROOFS" in step["run"]
    )


def test_publishing_restores_nothing_and_puts_notebooks_before_pages():
    text = (ROOT / ".github/workflows/publish.yml").read_text()
    assert "cache" not in text
    jobs = WORKFLOWS["publish"]["jobs"]
    needs = [jobs[job]["needs"] for job in ("build", "notebooks", "pages")]
    assert needs == ["check", "build", ["build", "notebooks"]]
    assert not any("if" in jobs[job] for job in ("notebooks", "pages"))


def test_a_release_is_checked_built_without_rights_and_uploaded_by_what_is_locked(tmp_path):
    """The shell steps of the build, run here: a tag that is no version, or a version without a
    date, ends it.
    """
    jobs = WORKFLOWS["release"]["jobs"]
    assert WORKFLOWS["release"]["on"] == {"push": {"tags": ["v*"]}} and list(jobs) == [
        "check",
        "build",
        "attest",
        "upload",
    ]
    assert (
        jobs["build"]["needs"] == "check"
        and jobs["attest"]["needs"] == "build"
        and jobs["upload"]["needs"] == "attest"
    )
    assert jobs["upload"]["environment"]["name"] == "pypi"
    assert jobs["upload"]["permissions"] == {"contents": "read", "id-token": "write"}
    steps = jobs["upload"]["steps"]
    (took,) = (n for n, step in enumerate(steps) if "download-artifact@" in step.get("uses", ""))
    # what was built is uploaded, and not read
    (publish,) = (step["run"] for step in steps[took:] if "run" in step)
    assert publish == "uv/bin/uv publish --trusted-publishing always release/*.whl release/*.tar.gz"
    text = (ROOT / ".github/workflows/release.yml").read_text()
    assert "cache" not in text and "secrets" not in text

    copy_sources(tmp_path)
    # a clone may be tested with the packages of another
    (tmp_path / ".venv").symlink_to(sys.prefix)
    tag, build = (step["run"] for step in jobs["build"]["steps"] if "name" in step)
    (install,) = (step["run"] for step in steps if "name" in step)
    changelog = tmp_path / "CHANGELOG.md"
    released = re.sub(
        r"(?m)^(## \[[\d.]+\]) - .*$", r"\1 - 2026-11-23", changelog.read_text(), count=1
    )
    number = re.search(r"## \[([\d.]+)\]", released)[1]
    cases = [("v9.9.9", released, 1), (f"v{number}", released, 0)]
    cases += [(f"v{number}", released.replace("2026-11-23", "unreleased", 1), 1)]
    for name, said, status in cases:
        changelog.write_text(said)
        environment = os.environ | {"GITHUB_REF_NAME": name}
        done = subprocess.run(["bash", "-eo", "pipefail", "-c", tag], cwd=tmp_path, env=environment)
        assert done.returncode == status, (name, status)
    subprocess.run(
        ["bash", "-eo", "pipefail", "-c", build], cwd=tmp_path, check=True, capture_output=True
    )
    made = {path.name for path in (tmp_path / "release").iterdir()}
    assert made == {f"shardlab-{number}-py3-none-any.whl", f"shardlab-{number}.tar.gz"}
    subprocess.run(
        ["bash", "-eo", "pipefail", "-c", install.splitlines()[0]], cwd=tmp_path, check=True
    )
    assert re.match(r"uv==[\d.]+ ", (tmp_path / "uv.txt").read_text())


# --- The lock -------------------------------------------------------------------------------------


def held_back(package, found):
    """The bounds from above that a package sets, and those that what it bounds sets in turn."""
    try:
        needs = [Requirement(text) for text in requires(package) or ()]
    except PackageNotFoundError:  # for another platform
        return found
    for need in needs:
        bounded = any(part.operator in ("<", "<=", "~=", "==") for part in need.specifier)
        if bounded and not (need.marker and not need.marker.evaluate({"extra": ""})):
            seen = need.name.lower() in found
            found.setdefault(need.name.lower(), SpecifierSet())
            found[need.name.lower()] &= need.specifier
            if not seen:
                held_back(need.name, found)
    return found


def test_dependabot_holds_back_what_jupyter_book_1_cannot_take():
    (lock,) = (
        update for update in load(DEPENDABOT)["updates"] if update["package-ecosystem"] == "pip"
    )
    bounds = held_back("jupyter-book", {"jupyter-book": SpecifierSet("<2")})
    assert {"sphinx", "myst-nb", "docutils", "pydata-sphinx-theme"} <= bounds.keys()
    for name, allowed in bounds.items():
        major, minor, micro = (*Version(version(name)).release, 0, 0)[:3]
        later = {
            "version-update:semver-major": f"{major + 1}.0.0",
            "version-update:semver-minor": f"{major}.{minor + 1}.0",
            "version-update:semver-patch": f"{major}.{minor}.{micro + 1}",
        }
        for kind, number in later.items():
            if number not in allowed:
                assert any(
                    fnmatch(name, rule["dependency-name"])
                    and (
                        kind in rule.get("update-types", ())
                        or any(number in SpecifierSet(some) for some in rule.get("versions", ()))
                    )
                    for rule in lock["ignore"]
                ), f"{name} {number}: Jupyter Book 1.x wants {allowed}"


def test_the_lock_is_what_pyproject_asks_for(tmp_path):
    """Pins that were moved one by one must still fit together: resolved again from them, none may
    change.
    """
    said = subprocess.run(
        ["make", "--dry-run", "lock"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    (command,) = (
        line for line in said.replace("\\\n", " ").splitlines() if " pip compile " in line
    )
    words = [word for word in shlex.split(command) if word not in ("--upgrade", "--quiet")]
    for name in ("pyproject.toml", "requirements.txt"):
        shutil.copy(ROOT / name, tmp_path)
    done = subprocess.run([TOOLS / "uv", *words[1:]], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

    def pins(folder):
        return set(
            re.findall(
                r"^[\w.-]+==[^\\\n]*", (folder / "requirements.txt").read_text(), re.MULTILINE
            )
        )

    assert pins(tmp_path) == pins(ROOT)


# --- What they do ---------------------------------------------------------------------------------

FORK = "someone/fork"
HOME = "# Home\n\nSee [what is gone](http://127.0.0.1:9/gone) and {doc}`one`.\n"
BACKEND = "https://github.com/googlecolab/backend-info"
ON_COLAB = f"import jax\n\nassert jax.__version__ != {colab_version('jax')!r}, 'too old'"
VARIES = "import time\n\nprint(time.time_ns())"
PROGRAMS = {
    # What is not real: rights of root, GitHub's programs, and addresses elsewhere.
    "sudo": 'exec "$@"\n',
    "gh": 'printf "%s\\n" "$*" >>"$FAKES/gh.txt"\n'
    'case "$*" in *"--body-file -"*) cat >"$FAKES/$2.md" ;; "issue list"*) cat '
    '"$FAKES/issues.json" ;; esac\n',
    "curl": 'while [ $# -gt 1 ]; do [ "$1" = -o ] && exec >"$2"; shift; done\n'
    'case $1 in *jax-ml/jax*) cat "$FAKES/installation.md" ;; *) echo "not here: $1" >&2; '
    "exit 22 ;; esac\n",
}


# What the tests' own environment has, and a runner's has not.
STRANGE = (
    "ARGS",
    "PYTHON",
    "PYTEST",
    "VIRTUAL_ENV",
    "GITHUB_",
    "GIT_",
    "JAX",
    "XLA",
    "TPU_",
    "MPL",
    "CI",
    "MAKE",
    "MFLAGS",
)


class Clone:
    """A clone of a small project on GitHub, in which the shell steps of a job run one after the
    other.

    Of the actions only artifacts have a place here. What is skipped or waits for what, linters and
    the tests above see.
    """

    def __init__(self, folder, origin):
        self.folder, self.origin, self.work = folder, origin, folder / "work"
        self.artifacts, self.fakes, self.programs = (
            folder / name for name in ("artifacts", "fakes", "bin")
        )
        for place in (self.artifacts, self.fakes, self.programs):
            place.mkdir()
        for name, text in PROGRAMS.items():
            (self.programs / name).write_text(f"#!/bin/sh\n{text}")
            (self.programs / name).chmod(0o755)
        (self.programs / "python3.13").symlink_to(sys._base_executable)

    def run(self, name, steps=None, **values):
        """Whether a job's steps end well in a new clone, and what they print; `values` are those of
        expressions.
        """
        workflow = WORKFLOWS.get(name.partition(":")[0], {})
        known = {
            "github.token": "secret",
            "github.repository": FORK,
            "github.run_attempt": "1",
            "inputs.all && 'renew' || 'use'": "use",
            "inputs.all && '100' || '1'": "1",
            "inputs.all && '--again' || ''": "",
            "matrix.tests": "tests/book/test_terms.py",  # for each part: a few tests that are quick
            **values,
        }

        def fill(text):
            return re.sub(
                r"\$\{\{\s*(.*?)\s*\}\}", lambda expression: known[expression[1]], str(text)
            )

        self.clone()
        good, printed = True, ""
        for step in steps or JOBS[name]["steps"]:
            of_main = "!cancelled() && github.ref == 'refs/heads/main'"
            if not {"!success()": not good, "!cancelled()": True, of_main: True, None: good}[
                step.get("if")
            ]:
                continue
            if "run" in step:
                variables = {
                    key: fill(value)
                    for key, value in (workflow.get("env", {}) | step.get("env", {})).items()
                }
                done = self.shell(step["run"], variables, name)
                good &= done.returncode == 0
                printed += f"$ {step['run']}\n{done.stdout}"
            elif "artifact" in step["uses"]:
                self.artifact(
                    step["uses"], {key: fill(value) for key, value in step["with"].items()}
                )
        return good, printed

    def clone(self):
        """What is there when a job begins: a commit and no branch, and the packages of the lock.

        Installing these takes a minute of two processors, and whatever runs these tests has just
        done it.
        """

        def linked(file, place):
            try:
                os.link(file, place)
            except OSError:  # another disk
                shutil.copy2(file, place)

        if not self.work.exists():
            # files that other processes are about to rename
            passing = shutil.ignore_patterns("*.pyc.*")
            shutil.copytree(
                sys.prefix, self.work / ".venv", symlinks=True, copy_function=linked, ignore=passing
            )
            for name in ("folder", "ready"):  # of that other machine
                (self.work / ".venv" / name).unlink()
            (self.work / ".venv" / "folder").write_text(f"{self.work}\n")
        for path in self.work.iterdir():
            if path.name != ".venv":
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        git(self.work, "init", "--quiet")
        git(self.work, "fetch", "--quiet", "--depth=1", self.origin.as_uri(), "main")
        git(self.work, "checkout", "--quiet", "--detach", "FETCH_HEAD")

    def artifact(self, action, options):
        """Keep what a job uploads, each path by its last name; or bring what was kept."""
        if "upload-" in action:
            for path in options["path"].split():
                target = self.artifacts / options["name"] / Path(path).name
                shutil.rmtree(target.parent, ignore_errors=True)
                target.parent.mkdir()
                copy = shutil.copytree if (self.work / path).is_dir() else shutil.copy
                copy(self.work / path, target)
            return
        kept = sorted(self.artifacts.glob(options.get("name") or options["pattern"]))
        assert "name" in options or options["merge-multiple"] == "True", (
            "several lie in folders, one does not"
        )
        for folder in kept:
            shutil.copytree(folder, self.work / options["path"], dirs_exist_ok=True)

    def shell(self, text, variables, job):
        """A shell step, in the shell that `shell: bash` means, without what is set in the tests'
        own environment.
        """
        ours = {name: value for name, value in os.environ.items() if not name.startswith(STRANGE)}
        path = [
            self.programs,
            *(folder for folder in ours["PATH"].split(os.pathsep) if Path(folder) != TOOLS),
        ]
        address = {
            f"url.{self.origin.as_uri()}.insteadOf": f"https://github.com/{FORK}",
            "safe.directory": "*",
        }
        address[f"url.{(self.fakes / 'backend-info').as_uri()}.insteadOf"] = BACKEND
        ours |= {f"GIT_CONFIG_KEY_{n}": key for n, key in enumerate(address)}
        ours |= {f"GIT_CONFIG_VALUE_{n}": value for n, value in enumerate(address.values())}
        ours |= {"GIT_CONFIG_COUNT": str(len(address)), "GIT_CONFIG_GLOBAL": os.devnull}
        ours |= {"PATH": os.pathsep.join(map(str, path)), "CI": "true", "FAKES": str(self.fakes)}
        ours |= {
            "GITHUB_ACTIONS": "true",
            "GITHUB_SERVER_URL": "https://github.com",
            "GITHUB_REPOSITORY": FORK,
        }
        ours |= {
            "GITHUB_RUN_ID": "42",
            "GITHUB_WORKSPACE": str(self.work),
            "GITHUB_REF": "refs/heads/main",
        }
        # Of `make check`, a few tests that are quick: the whole would run this one again.
        ours |= {"PYTEST_ADDOPTS": "tests/book/test_terms.py", "PYTEST_XDIST_AUTO_NUM_WORKERS": "1"}
        nowhere = "http://127.0.0.1:9/"  # so that it ends everywhere as it ends here
        ours["ARGS"] = {
            "upstream: audit": f"--osv-url {nowhere}",
            "upstream: links": f"--arxiv {nowhere}",
        }.get(job, "")
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", text]
        return subprocess.run(
            command,
            cwd=self.work,
            env=ours | variables,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A project with these sources, but a book of two small chapters, that need JAX alone."""
    folder = tmp_path_factory.mktemp("github")
    sources, origin = folder / "sources", folder / "origin.git"
    sources.mkdir()
    copy_sources(sources)
    for path in (sources / "book").glob("*.md"):
        path.unlink()
    (sources / "book/index.md").write_text(HOME)
    (sources / "book/one.md").write_text(
        chapter("One", "from shardlab.arrays import layout\n\nprint(1 + 1)")
    )
    (sources / "book/two.md").write_text(chapter("Two", "x = 1", ON_COLAB, VARIES))
    entries = "chapters:\n  - file: book/one\n  - file: book/two\n"
    (sources / "_toc.yml").write_text(f"format: jb-book\nroot: book/index\n{entries}")
    (sources / "book" / "core.yml").unlink()
    # of which the words for the search, and what has moved, name chapters that are not here
    config = (sources / "_config.yml").read_text()
    (sources / "_config.yml").write_text(
        re.sub(r"(?m)^    (?:search_aliases|moved_sections):\n(?:      .*\n)+", "", config)
    )
    project = (sources / "pyproject.toml").read_text()
    (sources / "pyproject.toml").write_text(
        re.sub(r"(?ms)^chapters = \[.*?^\]", "chapters = []", project)
    )
    git(sources, "init", "--quiet", "--initial-branch=main")
    git(sources, "add", "--all")
    git(sources, "commit", "--quiet", "--message", "sources")
    git(folder, "clone", "--quiet", "--bare", str(sources), str(origin))
    return Clone(folder, origin)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("job", "printed"),
    [
        ("check", r"All checks passed[\s\S]*\b\d+ passed"),
        ("test", r"\b\d+ passed"),
        ("book", r"(?m)^one +1 +ran"),
    ],
)
def test_ci_checks_and_leaves_a_preview(clone, job, printed):
    good, output = clone.run(f"ci: {job}")
    assert good and re.search(printed, output), output
    if job == "book":
        assert (clone.work / "_build/html/one.html").exists() and (
            clone.artifacts / "book/notebooks"
        ).exists()


CACHES = [
    (place, step)
    for place, job in JOBS.items()
    for step in job.get("steps", ())
    if "actions/cache" in step.get("uses", "")
]


def test_what_is_proved_is_kept_by_runs_on_main_alone():
    """Otherwise a pull request could bring what says that it need not be tested."""
    saved = [(place, step) for place, step in CACHES if "cache/restore@" not in step["uses"]]
    assert sorted(place for place, _ in saved) == ["ci: book", "ci: test"]
    for place, step in saved:
        assert "actions/cache/save@" in step["uses"], (
            "actions/cache itself also saves for pull requests"
        )
        assert step["if"] == "!cancelled() && github.ref == 'refs/heads/main'"
        # A job that saves has restored the same, and at the end has it all.
        (restored,) = (other for where, other in CACHES if where == place and other is not step)
        assert (
            restored["with"]["path"] == step["with"]["path"]
            and restored["with"]["key"] == step["with"]["key"]
        )
        assert (
            step["with"]["key"].startswith(restored["with"]["restore-keys"])
            and "run_id" in step["with"]["key"]
        )
    assert "github.event.pull_request" not in str(CACHES) and "head_ref" not in str(CACHES)


def test_what_is_kept_is_used_again_only_with_the_same_packages():
    for _, step in CACHES:
        for key in {"key", "restore-keys"} & step["with"].keys():
            assert (
                "hashFiles('requirements.txt')" in step["with"][key]
                and "python-version" in step["with"][key]
            )
    folders = {place: step["with"]["path"].split() for place, step in CACHES}
    runs = ["_build/runs", "_build/programs"]
    assert folders == {
        "ci: test": [*runs, "_build/proofs"],
        "ci: book": runs,
        "upstream: compare": runs,
    }
    linked = re.search(r"^for name in (.*); do$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)[
        1
    ].split()
    assert [f"_build/{name}" for name in linked] == folders["ci: test"]


# The Makefile's commands that no workflow calls, each with what it prints. What `serve` does,
# test_bookbinder.py tests.
BY_HAND = {
    "help": r"^make chapter FILE=book/x.md +run one chapter",
    "chapter FILE=book/one.md": r"^the page: \S+one\.html$",
    "chapter": r"^which chapter\? For example: make chapter FILE=book/arrays.md$",
    "benchmark ARGS='prose --book .'": r"^a sentence in one chapter( +[\d.]+){5} +1\.0 +0 and 0$",
    # that its limits hold, no busy machine can promise
    "lighthouse": r"^Done running Lighthouse!$",
    "lock": r"^$",
    "clean": r"^rm -rf _build \.venv$",
}


@pytest.mark.slow
def test_every_command_of_the_makefile_is_run_by_some_test(clone):
    for command, printed in BY_HAND.items():
        good, output = clone.run("by hand", [{"run": f"make {command}"}])
        assert re.search(printed, output, re.MULTILINE), output
        assert good or command in ("chapter", "lighthouse") or "missed: " in output, output
    text = "".join(
        step.get("run", "") + "\n" for job in JOBS.values() for step in job.get("steps", ())
    )
    text += (ROOT / ".ci" / "run").read_text()
    called = {
        word
        for words in re.findall(r"\bmake((?: +[a-z-]+)+)", text)
        for word in words.split()
        if word[0] != "-"
    }
    called |= {command.split()[0] for command in BY_HAND} | {"serve"}
    assert (
        set(re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split())
        == called
    )
    serving = subprocess.run(
        ["make", "--dry-run", "serve", "PORT=81"], cwd=ROOT, capture_output=True, text=True
    )
    assert ".venv/bin/python -m bookbinder serve --port 81" in serving.stdout.splitlines()


@pytest.mark.slow
def test_publishing_builds_from_nothing_and_pushes_the_notebooks(clone):
    good, output = clone.run("publish: build")
    assert good and re.search(r"^one +1 +ran", output, re.MULTILINE), output
    pages = clone.artifacts / JOBS["publish: build"]["outputs"]["pages"].replace(
        "${{ github.run_attempt }}", "1"
    )
    page = (pages / "html/one.html").read_text()
    assert f"/github/{FORK}/blob/notebooks/one.ipynb" in page
    assert (pages / "html/book.pdf").read_bytes().startswith(b"%PDF")
    assert "</html>" in (pages / "html/slides/index.html").read_text("utf-8")

    good, output = clone.run("publish: notebooks")
    assert good, output
    head = git(clone.origin, "rev-parse", "main").strip()
    stamp = json.loads(git(clone.origin, "show", "notebooks:VERSION.json"))
    assert stamp["commit"] == head and stamp["repository"] == f"https://github.com/{FORK}"
    for name in ("one.ipynb", stamp["wheel"]):
        git(clone.origin, "cat-file", "-e", f"notebooks:{name}")

    # Where they cannot be pushed, the job fails, and the pages, which need it, stay as they were.
    hook = clone.origin / "hooks" / "pre-receive"
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)
    git(clone.origin, "branch", "--delete", "--force", "notebooks")
    try:
        assert not clone.run("publish: notebooks")[0]
    finally:
        hook.unlink()


@pytest.mark.slow
def test_what_changes_upstream_is_told_in_one_issue(clone):
    """Real: the newest JAX and Colab's list, each in an environment. There is no nightly JAX here,
    and that is told.
    """
    pins = (ROOT / "src/bookbinder/run/colab.txt").read_text()
    backend = clone.fakes / "backend-info"
    backend.mkdir()
    (backend / "pip-freeze.txt").write_text(re.sub(r"seaborn==.*", "seaborn==0.0.1", pins))
    git(backend, "init", "--quiet")
    git(backend, "add", "--all")
    git(backend, "commit", "--quiet", "--message", "as of today")
    (clone.fakes / "simple").mkdir()
    line = f"pip install -U --pre {{}} -i {(clone.fakes / 'simple').as_uri()}\n"
    instructions = "pip install -U jax\n" + line.format("jax jaxlib") + line.format("jax[tpu]")
    (clone.fakes / "installation.md").write_text(instructions)
    (clone.fakes / "issues.json").write_text("[]\n")
    checks = ("links", "audit", "perturb", "scoreboard", "compare")
    jobs = ("awake", "newest", "nightly", "colab", *checks)
    outputs = {job: clone.run(f"upstream: {job}") for job in jobs}
    # of the libraries one: each is installed in an environment of its own
    (step,) = (step for step in JOBS["upstream: libraries"]["steps"] if "run" in step)
    one = step | {"run": step["run"].replace('--newest"', '--newest --only Optax"')}
    outputs["libraries"] = clone.run("upstream: libraries", [one])
    assert re.search(r"(?m)^Optax [\d.]+, .*Auto: equal, Explicit: equal$", outputs["libraries"][1])
    well = [job for job, (good, _) in outputs.items() if good]
    assert well == ["awake", "newest", "perturb", "scoreboard", "libraries"], outputs
    needs = {
        job: {"result": "success" if good else "failure"} for job, (good, _) in outputs.items()
    }
    good, output = clone.run("upstream: report", **{"toJSON(needs)": json.dumps(needs)})
    assert good, output
    body = (clone.fakes / "create.md").read_text()
    print(body)  # shown whole where one of the following fails
    assert "newest" not in body and f"https://github.com/{FORK}/actions/runs/42" in body
    assert re.search(r"^nightly: cannot be installed: .*\bjax\b", body, re.MULTILINE)
    cell = r"\n    import jax\n\n    assert jax"
    assert (
        len(
            re.findall(
                rf"^colab: book/two\.md:20: AssertionError: too old{cell}", body, re.MULTILINE
            )
        )
        == 1
    )
    assert re.search(r"^-seaborn==.*\n\+seaborn==0\.0\.1$", body, re.MULTILINE)
    assert re.search(r"^book/index\.md:3: http://127\.0\.0\.1:9/gone: ", body, re.MULTILINE)
    assert re.search(
        r"^book/two\.md:\d+: shows something else when it runs again:$", body, re.MULTILINE
    )
    assert re.search(r"^audit: nothing was checked", body, re.MULTILINE)
    assert re.search(r"^citations: nothing was checked", body, re.MULTILINE)
    calls = (clone.fakes / "gh.txt").read_text()
    assert "issue create --title" in calls and "issue edit" not in calls
    assert f"--method PUT repos/{FORK}/actions/workflows/upstream.yml/enable" in calls

    (clone.fakes / "installation.md").write_text("pip install -U jax\n")
    good, output = clone.run("upstream: nightly")
    assert not good and "installation.md names no index of nightly builds" in output


def test_a_newer_list_of_colab_with_the_same_pins_is_no_change(tmp_path):
    (step,) = (
        step["run"]
        for step in JOBS["upstream: colab"]["steps"]
        if "git diff" in step.get("run", "")
    )
    pins = tmp_path / "src/bookbinder/run/colab.txt"
    pins.parent.mkdir(parents=True)
    git(tmp_path, "init", "--quiet")
    for text, changed in (
        ("# From A\nx==1\n", 0),
        ("# From B\nx==1\n", 0),
        ("# From B\nx==2\n", 1),
    ):
        pins.write_text(text)
        git(tmp_path, "add", "--intent-to-add", "--all")
        if "A" in text:
            git(tmp_path, "commit", "--quiet", "--all", "--message", "pins")
        done = subprocess.run(
            ["bash", "-eo", "pipefail", "-c", step], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == changed and ("+x==2" in done.stdout) == bool(changed), (
            done.stdout + done.stderr
        )


# --- The report -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "told"), [("", ""), ("7", "failure"), ("7", "cancelled")])
@pytest.mark.parametrize("result", ["success", "failure", "cancelled"])
def test_an_issue_is_opened_renewed_and_closed(tmp_path, number, told, result):
    """And people are told again of what it did not have."""
    clone = Clone(tmp_path, None)
    issues = [{"number": int(number), "body": f"## newest: {told}\r\nand more"}] if number else []
    (clone.fakes / "issues.json").write_text(json.dumps(issues))
    needs = {"newest": {"result": result}, "links": {"result": "success"}}
    environment = os.environ | {
        "NEEDS": json.dumps(needs),
        "FAKES": str(clone.fakes),
        "GITHUB_RUN_ID": "42",
    }
    environment |= {"GITHUB_SERVER_URL": "https://github.com", "GITHUB_REPOSITORY": FORK}
    environment["PATH"] = f"{clone.programs}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(
        [sys.executable, report.__file__, tmp_path / "nothing"], env=environment, check=True
    )
    did = [
        line.split()[1]
        for line in (clone.fakes / "gh.txt").read_text().splitlines()
        if line.startswith("issue")
    ]
    well, is_open = result == "success", bool(number)
    should = {
        (True, True): ["close"],
        (True, False): [],
        (False, True): ["edit"],
        (False, False): ["create"],
    }
    assert did == ["list", *should[well, is_open]] + ["comment"] * (
        not well and is_open and told != result
    )
    if "comment" in did:
        assert f"\n## newest: {result}\n" in (clone.fakes / "comment.md").read_text()
    if not well:
        body = (clone.fakes / f"{'edit' if is_open else 'create'}.md").read_text()
        assert (
            f"## newest: {result}" in body and "links" not in body and "No output was kept" in body
        )


def test_no_output_breaks_the_issue(tmp_path):
    """Not fences in it, not more of it than GitHub takes, not bytes that are no text."""
    said = {"newest": b"x" * 100_000 + b"\n````\n@everyone \xff\n````\n"}
    said["links"] = b"\n".join(
        b"book/a.md:%d: http://a.b/%d: 404 Client Error" % (n, n) for n in range(5000)
    )
    for job, text in said.items():
        (tmp_path / f"said-{job}.txt").write_bytes(text)
    body = report.body(dict.fromkeys(said, "failure"), tmp_path, "https://github.com/a/b")
    assert len(body) < 65_000 and "\nbook/a.md:0: " in body and "book/a.md:4999: " in body
    html = MarkdownIt().render(body)
    assert len(re.findall("<h2>(newest|links): failure</h2>", html)) == 2
    assert "@everyone" not in re.sub(r"(?s)<code.*?</code>", "", html) and "@everyone" in html
