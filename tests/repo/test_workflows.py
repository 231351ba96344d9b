"""The workflows on GitHub: what linters say of them, and their shell steps run as by a runner, from a clean clone."""

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
from fnmatch import fnmatch
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import pytest
import yaml
from conftest import copy_sources, git
from markdown_it import MarkdownIt
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from places import ROOT
from tiny_book import chapter

from bookbinder.notebook.notebooks import colab_version

FILES = sorted((ROOT / ".github" / "workflows").iterdir())
DEPENDABOT = ROOT / ".github" / "dependabot.yml"
TOOLS = Path(sys.executable).parent
spec = importlib.util.spec_from_file_location("upstream_report", ROOT / "scripts" / "upstream_report.py")
report = importlib.util.module_from_spec(spec)
spec.loader.exec_module(report)


def load(file):
    """A workflow, with `on` as it is written, which YAML takes for a truth."""
    return {"on" if key is True else key: value for key, value in yaml.safe_load(file.read_text()).items()}


WORKFLOWS = {file.stem: load(file) for file in FILES}
JOBS = {f"{name}: {job}": body for name, workflow in WORKFLOWS.items() for job, body in workflow["jobs"].items()}


# --- What is written in them ------------------------------------------------------------------------------


def test_zizmor_finds_nothing():
    command = [TOOLS / "zizmor", "--offline", "--persona", "pedantic", "--strict-collection", "--no-ignores", ".github"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "No findings" in done.stdout + done.stderr, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("schema", "files"), [("github-workflows", FILES), ("dependabot", [DEPENDABOT])], ids=["workflows", "dependabot"]
)
def test_they_follow_their_schema(schema, files):
    command = [TOOLS / "check-jsonschema", "--builtin-schema", f"vendor.{schema}", *files]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_actions_are_pinned_with_their_version(file):
    used = re.findall(r"\buses: (.*)", file.read_text())
    pinned = [use for use in used if re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", use)]
    assert used and set(used) - set(pinned) <= {"$/.github/workflows/ci.yml"}


def test_an_action_has_one_version_in_all_of_them():
    used = {use for file in FILES for use in re.findall(r"\buses: (actions/.*)", file.read_text())}
    assert len(used) == len({use.partition("@")[0] for use in used})


@pytest.mark.parametrize("workflow", WORKFLOWS.values(), ids=WORKFLOWS)
def test_a_workflow_gives_no_rights_and_does_not_run_beside_itself(workflow):
    assert workflow["permissions"] == {} and workflow["concurrency"]["group"]
    assert workflow["defaults"]["run"]["shell"] == "bash"
    assert "pull_request_target" not in workflow["on"] and "workflow_run" not in workflow["on"]


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_a_job_has_one_right_and_a_time_limit(job):
    writes = {right for right, how in job["permissions"].items() if how != "read"}
    assert writes in (set(), {"contents"}, {"issues"}, {"actions"}, {"pages", "id-token"}, {"id-token"})
    assert "uses" in job or 0 < job["timeout-minutes"] <= 150
    for step in job.get("steps", ()):
        assert "${{" not in step.get("run", ""), "what others may have written reaches a shell"
        if "actions/checkout@" in step.get("uses", ""):
            settings = {"persist-credentials": False} | ({"fetch-depth": 0} if "fetch-depth" in step["with"] else {})
            assert step["with"] == settings and writes <= {"issues"}


TESTS = sorted((ROOT / "tests").rglob("test_*.py"))


def test_the_parts_of_the_tests_are_all_tests_and_none_runs_twice():
    parts = WORKFLOWS["ci"]["jobs"]["test"]["strategy"]["matrix"]["include"]
    listed = [word for part in parts for word in part["tests"].split() if not word.startswith("--")]
    assert sorted(listed) == sorted({f"tests/{path.relative_to(ROOT / 'tests').parts[0]}" for path in TESTS})


def test_each_week_and_for_a_release_nothing_is_left_out():
    """Otherwise what is proved is said and not run again, but for a fifth."""
    asked = {
        place: job.get("with", {}).get("all") for place, job in JOBS.items() if job.get("uses", "").endswith("ci.yml")
    }
    assert asked == {"publish: check": None, "release: check": True, "upstream: everything": True}
    step = WORKFLOWS["ci"]["jobs"]["test"]["steps"][-1]
    assert step["env"]["PROOFS"] == "${{ inputs.all && 'renew' || 'use' }}" and "--proofs $PROOFS" in step["run"]


def test_publishing_restores_nothing_and_puts_notebooks_before_pages():
    text = (ROOT / ".github/workflows/publish.yml").read_text()
    assert "cache" not in text
    jobs = WORKFLOWS["publish"]["jobs"]
    needs = [jobs[job]["needs"] for job in ("build", "notebooks", "pages")]
    assert needs == ["check", "build", ["build", "notebooks"]]
    assert not any("if" in jobs[job] for job in ("notebooks", "pages"))


def test_a_release_is_checked_built_without_rights_and_uploaded_by_what_is_locked(tmp_path):
    """The shell steps of the build, run here: a tag that is no version, or a version without a date, ends it."""
    jobs = WORKFLOWS["release"]["jobs"]
    assert WORKFLOWS["release"]["on"] == {"push": {"tags": ["v*"]}} and list(jobs) == ["check", "build", "upload"]
    assert jobs["build"]["needs"] == "check" and jobs["upload"]["needs"] == "build"
    assert jobs["upload"]["environment"]["name"] == "pypi" and jobs["upload"]["permissions"] == {"id-token": "write"}
    text = (ROOT / ".github/workflows/release.yml").read_text()
    assert "cache" not in text and "secrets" not in text

    copy_sources(tmp_path)
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    tag, build = (step["run"] for step in jobs["build"]["steps"] if "name" in step)
    changelog = tmp_path / "CHANGELOG.md"
    released = re.sub(r"(?m)^(## \[[\d.]+\]) - .*$", r"\1 - 2026-11-23", changelog.read_text(), count=1)
    number = re.search(r"## \[([\d.]+)\]", released)[1]
    cases = [("v9.9.9", released, 1), (f"v{number}", released, 0)]
    cases += [(f"v{number}", released.replace("2026-11-23", "unreleased", 1), 1)]
    for name, said, status in cases:
        changelog.write_text(said)
        environment = os.environ | {"GITHUB_REF_NAME": name}
        done = subprocess.run(["bash", "-eo", "pipefail", "-c", tag], cwd=tmp_path, env=environment)
        assert done.returncode == status, (name, status)
    subprocess.run(["bash", "-eo", "pipefail", "-c", build], cwd=tmp_path, check=True, capture_output=True)
    made = {path.name for path in (tmp_path / "release").iterdir()}
    assert made == {f"shardlab-{number}-py3-none-any.whl", f"shardlab-{number}.tar.gz", "uv.txt"}
    assert re.match(r"uv==[\d.]+ ", (tmp_path / "release/uv.txt").read_text())


# --- The lock ---------------------------------------------------------------------------------------------


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
    (lock,) = (update for update in load(DEPENDABOT)["updates"] if update["package-ecosystem"] == "pip")
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
    """Pins that were moved one by one must still fit together: resolved again from them, none may change."""
    said = subprocess.run(["make", "--dry-run", "lock"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (command,) = (line for line in said.replace("\\\n", " ").splitlines() if " pip compile " in line)
    words = [word for word in shlex.split(command) if word not in ("--upgrade", "--quiet")]
    for name in ("pyproject.toml", "requirements.txt"):
        shutil.copy(ROOT / name, tmp_path)
    done = subprocess.run([TOOLS / "uv", *words[1:]], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

    def pins(folder):
        return set(re.findall(r"^[\w.-]+==[^\\\n]*", (folder / "requirements.txt").read_text(), re.MULTILINE))

    assert pins(tmp_path) == pins(ROOT)


# --- What they do -----------------------------------------------------------------------------------------

FORK = "someone/fork"
HOME = "# Home\n\nSee [what is gone](http://127.0.0.1:9/gone) and {doc}`one`.\n"
BACKEND = "https://github.com/googlecolab/backend-info"
ON_COLAB = f"import jax\n\nassert jax.__version__ != {colab_version('jax')!r}, 'too old'"
PROGRAMS = {
    # What is not real: rights of root, GitHub's programs, and addresses elsewhere.
    "sudo": 'exec "$@"\n',
    "gh": 'printf "%s\\n" "$*" >>"$FAKES/gh.txt"\n'
    'case "$*" in *"--body-file -"*) cat >"$FAKES/$2.md" ;; "issue list"*) cat "$FAKES/issues.json" ;; esac\n',
    "curl": 'while [ $# -gt 1 ]; do [ "$1" = -o ] && exec >"$2"; shift; done\n'
    'case $1 in *jax-ml/jax*) cat "$FAKES/installation.md" ;; *) echo "not here: $1" >&2; exit 22 ;; esac\n',
}


# What the tests' own environment has, and a runner's has not.
STRANGE = ("ARGS", "PYTHON", "PYTEST", "VIRTUAL_ENV", "GITHUB_", "GIT_", "JAX", "XLA", "TPU_", "MPL", "CI", "MAKE",
           "MFLAGS")  # fmt: skip


class Runner:
    """GitHub's runners, as far as our workflows can tell. Shell steps really run; each method says what it replaces."""

    def __init__(self, folder, origin):
        self.folder, self.origin, self.work = folder, origin, folder / "work"
        self.artifacts, self.caches, self.fakes = folder / "artifacts", folder / "caches", folder / "fakes"
        self.programs, self.said, self.outputs = folder / "bin", {}, {}
        for made in (self.artifacts, self.caches, self.fakes, self.programs):
            made.mkdir()
        for name, text in PROGRAMS.items():
            (self.programs / name).write_text(f"#!/bin/sh\n{text}")
            (self.programs / name).chmod(0o755)
        (self.programs / "python3.13").symlink_to(sys._base_executable)

    def run(self, name, *only, event="push", ref="refs/heads/main"):
        """Run a workflow's jobs, or some of them; returns how each ended."""
        workflow, results = WORKFLOWS[name], {}
        context = {"github.event_name": event, "github.ref": ref, "github.repository": FORK, "github.token": "secret"}
        context["github.run_attempt"] = "1"
        context["inputs.all && 'renew' || 'use'"] = "use"
        for job, body in workflow["jobs"].items():
            needs = [body["needs"]] if isinstance(body.get("needs"), str) else body.get("needs", [])
            context["matrix.tests"] = "tests/book/test_terms.py"  # for each part: a few tests that are quick
            context["toJSON(needs)"] = json.dumps({need: {"result": results.get(need)} for need in needs})
            good = all(results.get(need, "success") == "success" for need in needs)
            if only and job not in only:
                continue
            if not self.holds(body.get("if"), good, context):
                results[job] = "skipped"
            elif "uses" in body:  # a workflow of ours, which has a test of its own
                assert "workflow_call" in load(ROOT / body["uses"].removeprefix("$/"))["on"]
                results[job] = "success"
            else:
                results[job] = self.job(job, body, workflow, context | self.outputs)
        return results

    def job(self, job, body, workflow, context):
        """A job on a machine with nothing on it but the packages of the lock, in .venv (see `with_packages`)."""
        for path in self.work.iterdir() if self.work.exists() else ():
            if path.name != ".venv":
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        if not self.work.exists():
            self.with_packages()
        good, self.said[job], self.after = True, "", []
        for step in body["steps"]:
            if not self.holds(step.get("if"), good, context):
                continue
            variables = {**workflow.get("env", {}), **body.get("env", {}), **step.get("env", {})}
            variables = {name: self.fill(value, context) for name, value in variables.items()}
            if "run" in step:
                good &= self.shell(job, step["run"], variables, context)
            else:
                options = {key: self.fill(value, context) for key, value in step.get("with", {}).items()}
                action = step["uses"].partition("@")[0].removeprefix("actions/").replace("-", "_")
                outputs = getattr(self, action)(options) or {}
                context |= {f"steps.{step.get('id')}.outputs.{key}": value for key, value in outputs.items()}
        for last in self.after if good else ():
            last()
        for name, value in body.get("outputs", {}).items():
            self.outputs[f"needs.{job}.outputs.{name}"] = self.fill(value, context)
        return "success" if good else "failure"

    def with_packages(self):
        """A machine on which the packages are already: the set-up still runs, and finds little to do.

        Installing them takes a minute of two processors, and whatever runs these tests has just done it: here, and in
        every job on GitHub.
        """

        def linked(file, place):
            try:
                os.link(file, place)
            except OSError:  # another disk
                shutil.copy2(file, place)

        passing = shutil.ignore_patterns("*.pyc.*")  # files that other processes are about to rename
        shutil.copytree(sys.prefix, self.work / ".venv", symlinks=True, copy_function=linked, ignore=passing)
        for name in ("folder", "ready"):  # of that other machine
            (self.work / ".venv" / name).unlink()
        (self.work / ".venv" / "folder").write_text(f"{self.work}\n")

    def holds(self, condition, good, context):
        """The conditions that we use; another one is an error here."""
        if not condition:
            return good
        if found := re.fullmatch(r"(github\.\w+) == '([^']*)'", condition):
            return good and context[found[1]] == found[2]
        return {"!success()": not good, "!cancelled()": True}[condition]

    def fill(self, text, context):
        """Text with its expressions filled in; one that we do not know is an error."""
        known = {"runner.os": "Linux", "runner.arch": "X64", **context}

        def value(expression):
            if found := re.fullmatch(r"hashFiles\((.*)\)", expression):
                patterns = re.findall("'([^']*)'", found[1])
                files = sorted(path for pattern in patterns for path in self.work.glob(pattern) if path.is_file())
                assert files, f"{expression} is of no file"
                return sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
            return known[expression]

        return re.sub(r"\$\{\{\s*(.*?)\s*\}\}", lambda found: value(found[1]), text) if isinstance(text, str) else text

    def shell(self, job, text, variables, context):
        """A shell step, in the shell that `shell: bash` means, without what is set in the tests' own environment."""
        file = self.folder / "step.sh"
        file.write_text(text)
        ours = {name: value for name, value in os.environ.items() if not name.startswith(STRANGE)}
        path = [self.programs, *(folder for folder in ours["PATH"].split(os.pathsep) if Path(folder) != TOOLS)]
        address = {f"url.{self.origin.as_uri()}.insteadOf": f"https://github.com/{FORK}", "safe.directory": "*"}
        address[f"url.{(self.fakes / 'backend-info').as_uri()}.insteadOf"] = BACKEND
        ours |= {f"GIT_CONFIG_KEY_{n}": key for n, key in enumerate(address)}
        ours |= {f"GIT_CONFIG_VALUE_{n}": value for n, value in enumerate(address.values())}
        ours |= {"GIT_CONFIG_COUNT": str(len(address)), "GIT_CONFIG_GLOBAL": os.devnull}
        ours |= {"PATH": os.pathsep.join(map(str, path)), "CI": "true", "FAKES": str(self.fakes)}
        ours |= {"GITHUB_ACTIONS": "true", "GITHUB_SERVER_URL": "https://github.com", "GITHUB_REPOSITORY": FORK}
        ours |= {"GITHUB_RUN_ID": "42", "GITHUB_WORKSPACE": str(self.work), "GITHUB_REF": context["github.ref"]}
        # Of `make check`, a few tests that are quick: the whole would run this one again.
        ours |= {"PYTEST_ADDOPTS": "tests/book/test_terms.py", "PYTEST_XDIST_AUTO_NUM_WORKERS": "1"}
        if job == "audit":  # so that it ends everywhere as it ends here
            ours["ARGS"] = "--osv-url http://127.0.0.1:9/"
        for name in ("GITHUB_ENV", "GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY", "GITHUB_PATH"):
            ours[name] = str(self.folder / name)
            (self.folder / name).touch()
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(file)]
        done = subprocess.run(
            command, cwd=self.work, env=ours | variables, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        self.said[job] += f"$ {text}\n{done.stdout}"
        return done.returncode == 0

    # What stands for each action:

    def checkout(self, options):
        """A clone, as shallow as theirs, which knows no branch unless it is asked for all."""
        clone = self.folder / "clone"
        depth = ["--depth=1"] if options.get("fetch-depth") != 0 else []
        git(self.folder, "clone", "--quiet", *depth, "--branch=main", self.origin.as_uri(), str(clone))
        git(clone, "checkout", "--quiet", "--detach")
        git(clone, "branch", "--quiet", "--delete", "main")
        if depth:
            git(clone, "branch", "--quiet", "--delete", "--remotes", "origin/main", "origin/HEAD")
        for path in clone.iterdir():
            path.rename(self.work / path.name)
        clone.rmdir()

    def setup_python(self, options):
        """The Python of these tests, first on PATH, for whatever version is asked for."""
        assert "3.13" in options["python-version"].split()
        return {"python-version": sys.version.split()[0]}

    def cache(self, options):
        """A folder for each key; kept when the job has ended well."""
        place = self.work / options["path"]
        kept = sorted(self.caches.iterdir(), key=lambda path: path.name != options["key"])
        if found := [path for path in kept if path.name.startswith((options["key"], options["restore-keys"]))]:
            shutil.copytree(found[0], place)
        self.after.append(lambda: shutil.copytree(place, self.caches / options["key"], dirs_exist_ok=True))

    def upload_artifact(self, options):
        """A copy, without hidden files and empty folders, as theirs; of several paths from where they part."""
        place = self.artifacts / options["name"]
        shutil.rmtree(place, ignore_errors=True)
        paths = [self.work / path for path in options["path"].split()]
        start = Path(os.path.commonpath(paths)) if len(paths) > 1 else paths[0]
        start = start if start.is_dir() else start.parent
        for path in paths:
            files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
            assert files, f"there is no {path}"
            for file in files:
                name = file.relative_to(start)
                if not any(part.startswith(".") for part in name.parts):
                    (place / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(file, place / name)

    def upload_pages_artifact(self, options):
        """A tar file, as theirs."""
        with tarfile.open(self.artifacts / f"{options['name']}.tar", "w") as made:
            made.add(self.work / options["path"], arcname=".")

    def download_artifact(self, options):
        """The copy of one artifact; of several, in folders of their names, unless it is one or they are merged."""
        place = self.work / options["path"]
        found = sorted(self.artifacts.glob(options.get("name") or options["pattern"]))
        apart = len(found) > 1 and not options.get("merge-multiple")
        for path in found:
            shutil.copytree(path, place / path.name if apart else place, dirs_exist_ok=True)

    def deploy_pages(self, options):
        """The site that would be there, in a folder."""
        with tarfile.open(self.artifacts / f"{options['artifact_name']}.tar") as made:
            made.extractall(self.folder / "pages", filter="data")
        assert (self.folder / "pages" / "index.html").exists()
        return {"page_url": "https://someone.github.io/fork/"}


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    """Runners for a repository with these sources, but a book of two small chapters, that need JAX alone."""
    folder = tmp_path_factory.mktemp("github")
    sources, origin = folder / "sources", folder / "origin.git"
    sources.mkdir()
    copy_sources(sources)
    for path in (sources / "book").glob("*.md"):
        path.unlink()
    (sources / "book/index.md").write_text(HOME)
    (sources / "book/one.md").write_text(chapter("One", "from shardlab.arrays import layout\n\nprint(1 + 1)"))
    (sources / "book/two.md").write_text(chapter("Two", "x = 1", ON_COLAB))
    entries = "chapters:\n  - file: book/one\n  - file: book/two\n"
    (sources / "_toc.yml").write_text(f"format: jb-book\nroot: book/index\n{entries}")
    config = (sources / "_config.yml").read_text()  # of which the words for the search name chapters that are not here
    (sources / "_config.yml").write_text(re.sub(r"(?m)^    search_aliases:\n(?:      .*\n)+", "", config))
    project = (sources / "pyproject.toml").read_text()
    (sources / "pyproject.toml").write_text(re.sub(r"(?ms)^chapters = \[.*?^\]", "chapters = []", project))
    git(sources, "init", "--quiet", "--initial-branch=main")
    git(sources, "add", "--all")
    git(sources, "commit", "--quiet", "--message", "sources")
    git(folder, "clone", "--quiet", "--bare", str(sources), str(origin))
    return Runner(folder, origin)


@pytest.mark.slow
def test_ci_checks_and_leaves_a_preview(runner):
    results = runner.run("ci", event="pull_request", ref="refs/pull/1/merge")
    assert results == dict.fromkeys(("check", "test", "book"), "success"), "\n".join(runner.said.values())
    assert "All checks passed" in runner.said["check"] and re.search(r"\d+ passed", runner.said["check"])
    assert re.search(r"\d+ passed", runner.said["test"])
    assert re.search(r"^one +1 +ran", runner.said["book"], re.MULTILINE)
    preview = runner.artifacts / "book"
    assert (preview / "html/one.html").exists() and (preview / "notebooks/one.ipynb").exists()

    # What was kept is used again, and not where the lock is another.
    assert runner.run("ci", "book") == {"book": "success"}
    assert re.search(r"^one +1 +reused", runner.said["book"], re.MULTILINE), runner.said["book"]
    key = WORKFLOWS["ci"]["jobs"]["book"]["steps"][2]["with"]["restore-keys"]
    assert "hashFiles('requirements.txt')" in key and "python-version" in key


# The Makefile's commands that no workflow calls, each with what it prints. What `serve` does, test_bookbinder.py tests.
BY_HAND = {
    "help": r"^make chapter FILE=book/x.md +run one chapter",
    "chapter FILE=book/one.md": r"^the page: \S+one\.html$",
    "chapter": r"^which chapter\? For example: make chapter FILE=book/arrays.md$",
    "benchmark ARGS='prose --book .'": r"^a sentence in one chapter +[\d.]+ +[\d.]+ +[\d.]+ +1\.0 +0 and 0$",
    "lighthouse": r"^Done running Lighthouse!$",  # that its limits hold, no busy machine can promise
    "lock": r"^$",
    "clean": r"^rm -rf _build \.venv$",
}


@pytest.mark.slow
def test_every_command_of_the_makefile_is_run_by_some_test(runner):
    checkout = {"uses": "actions/checkout@x"}
    for command, printed in BY_HAND.items():
        steps = [checkout, {"run": f"make {command}"}]
        ended = runner.job("by hand", {"steps": steps}, {}, {"github.ref": "refs/heads/main"})
        said = runner.said["by hand"]
        assert re.search(printed, said, re.MULTILINE), said
        assert ended == "success" or command in ("chapter", "lighthouse") or "missed: " in said, said
    text = "".join(step.get("run", "") + "\n" for job in JOBS.values() for step in job.get("steps", ()))
    text += (ROOT / ".ci" / "run").read_text()
    called = set(re.findall(r"\bmake ([\w-]+)", text)) | {command.split()[0] for command in BY_HAND} | {"serve"}
    assert set(re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split()) == called
    serving = subprocess.run(["make", "--dry-run", "serve", "PORT=81"], cwd=ROOT, capture_output=True, text=True)
    assert ".venv/bin/python -m bookbinder serve --port 81" in serving.stdout.splitlines()


@pytest.mark.slow
def test_publishing_builds_from_nothing_and_pushes_notebooks_before_pages(runner):
    results = runner.run("publish")
    assert set(results.values()) == {"success"}, "\n".join(runner.said.values())
    assert re.search(r"^one +1 +ran", runner.said["build"], re.MULTILINE)
    head = git(runner.origin, "rev-parse", "main").strip()
    stamp = json.loads(git(runner.origin, "show", "notebooks:VERSION.json"))
    assert stamp["commit"] == head and stamp["repository"] == f"https://github.com/{FORK}"
    for name in ("one.ipynb", stamp["wheel"]):
        git(runner.origin, "cat-file", "-e", f"notebooks:{name}")
    page = (runner.folder / "pages/one.html").read_text()
    assert f"/github/{FORK}/blob/notebooks/one.ipynb" in page
    assert (runner.folder / "pages/book.pdf").read_bytes().startswith(b"%PDF")

    # Where the notebooks cannot be pushed, the pages stay as they were.
    shutil.rmtree(runner.folder / "pages")
    git(runner.origin, "branch", "--delete", "--force", "notebooks")
    hook = runner.origin / "hooks" / "pre-receive"
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)
    try:
        assert runner.run("publish", "notebooks", "pages") == {"notebooks": "failure", "pages": "skipped"}
    finally:
        hook.unlink()
    assert not (runner.folder / "pages").exists()
    assert runner.run("publish", "build", ref="refs/heads/other") == {"build": "skipped"}


@pytest.mark.slow
def test_what_changes_upstream_is_told_in_one_issue(runner):
    """Real: the newest JAX and Colab's list, each in an environment. There is no nightly JAX here, and that is told."""
    pins = (ROOT / "src/bookbinder/run/colab.txt").read_text()
    backend = runner.fakes / "backend-info"
    backend.mkdir()
    (backend / "pip-freeze.txt").write_text(re.sub(r"seaborn==.*", "seaborn==0.0.1", pins))
    git(backend, "init", "--quiet")
    git(backend, "add", "--all")
    git(backend, "commit", "--quiet", "--message", "as of today")
    (runner.fakes / "simple").mkdir()
    line = f"pip install -U --pre {{}} -i {(runner.fakes / 'simple').as_uri()}\n"
    instructions = "pip install -U jax\n" + line.format("jax jaxlib") + line.format("jax[tpu]")
    (runner.fakes / "installation.md").write_text(instructions)
    (runner.fakes / "issues.json").write_text("[]\n")
    results = runner.run("upstream", event="schedule")
    everything = "\n".join(runner.said.values())
    assert {results.pop(job) for job in ("awake", "everything", "newest", "report")} == {"success"}, everything
    assert set(results.values()) == {"failure"}, everything
    body = (runner.fakes / "create.md").read_text()
    print(body)  # shown whole where one of the following fails
    assert "newest" not in body and f"https://github.com/{FORK}/actions/runs/42" in body
    assert re.search(r"^nightly: cannot be installed: .*\bjax\b", body, re.MULTILINE)
    cell = r"\n    import jax\n\n    assert jax"
    assert len(re.findall(rf"^colab: book/two\.md:20: AssertionError: too old{cell}", body, re.MULTILINE)) == 1
    assert re.search(r"^-seaborn==.*\n\+seaborn==0\.0\.1$", body, re.MULTILINE)
    assert re.search(r"^book/index\.md:3: http://127\.0\.0\.1:9/gone: ", body, re.MULTILINE)
    assert re.search(r"^audit: nothing was checked", body, re.MULTILINE)
    said = (runner.fakes / "gh.txt").read_text()
    assert "issue create --title" in said and "issue edit" not in said
    assert f"--method PUT repos/{FORK}/actions/workflows/upstream.yml/enable" in said

    # One that fails alone is told too.
    for other in set(runner.artifacts.glob("said-*")) - {runner.artifacts / "said-colab"}:
        shutil.rmtree(other)
    (step,) = (step for step in JOBS["upstream: report"]["steps"] if "download-artifact" in step.get("uses", ""))
    shutil.rmtree(runner.work / step["with"]["path"])
    runner.download_artifact(step["with"])
    assert any("two.md:20: " in line for line in report.summary("colab", "failure", runner.work / step["with"]["path"]))

    (runner.fakes / "installation.md").write_text("pip install -U jax\n")
    assert runner.run("upstream", "nightly") == {"nightly": "failure"}
    assert "installation.md names no index of nightly builds" in runner.said["nightly"]


def test_a_newer_list_of_colab_with_the_same_pins_is_no_change(tmp_path):
    (step,) = (step["run"] for step in JOBS["upstream: colab"]["steps"] if "git diff" in step.get("run", ""))
    pins = tmp_path / "src/bookbinder/run/colab.txt"
    pins.parent.mkdir(parents=True)
    git(tmp_path, "init", "--quiet")
    for text, changed in (("# From A\nx==1\n", 0), ("# From B\nx==1\n", 0), ("# From B\nx==2\n", 1)):
        pins.write_text(text)
        git(tmp_path, "add", "--intent-to-add", "--all")
        if "A" in text:
            git(tmp_path, "commit", "--quiet", "--all", "--message", "pins")
        done = subprocess.run(["bash", "-eo", "pipefail", "-c", step], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == changed and ("+x==2" in done.stdout) == bool(changed), done.stdout + done.stderr


# --- The report -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "told"), [("", ""), ("7", "failure"), ("7", "cancelled")])
@pytest.mark.parametrize("result", ["success", "failure", "cancelled"])
def test_an_issue_is_opened_renewed_and_closed(tmp_path, number, told, result):
    """And people are told again of what it did not have."""
    runner = Runner(tmp_path, None)
    issues = [{"number": int(number), "body": f"## newest: {told}\r\nand more"}] if number else []
    (runner.fakes / "issues.json").write_text(json.dumps(issues))
    needs = {"newest": {"result": result}, "links": {"result": "success"}}
    environment = os.environ | {"NEEDS": json.dumps(needs), "FAKES": str(runner.fakes), "GITHUB_RUN_ID": "42"}
    environment |= {"GITHUB_SERVER_URL": "https://github.com", "GITHUB_REPOSITORY": FORK}
    environment["PATH"] = f"{runner.programs}{os.pathsep}{os.environ['PATH']}"
    subprocess.run([sys.executable, report.__file__, tmp_path / "nothing"], env=environment, check=True)
    did = [line.split()[1] for line in (runner.fakes / "gh.txt").read_text().splitlines() if line.startswith("issue")]
    well, is_open = result == "success", bool(number)
    should = {(True, True): ["close"], (True, False): [], (False, True): ["edit"], (False, False): ["create"]}
    assert did == ["list", *should[well, is_open]] + ["comment"] * (not well and is_open and told != result)
    if "comment" in did:
        assert f"\n## newest: {result}\n" in (runner.fakes / "comment.md").read_text()
    if not well:
        body = (runner.fakes / f"{'edit' if is_open else 'create'}.md").read_text()
        assert f"## newest: {result}" in body and "links" not in body and "No output was kept" in body


def test_no_output_breaks_the_issue(tmp_path):
    """Not fences in it, not more of it than GitHub takes, not bytes that are no text."""
    said = {"newest": b"x" * 100_000 + b"\n````\n@everyone \xff\n````\n"}
    said["links"] = b"\n".join(b"book/a.md:%d: http://a.b/%d: 404 Client Error" % (n, n) for n in range(5000))
    for job, text in said.items():
        (tmp_path / f"said-{job}.txt").write_bytes(text)
    body = report.body(dict.fromkeys(said, "failure"), tmp_path, "https://github.com/a/b")
    assert len(body) < 65_000 and "\nbook/a.md:0: " in body and "book/a.md:4999: " in body
    html = MarkdownIt().render(body)
    assert len(re.findall("<h2>(newest|links): failure</h2>", html)) == 2
    assert "@everyone" not in re.sub(r"(?s)<code.*?</code>", "", html) and "@everyone" in html
