#!/bin/sh
# Make .venv hold exactly what requirements.txt locks, with the newest Python that really runs.
# Called by every make target; when nothing has changed it only compares one line.
#   scripts/setup.sh                    set up, or return at once
#   PYTHON=/path/to/python scripts/setup.sh    use that interpreter
set -eu
CDPATH='' cd -P -- "$(dirname -- "$0")/.." # one name, by whatever link the folder is reached
home=${HOME:-/nonexistent}
oldest=11 newest=14 # minor versions of Python 3
pyenv_folder=${PYENV_ROOT:-$home/.pyenv}/versions
uv_folder=${UV_PYTHON_INSTALL_DIR:-${XDG_DATA_HOME:-$home/.local/share}/uv/python}

state="${PYTHON:-newest} $(cat requirements.txt pyproject.toml scripts/setup.sh | cksum) $PWD"
[ "$(cat .venv/ready 2>/dev/null)" = "$state" ] && [ -x .venv/bin/python ] && exit 0

say() { printf 'setup: %s\n' "$*" >&2; }

# The version of an interpreter that runs, is a release, and can make virtual environments; else nothing.
version_of() {
  "$1" -c 'import sys, venv, ensurepip
if sys.version_info.releaselevel == "final": print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null </dev/null || true
}

# Prints "rank path version" for a usable interpreter, or adds the reason to $rejected.
consider() {
  version=$(version_of "$1")
  case $version in
    3.*.*) minor=${version#3.}; minor=${minor%%.*} ;;
    *) rejected="$rejected, $1 (does not run, or lacks venv)"; return 1 ;;
  esac
  [ "$minor" -ge $oldest ] && [ "$minor" -le $newest ] && return 0
  rejected="$rejected, $1 ($version)"
  return 1
}

find_python() {
  rejected=
  if [ -n "${PYTHON:-}" ]; then
    python=$(command -v "$PYTHON" || true)
    [ -n "$python" ] && consider "$python" && return
    rejected=${rejected:-, nothing there}
    say "PYTHON=$PYTHON cannot be used: need a Python 3.$oldest to 3.$newest with venv; found ${rejected#, }"
    exit 1
  fi
  best=0 python=
  old_ifs=$IFS; IFS=:; set -- $PATH; IFS=$old_ifs
  for folder in "$@" "$pyenv_folder"/*/bin "$uv_folder"/*/bin; do
    [ "$folder" = "$PWD/.venv/bin" ] && continue
    for name in python3.14 python3.13 python3.12 python3.11 python3 python; do
      [ -x "$folder/$name" ] && [ ! -d "$folder/$name" ] || continue
      consider "$folder/$name" || continue
      rank=$(printf '%d%03d' "$minor" "${version##*.}")
      [ "$rank" -gt $best ] && best=$rank python=$folder/$name python_version=$version
      break # the names go from new to old: the rest of this folder is no newer
    done
  done
  [ -n "$python" ] && version=$python_version && return
  rejected=${rejected:-, none at all}
  looked="looked for 3.$oldest to 3.$newest with venv on PATH, in $pyenv_folder and in $uv_folder"
  say "no usable Python: $looked; found ${rejected#, }. Install one, or name it: make book PYTHON=/path/to/python"
  exit 1
}

# An environment that exists is kept, unless it is broken, came here from another folder (its scripts name
# that one), or PYTHON asks for another version.
usable=yes
.venv/bin/python -c 'import pip' 2>/dev/null || usable=
made_in=$(cat .venv/folder 2>/dev/null || true)
if [ "$made_in" != "$PWD" ]; then
  [ -z "$made_in" ] || say "the scripts of .venv name $made_in, where it was made: making it again for $PWD"
  usable=
fi
if [ -n "${PYTHON:-}" ] || [ -z "$usable" ]; then
  find_python
  if [ -z "$usable" ] || [ "$(version_of .venv/bin/python)" != "$version" ]; then
    say "making .venv with Python $version ($python)"
    rm -rf .venv
    "$python" -m venv .venv
    printf '%s\n' "$PWD" >.venv/folder
  fi
fi

say "installing what requirements.txt locks"
rm -f .venv/ready
awk '/^[^ #]/ { wanted = /^uv==/ } wanted' requirements.txt >.venv/uv.txt
.venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r .venv/uv.txt
unset UV_SYSTEM_PYTHON # it would mean another environment than ours
# Compiled now, since many kernels start at once later, and PYTHONDONTWRITEBYTECODE would make each compile all of JAX.
.venv/bin/uv pip sync --quiet --python .venv/bin/python --require-hashes --compile-bytecode requirements.txt
.venv/bin/uv pip install --quiet --python .venv/bin/python --offline --no-deps --no-build-isolation --editable .
printf '%s\n' "$state" >.venv/ready
say "ready"
