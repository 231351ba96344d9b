"""The book's addresses: every link to its repository, its site and its notebooks is made here."""

import os
import subprocess
from dataclasses import dataclass
from functools import cache

from bookbinder.progress import AS_TEXT

PDF = "book.pdf"
BRANCH = "notebooks"  # the branch on which notebooks are published
COLAB = "https://colab.research.google.com"


@dataclass(frozen=True)
class Address:
    """The addresses of one book.

    Attributes:
      repository: "https://github.com/OWNER/NAME", without a slash at its end.
      branch: the branch with the sources, "main".
      site: the address of the pages, with a slash at its end.
    """

    repository: str
    branch: str
    site: str

    @property
    def name(self):
        """The repository as GitHub names it, "OWNER/NAME"."""
        return "/".join(self.repository.split("/")[-2:])

    @property
    def pdf(self):
        """The book bound into one file, which scripts/pdf.py makes and publishing adds to the
        site.
        """
        return f"{self.site}{PDF}"

    @property
    def install(self):
        """The command that installs the package of the book: of the branch, since each push to it
        is published.
        """
        return f"pip install {self.archive(self.branch)}"

    @property
    def install_starters(self):
        """The same with what the scripts import that readers copy."""
        return f'pip install "shardlab[starters] @ {self.archive(self.branch)}"'

    def archive(self, version):
        """The sources at a commit or branch as one file, which pip installs where there is no
        git.
        """
        return f"{self.repository}/archive/{version}.tar.gz"

    def page(self, chapter, anchor=""):
        """A chapter's page on the site, or a place on it."""
        return f"{self.site}{chapter}.html" + (f"#{anchor}" if anchor else "")

    def colab(self, chapter):
        """The address that opens a chapter's notebook in Colab."""
        return f"{COLAB}/github/{self.name}/blob/{BRANCH}/{chapter}.ipynb"

    def notebook(self, chapter):
        """The address that downloads a chapter's notebook."""
        return f"{self.repository}/raw/{BRANCH}/{chapter}.ipynb"

    def file(self, path, version):
        """The page of a file in the repository."""
        return f"{self.repository}/blob/{version}/{path}"

    def edit(self, path):
        """The page on which a file in the repository is edited."""
        return f"{self.repository}/edit/{self.branch}/{path}"

    def raw(self, path, version):
        """The content of a file in the repository, as images need it."""
        return f"{self.repository}/raw/{version}/{path}"


def of(config):
    """The addresses of a book, from its `_config.yml`; in GitHub's CI from the repository being
    built.

    Args:
      config: the content of `_config.yml`. `repository: url:` and `branch:` say where the sources
        are, `html: baseurl:` where the site is; without the latter it is the default address of
        GitHub Pages.
    """
    settings = config.get("repository") or {}
    named = str(settings.get("url") or "").rstrip("/").removesuffix(".git")
    built = os.environ.get("GITHUB_REPOSITORY")
    repository = (
        f"{os.environ.get('GITHUB_SERVER_URL', 'https://github.com')}/{built}" if built else named
    )
    site = (config.get("html") or {}).get("baseurl") or ""
    if not site or repository != named:  # a fork has pages of its own
        owner, _, name = "/".join(repository.split("/")[-2:]).partition("/")
        place = f"{owner.lower()}.github.io"
        site = f"https://{place}/" if name.lower() == place else f"https://{place}/{name}/"
    return Address(repository, settings.get("branch") or "main", site.rstrip("/") + "/")


@cache
def commit(root):
    """The commit that is checked out in a folder, 40 digits; "" where there is none."""
    command = ["git", "-C", str(root), "rev-parse", "--verify", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, **AS_TEXT, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
