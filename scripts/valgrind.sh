#!/bin/sh
# Runs tests of the command line with each degas under valgrind's memcheck: a use of memory that is not there or was never
# set makes a command end with status 99, so that its test fails.  A command takes some 40 times as long.
# usage: valgrind.sh [TEST.sh...]   (tests/cli/test_schedule.sh, test_slices.sh, test_list_show.sh, test_errors.sh, test_export.sh)
set -u
cd "$(dirname "$0")/.." || exit 1
if ! command -v valgrind >/dev/null 2>&1; then
    echo "valgrind: skipped, it is not installed"
    exit 0
fi
W=$(mktemp -d)
trap 'rm -rf "$W"' EXIT INT TERM
cat >"$W/degas" <<END
#!/bin/sh
exec valgrind -q --error-exitcode=99 --trace-children=no --child-silent-after-fork=yes --log-file="$W/found.%p" "$PWD/build/release/degas" "\$@"
END
chmod +x "$W/degas"
[ $# -gt 0 ] || set -- tests/cli/test_schedule.sh tests/cli/test_slices.sh tests/cli/test_list_show.sh tests/cli/test_errors.sh tests/cli/test_export.sh
failed=0
for test in "$@"; do
    DEGAS=$W/degas G_SLICE=always-malloc LC_ALL=C.UTF-8 sh "$test" >"$W/out" 2>&1
    echo "$test: $(grep -c '^ok' "$W/out") passed, $(grep -c '^not ok' "$W/out") failed, of $(find "$W" -name 'found.*' | wc -l) commands \
$(find "$W" -name 'found.*' -size +0 | wc -l) with something found"
    grep '^not ok' "$W/out"
    find "$W" -name 'found.*' -size +0 -exec head -30 {} \;
    find "$W" -name 'found.*' -size +0 | grep -q . && failed=1
    rm -f "$W"/found.*
done
exit $failed
