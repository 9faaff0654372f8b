#!/bin/sh
# TAP: the same files built in two folders, at two times, with other surroundings give the same bytes.
# usage: reproducible.sh   (from the root of the repository)
set -u
W=$(mktemp -d)
trap 'rm -rf "$W"' EXIT INT TERM
failed=0

# Without optimisation: what a build could know of its place and time does not depend on it.
for where in a a_longer_name; do
    mkdir "$W/$where"
    tar c --exclude=./build --exclude=./.git --exclude=./degas . | (cd "$W/$where" && tar x) || exit 1
done
# built FOLDER ZONE LOCALE
built() {
    (cd "$W/$1" && TZ=$2 LC_ALL=$3 make CUDA=0 MPI=0 OPT='-O0 -g' WARNINGS= build/release/degas) >"$W/log" 2>&1 && return
    grep -i -m5 error "$W/log" | sed 's/^/# /'
    failed=1
}
built a UTC C
built a_longer_name Asia/Tokyo C.UTF-8
if [ "$failed" = 0 ] && cmp "$W/a/build/release/degas" "$W/a_longer_name/build/release/degas" >"$W/log" 2>&1; then
    echo "ok 1 - two builds of the same files are one binary"
else
    echo "not ok 1 - two builds of the same files are one binary"
    sed 's/^/# /' "$W/log"
    failed=1
fi
if grep -q "$W" "$W/a/build/release/degas" 2>/dev/null; then
    echo "not ok 2 - it names no place of the machine"
    failed=1
else
    echo "ok 2 - it names no place of the machine"
fi
echo 1..2
exit "$failed"
