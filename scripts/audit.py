"""Look up every package that requirements.txt locks in OSV, a database of vulnerabilities.

    make audit

Exits with 1 if a package has a known vulnerability. If the database cannot be reached, nothing is
checked, and one line says so; only in CI does that count as a failure.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

LOCK = Path(__file__).parent.parent / "requirements.txt"


def main():
    """Look up all packages and print what is known; further arguments go to pip-audit."""
    command = [
        sys.executable,
        "-m",
        "pip_audit",
        "--requirement",
        str(LOCK),
        "--disable-pip",
        "--require-hashes",
    ]
    command += [
        "--vulnerability-service",
        "osv",
        "--format",
        "json",
        "--progress-spinner",
        "off",
        *sys.argv[1:],
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except ValueError:
        why = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        print(
            f"audit: nothing was checked, because the database cannot be reached: {why}",
            file=sys.stderr,
        )
        return 1 if os.environ.get("CI") else 0
    known = [(package, found) for package in packages for found in package.get("vulns", ())]
    for package, found in known:
        cure = (
            f"fixed in {', '.join(found['fix_versions'])}"
            if found["fix_versions"]
            else "not fixed yet"
        )
        print(f"requirements.txt: {package['name']} {package['version']}: {found['id']}: {cure}")
    asked = sum("skip_reason" not in package for package in packages)
    print(f"{asked} packages checked; known vulnerabilities: {len(known)}", file=sys.stderr)
    return 1 if known or asked < len(packages) else 0


if __name__ == "__main__":
    sys.exit(main())
