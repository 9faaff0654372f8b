#!/bin/sh
# make gallery: runs the commands of docs/gallery.md and writes its pictures to docs/gallery/.  Fails where a command does, where
# a picture of the page is not made, or where a code span of the text that begins with a digit is not in what the
# commands of its section print.
# usage: gallery.sh [--check] [PAGE]
#   --check  writes nothing; fails where a picture that would be written differs (if the gnuplot is the same version)
# Exit status 1: a command or a picture failed; 3: all ran, but a number or a picture of the page is another one now.
set -eu
check=
[ "${1:-}" != --check ] || { check=1 && shift; }
page=${1:-docs/gallery.md}
folder=${page%.md}
degas=$(readlink -f "${DEGAS:-./degas}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM
mkdir "$work/bin"
ln -s "$degas" "$work/bin/degas"

# One file of commands and one of text for each section.
awk -v work="$work" '
/^## / { n++ }
/^```/ { inside = !inside; next }
n > 0 { print >> (work "/" n (inside ? ".sh" : ".text")) }' "$page"
failed=0
complain() {
    echo "gallery: $1" >&2
    failed=1
}
differs() {
    echo "gallery: $1" >&2
    [ "$failed" != 0 ] || failed=3
}
n=1
while [ -e "$work/$n.text" ]; do
    mkdir "$work/$n"
    (cd "$work/$n" && PATH=$work/bin:$PATH COLUMNS=200 LC_ALL=C.UTF-8 sh -eu "../$n.sh" >../out 2>../err) || {
        complain "the commands of section $n failed: $(tail -1 "$work/err")"
        n=$((n + 1))
        continue
    }
    grep -o '`[0-9][^`]*`' "$work/$n.text" | tr -d '`' >"$work/numbers" || true
    while read -r number; do
        grep -qF -- "$number" "$work/out" || differs "section $n says $number, which its commands do not print"
    done <"$work/numbers"
    for picture in $(sed -n 's/^!\[.*\](\(.*\))$/\1/p' "$work/$n.text"); do
        made=$work/$n/${picture##*/}
        if [ ! -e "$made" ]; then
            complain "section $n makes no $picture"
        elif [ -z "$check" ]; then
            mkdir -p "$folder"
            cp "$made" "$folder/"
        elif ! cmp -s "$made" "$folder/${picture##*/}"; then
            if grep -qs "$(gnuplot --version)" "$folder/gnuplot.txt"; then
                differs "$picture is not what its commands draw now"
            else
                echo "gallery: $picture is of another gnuplot: not compared" >&2
            fi
        fi
    done
    n=$((n + 1))
done
[ "$n" -gt 1 ] || complain "$page has no sections"
[ -n "$check" ] || [ ! -d "$folder" ] || gnuplot --version >"$folder/gnuplot.txt"
exit "$failed"
