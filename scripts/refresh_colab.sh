#!/bin/sh
# Renew the pins of src/bookbinder/run/colab.txt, for the packages that it lists, from Colab's own list of packages.
#   scripts/refresh_colab.sh                            take pip-freeze.txt of googlecolab/backend-info
#   scripts/refresh_colab.sh FILE "DATE, commit SHA"    use this pip-freeze.txt
set -eu
here=$PWD
CDPATH='' cd -- "$(dirname -- "$0")/.."
pins=src/bookbinder/run/colab.txt
part=$pins.part freeze=$pins.freeze
list=https://github.com/googlecolab/backend-info
clone=$(mktemp -d)
trap 'rm -rf "$part" "$freeze" "$clone"' EXIT

if [ $# -eq 0 ]; then
  git clone --quiet --depth=1 "$list" "$clone" || { echo "refresh_colab: cannot clone $list" >&2; exit 1; }
  cp "$clone/pip-freeze.txt" "$freeze"
  from=$(git -C "$clone" log -1 --format='%cs, commit %h' --abbrev=7)
elif [ $# -eq 2 ]; then
  case $1 in /*) file=$1 ;; *) file=$here/$1 ;; esac
  cp -- "$file" "$freeze"
  from=$2
else
  echo 'refresh_colab: give no arguments, or a pip-freeze.txt and its origin: FILE "DATE, commit SHA"' >&2
  exit 2
fi

awk -F '==' -v from="$from" '
  function plain(name) { name = tolower(name); gsub(/[-_.]+/, "-", name); return name }
  FNR == NR { if ($0 ~ /^[^#= ]+==/) there[plain($1)] = $0; next }
  /^# From / { sub(/backend-info, .*\. Renewed/, "backend-info, " from ". Renewed") }
  /^#/ { print; next }
  plain($1) in there { print there[plain($1)]; next }
  { print "refresh_colab: Colab no longer has " $1 ": delete its line from src/bookbinder/run/colab.txt" | "cat >&2"
    failed = 1 }
  END { exit failed }' "$freeze" "$pins" >"$part"
mv "$part" "$pins"
echo "refresh_colab: $pins is as of $from"
