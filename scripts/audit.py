"""Ask OSV, a database of vulnerabilities, about every package that requirements.txt locks.

    make audit

Exits with 1 if it knows one. Where the database cannot be reached, nothing was asked: that is said in one line, and is
a failure in CI alone.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

LOCK = Path(__file__).parent.parent / "requirements.txt"


def main():
    """Ask, and say what is known; further arguments go to pip-audit."""
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(LOCK), "--disable-pip", "--require-hashes"]
    command += ["--vulnerability-service", "osv", "--format", "json", "--progress-spinner", "off", *sys.argv[1:]]
    done = subprocess.run(command, capture_output=True, text=True)
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except ValueError:
        why = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        print(f"audit: nothing was asked, since the database cannot be reached: {why}", file=sys.stderr)
        return 1 if os.environ.get("CI") else 0
    known = [(package, found) for package in packages for found in package.get("vulns", ())]
    for package, found in known:
        cure = f"mended in {', '.join(found['fix_versions'])}" if found["fix_versions"] else "not mended yet"
        print(f"requirements.txt: {package['name']} {package['version']}: {found['id']}: {cure}")
    asked = sum("skip_reason" not in package for package in packages)
    print(f"{asked} packages asked for; vulnerabilities known: {len(known)}", file=sys.stderr)
    return 1 if known or asked < len(packages) else 0


if __name__ == "__main__":
    sys.exit(main())
