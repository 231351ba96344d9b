#!/bin/sh
# Install what tests need besides Python packages: Slurm, sshd and Open MPI for the cluster chapter, npm for a renderer
# of Markdown and for axe, Chromium for the pages, pdftotext for what it prints of them, and g++ for the chapter on
# kernels. Called by `make test`, `make pdf` and `make lighthouse`.
# As root on Debian it installs what is missing, and starts no service. Elsewhere it prints in one line what is missing;
# the tests that need it are skipped, or fail in CI.
set -eu
PATH=$PATH:/usr/sbin:/sbin

missing=
for pair in slurmctld:slurm-wlm slurmd:slurm-wlm munged:munge ip:iproute2 tc:iproute2 sshd:openssh-server \
  slurmdbd:slurmdbd mariadbd:mariadb-server-core \
  my_print_defaults:mariadb-client-core mpirun:openmpi-bin npm:npm pdftotext:poppler-utils g++:g++; do
  command -v "${pair%%:*}" >/dev/null || case " $missing " in
    *" ${pair##*:} "*) ;;
    *) missing="$missing ${pair##*:}" ;;
  esac
done
command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null ||
  missing="$missing chromium"
[ -z "$missing" ] && exit 0

say() { printf 'system: %s\n' "$*" >&2; }

if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
  say "installing$missing"
  export DEBIAN_FRONTEND=noninteractive
  log=$(mktemp) policy=/usr/sbin/policy-rc.d # which Debian asks before it starts a service
  [ -e $policy ] || { printf '#!/bin/sh\nexit 101\n' >$policy && chmod +x $policy && trap 'rm -f $policy' EXIT; }
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
