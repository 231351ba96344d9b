#!/bin/sh
# Renew the pins of src/bookbinder/colab.txt, for the packages that it lists, from Colab's own list of what it has.
#   scripts/refresh_colab.sh                            fetch pip-freeze.txt of googlecolab/backend-info
#   scripts/refresh_colab.sh FILE "DATE, commit SHA"    take a pip-freeze.txt that is here
set -eu
here=$PWD
CDPATH='' cd -- "$(dirname -- "$0")/.."
pins=src/bookbinder/colab.txt
part=$pins.part freeze=$pins.freeze
trap 'rm -f "$part" "$freeze"' EXIT

if [ $# -eq 0 ]; then
  last=$(curl -fsSL 'https://api.github.com/repos/googlecolab/backend-info/commits?path=pip-freeze.txt&per_page=1')
  commit=$(printf '%s\n' "$last" | sed -n 's/^ *"sha": "\([0-9a-f]*\)".*/\1/p' | head -n 1)
  day=$(printf '%s\n' "$last" | sed -n 's/^ *"date": "\(....-..-..\).*/\1/p' | head -n 1)
  [ -n "$commit" ] && [ -n "$day" ] || { echo "refresh_colab: GitHub's answer names no commit: $last" >&2; exit 1; }
  curl -fsSL -o "$freeze" "https://raw.githubusercontent.com/googlecolab/backend-info/$commit/pip-freeze.txt"
  from="$day, commit $(printf '%.7s' "$commit")"
elif [ $# -eq 2 ]; then
  case $1 in /*) file=$1 ;; *) file=$here/$1 ;; esac
  cp -- "$file" "$freeze"
  from=$2
else
  echo 'refresh_colab: give nothing, or a pip-freeze.txt and where it is from: FILE "DATE, commit SHA"' >&2
  exit 2
fi

awk -F '==' -v from="$from" '
  function plain(name) { name = tolower(name); gsub(/[-_.]+/, "-", name); return name }
  FNR == NR { if ($0 ~ /^[^#= ]+==/) there[plain($1)] = $0; next }
  /^# From / { sub(/backend-info, .*\. Renewed/, "backend-info, " from ". Renewed") }
  /^#/ { print; next }
  plain($1) in there { print there[plain($1)]; next }
  { print "refresh_colab: Colab has no " $1 " any more: delete its line from src/bookbinder/colab.txt" | "cat >&2"
    failed = 1 }
  END { exit failed }' "$freeze" "$pins" >"$part"
mv "$part" "$pins"
echo "refresh_colab: $pins is as of $from"
