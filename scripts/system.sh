#!/bin/sh
# Install what tests need from outside Python: Slurm, for the cluster chapter, npm, for a renderer of Markdown, and
# Chromium, for the explorer.
# Called by `make test`.
# As root on Debian it installs what is missing. Elsewhere it says in one line what would be skipped; in CI the
# tests that miss it fail.
set -eu
PATH=$PATH:/usr/sbin:/sbin

missing=
for pair in slurmctld:slurm-wlm slurmd:slurm-wlm munged:munge ip:iproute2 tc:iproute2 npm:npm chromium:chromium; do
  command -v "${pair%%:*}" >/dev/null || case " $missing " in
    *" ${pair##*:} "*) ;;
    *) missing="$missing ${pair##*:}" ;;
  esac
done
[ -z "$missing" ] && exit 0

say() { printf 'system: %s\n' "$*" >&2; }

if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
  say "installing$missing"
  export DEBIAN_FRONTEND=noninteractive
  log=$(mktemp)
  # shellcheck disable=SC2086 # one word for each package
  if apt-get install --yes --no-install-recommends $missing >"$log" 2>&1 ||
    { apt-get update >>"$log" 2>&1 && apt-get install --yes --no-install-recommends $missing >>"$log" 2>&1; }; then
    rm -f "$log"
    exit 0
  fi
  tail -5 "$log" >&2
  rm -f "$log"
  say "could not install$missing; tests that need it cannot run"
else
  say "not installed:$missing (Debian, as root: apt-get install$missing); tests that need it cannot run"
fi
