#!/bin/sh
# Installs the system packages that building, plotting and testing need, if any is missing.
# Lists what it installs.  Offline, or on a system without apt, it lists what is missing instead.
# usage: packages.sh [--check | --tests]
#   --check  only reports, exit status 1 when something needed is missing
#   --tests  also MPI, unless another one is there; without it the tests that need it are skipped
set -eu

needed="gcc libc6-dev make pkg-config libglib2.0-dev libcjson-dev libyaml-dev zlib1g-dev"
wanted="libopenblas0-pthread libsqlite3-0 gnuplot-nox librsvg2-bin"
for_tests="libopenmpi-dev openmpi-bin"
# What degas serve opens, and nothing else needs: as above.
for_serve="libmicrohttpd12"
# What some tests compare with where it is there: comes along with the others, never asked for alone.
helpful="coinor-cbc"

# absent PACKAGE...: those that are not installed
absent() {
    for p in "$@"; do
        case "$(dpkg-query -W -f='${Status}' "$p" 2>/dev/null || true)" in
        *"ok installed"*) ;;
        *) printf ' %s' "$p" ;;
        esac
    done
}

missing="" tests_miss=""
if command -v dpkg-query >/dev/null 2>&1; then
    # shellcheck disable=SC2086
    missing=$(absent $needed $wanted)
    if [ "${1:-}" = "--tests" ] && ! { command -v mpicc && command -v mpirun; } >/dev/null 2>&1; then
        # shellcheck disable=SC2086
        tests_miss=$(absent $for_tests)
    fi
    [ "${1:-}" != "--tests" ] || tests_miss="$tests_miss$(absent $for_serve)"
else
    for c in cc make pkg-config gnuplot; do
        command -v "$c" >/dev/null 2>&1 || missing="$missing $c"
    done
    if [ -n "$missing" ]; then
        echo "packages: this system has no dpkg; install these by hand:$missing" >&2
        echo "packages: also the development files of GLib >= 2.74, cJSON, libyaml and zlib, and OpenBLAS" >&2
        exit 6
    fi
fi
[ -n "$missing$tests_miss" ] || exit 0
if [ "${1:-}" = "--check" ]; then
    echo "packages: missing:$missing" >&2
    exit 1
fi

# give_up HOW: what only tests need is done without
give_up() {
    if [ -n "$missing" ]; then
        printf '%s%s\n' "$1" "$missing$tests_miss" >&2
        exit 6
    fi
    echo "packages: not installed, tests that need it are skipped:$tests_miss" >&2
    exit 0
}

as_root=""
if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null 2>&1 || give_up "packages: not root and no sudo; ask an administrator to run:
    apt-get install"
    as_root="sudo"
fi

# install PACKAGE...
install() {
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

echo "packages: installing:$missing$tests_miss"
# An old package list makes installs fail, a new one costs seconds: refresh first, go on if that fails.
$as_root apt-get update -qq >/dev/null 2>&1 || true
# shellcheck disable=SC2086
install $missing $tests_miss || give_up "packages: could not install (offline?); these are missing:"
# shellcheck disable=SC2086
[ -z "$missing" ] || install $helpful 2>/dev/null || true
