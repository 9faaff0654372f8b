#!/bin/sh
# make check: the rules of test_house.sh, formatting, clang-tidy, cppcheck and shellcheck where they are installed.
# What cppcheck says of correct code is listed in cppcheck.txt, with the reason.
# Prints what it finds and a last line; exit status 1 when anything was found.
# usage: check_all.sh
set -u
cd "$(dirname "$0")/../.." || exit 1
failed=0

for script in include_ranks headers_alone machine_paths; do
    "tests/lint/$script.sh" || failed=1
done

sources=$(find base models schedule profiles planner simulator executor cli tests \
    -name '*.[ch]' 2>/dev/null | sort)
at_once="xargs -r -n 8 -P $(nproc 2>/dev/null || echo 2)"
if command -v clang-format >/dev/null 2>&1; then
    printf '%s\n' "$sources" | $at_once clang-format --dry-run -Werror || failed=1
else
    echo "check: clang-format is not installed; formatting was not checked" >&2
fi
if command -v clang-tidy >/dev/null 2>&1; then
    FLAGS="-std=c17 -D_GNU_SOURCE -I. $(pkg-config --cflags glib-2.0 libcjson yaml-0.1)"
    export FLAGS
    # What a plugin needs may not be installed here.
    # shellcheck disable=SC2016
    printf '%s\n' "$sources" | grep -v '^tests/' | grep '[.]c$' | $at_once sh -c '
        failed=0
        for source do
            if ! ${CC:-gcc} $FLAGS -fsyntax-only "$source" 2>/dev/null; then
                echo "check: $source does not compile here; not checked by clang-tidy" >&2
            elif ! clang-tidy --quiet "$source" -- $FLAGS 2>/dev/null; then
                failed=1
            fi
        done
        exit $failed' sh || failed=1
else
    echo "check: clang-tidy is not installed; it was not run" >&2
fi

if command -v cppcheck >/dev/null 2>&1; then
    # shellcheck disable=SC2046
    cppcheck -q --error-exitcode=1 -j "$(nproc 2>/dev/null || echo 2)" --std=c11 --enable=warning,performance,portability \
        --library=gtk --suppress=missingIncludeSystem $(sed -n 's/^[a-zA-Z].*/--suppress=&/p' tests/lint/cppcheck.txt) \
        -I. -D_GNU_SOURCE '-DG_DEFINE_QUARK(a,b)=' '-DG_GNUC_PRINTF(a,b)=' \
        base models schedule profiles planner simulator executor cli || failed=1
else
    echo "check: cppcheck is not installed; it was not run" >&2
fi

if command -v shellcheck >/dev/null 2>&1; then
    shellcheck -s sh tests/*.sh tests/*/*.sh && shellcheck scripts/*.sh || failed=1
else
    echo "check: shellcheck is not installed; it was not run" >&2
fi

if [ "$failed" = 0 ]; then
    echo "check: nothing found"
else
    echo "check: see above"
fi
exit "$failed"
