#!/bin/sh
# Installs the system packages that building, plotting and testing need, if any is missing.
# Lists what it installs.  Offline, or on a system without apt, it lists what is missing instead.
# usage: packages.sh [--check]     --check only reports, exit status 1 when something needed is missing
set -eu

needed="gcc libc6-dev make pkg-config libglib2.0-dev libcjson-dev"
wanted="libopenblas0-pthread gnuplot-nox librsvg2-bin"
# What some tests compare with where it is there: comes along with the others, never asked for alone.
helpful="coinor-cbc"

missing=""
if command -v dpkg-query >/dev/null 2>&1; then
    for p in $needed $wanted; do
        s=$(dpkg-query -W -f='${Status}' "$p" 2>/dev/null || true)
        case "$s" in
        *"ok installed"*) ;;
        *) missing="$missing $p" ;;
        esac
    done
else
    for c in cc make pkg-config gnuplot; do
        command -v "$c" >/dev/null 2>&1 || missing="$missing $c"
    done
    if [ -n "$missing" ]; then
        echo "packages: this system has no dpkg; install these by hand:$missing" >&2
        echo "packages: also the development files of GLib >= 2.74 and cJSON, and OpenBLAS" >&2
        exit 6
    fi
fi
[ -n "$missing" ] || exit 0
if [ "${1:-}" = "--check" ]; then
    echo "packages: missing:$missing" >&2
    exit 1
fi

as_root=""
if [ "$(id -u)" != 0 ]; then
    if command -v sudo >/dev/null 2>&1; then
        as_root="sudo"
    else
        echo "packages: not root and no sudo; ask an administrator to run:" >&2
        echo "    apt-get install$missing" >&2
        exit 6
    fi
fi

echo "packages: installing:$missing"
# An old package list makes installs fail, a new one costs seconds: refresh first, go on if that fails.
$as_root apt-get update -qq >/dev/null 2>&1 || true
# shellcheck disable=SC2086
if ! $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing \
    >/dev/null; then
    echo "packages: could not install (offline?); these are missing:$missing" >&2
    exit 6
fi
# shellcheck disable=SC2086
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $helpful \
    >/dev/null 2>&1 || true
