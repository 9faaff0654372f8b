#!/bin/sh
# Prints every include that breaks the ranks of docs/architecture.md; silent and 0 when there is none.
#   - a folder includes itself and folders of strictly lower rank; siblings never meet
#   - includes in quotes are written from the root
#   - a .c includes its own header, where it has one, first
#   - cJSON is met in base/json*.c, and their tests, only
# usage: include_ranks.sh [ROOT]
set -eu
cd "${1:-$(dirname "$0")/../..}"
LC_ALL=C
export LC_ALL

# The first pass lists the headers; the second reads every file.
sources=$(find base models schedule profiles planner simulator executor cli tests \
    -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' 2>/dev/null | sort)
[ -n "$sources" ] || exit 0
# shellcheck disable=SC2086
found=$(awk '
BEGIN {
    rank["base"] = 0
    rank["models"] = rank["schedule"] = 1
    rank["profiles"] = 2
    rank["planner"] = rank["simulator"] = rank["executor"] = 3
    rank["cli"] = 4
    rank["tests"] = 5
    for (i = 1; i < ARGC; i++)
        exists[ARGV[i]] = 1
}
function complain(what) { print FILENAME ":" FNR ": " what }
FNR == 1 {
    folder = FILENAME
    sub("/.*", "", folder)
    own = FILENAME
    is_first = sub("[.]cu?$", ".h", own) && (own in exists)
}
/^[ \t]*#[ \t]*include/ {
    line = $0
    sub("^[ \t]*#[ \t]*include[ \t]*", "", line)
    if (line ~ /^<cjson/ && FILENAME !~ "^(base/|tests/base/test_)json[^/]*[.]c$")
        complain("cJSON is met in base/json*.c only")
    if (line !~ /^"/) {
        if (is_first)
            complain("include \"" own "\" first")
        is_first = 0
        next
    }
    split(line, parts, "\"")
    path = parts[2]
    target = path
    sub("/.*", "", target)
    if (is_first && path != own)
        complain("include \"" own "\" first")
    is_first = 0
    if (!(target in rank) || path !~ "/")
        complain("\"" path "\" is not written from the root")
    else if (target != folder && rank[target] >= rank[folder])
        complain(folder " (rank " rank[folder] ") must not include \"" path "\" (rank " rank[target] ")")
}' $sources)
[ -z "$found" ] && exit 0
printf '%s\n' "$found"
exit 1
