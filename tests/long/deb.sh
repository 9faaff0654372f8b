#!/bin/sh
# make deb: the Debian package is sound, and what is in it runs.
. tests/cli/tap.sh

build=$(dirname "$(readlink -f "$DEGAS")")
plugins=$(cd "$build" && ls degas-*.so 2>/dev/null)
if command -v dpkg-shlibdeps >/dev/null 2>&1 && command -v dpkg-deb >/dev/null 2>&1; then
    mkdir "$W/build"
    cp "$build/degas" "$W/build"
    # shellcheck disable=SC2086
    (cd "$build" && cp $plugins "$W/build") 2>/dev/null
    # shellcheck disable=SC2086
    scripts/deb.sh "$W/build" $plugins >"$W/out" 2>"$W/err"
    report $? "a Debian package is made" "$(cat "$W/err")"
    package=$(tail -1 "$W/out")
    mkdir "$W/unpacked"
    dpkg-deb -x "$package" "$W/unpacked" && "$W/unpacked/usr/bin/degas" --version >"$W/out"
    report $? "the program in it runs"
    dpkg-deb -f "$package" Depends | grep 'libglib2.0-0' | grep -q 'libcjson1'
    report $? "it depends on its libraries" "$(dpkg-deb -f "$package")"
    if command -v lintian >/dev/null 2>&1; then
        found=$(lintian "$package" 2>/dev/null)
        [ -z "$found" ]
        report $? "lintian finds nothing" "$found"
    else
        skip "lintian finds nothing" "lintian is not installed"
    fi
else
    skip "a Debian package" "dpkg-dev is not installed"
fi
finish
