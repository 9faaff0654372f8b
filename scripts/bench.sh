#!/bin/sh
# Runs benchmark programs and prints what they say as one aligned table per program.
# A line that starts with # is a heading; the rest is columns separated by tabs.
# usage: bench.sh [--tiny] PROGRAM...     --tiny: small inputs, only to see that they still run
set -u
tiny=
if [ "${1:-}" = --tiny ]; then
    tiny=--tiny
    shift
fi
failed=0
out=$(mktemp)
trap 'rm -f "$out"' EXIT INT TERM
LC_ALL=C
export LC_ALL
for b in "$@"; do
    echo "== $(basename "$b")"
    # shellcheck disable=SC2086
    if ! "$b" $tiny >"$out"; then
        echo "bench.sh: $b failed" >&2
        failed=1
    fi
    # Two passes over the file: widths, then the columns, numbers to the right.
    awk -F '\t' '
        NR == FNR { if ($0 !~ /^#/) for (i = 1; i <= NF; i++) if (length($i) > w[i]) w[i] = length($i); next }
        /^#/ { print; next }
        {
            line = ""
            for (i = 1; i <= NF; i++)
                line = line sprintf(i == 1 ? "%-*s" : "  %*s", w[i], $i)
            sub(/ +$/, "", line)
            print line
        }' "$out" "$out"
    echo
done
exit "$failed"
