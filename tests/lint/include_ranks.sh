#!/bin/sh
# Prints every include that breaks the ranks of the tree in docs/architecture.md; silent and 0 when there is none.
#   - a folder includes itself and folders of a strictly lower rank; folders of one rank never meet
#   - within a folder, a room includes itself and rooms of a strictly lower rank
#   - every folder with code is a room of the tree, and every room has the main header that the tree names
#   - includes in quotes are written from the root
#   - a .c includes its own header, where it has one, first
#   - cJSON is met in base/json*.c, and their tests, only
# The tree's lines are "  ROOM/  FOLDER_RANK.ROOM_RANK  [MAIN_HEADER.h] purpose", rooms indented below their folder.
# usage: include_ranks.sh [ROOT]
set -eu
tree=$(cd "$(dirname "$0")/../.." && pwd)/docs/architecture.md
cd "${1:-$(dirname "$0")/../..}"
LC_ALL=C
export LC_ALL

sources=$(find base models schedule profiles planner simulator executor cli tests \
    -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' 2>/dev/null | sort)
[ -n "$sources" ] || exit 0
whole_tree=$([ -z "${1:-}" ] && echo 1 || echo 0)
# The first file is the tree of rooms; the others are read for their includes.
# shellcheck disable=SC2086
found=$(awk -v whole_tree="$whole_tree" '
BEGIN {
    for (i = 2; i < ARGC; i++)
        exists[ARGV[i]] = 1
}
function complain(what) { print FILENAME ":" FNR ": " what }

# The room of a path: the longest folder of the tree that it lies in.
function room_of(path) {
    while (sub("/[^/]*$", "", path))
        if (path in rank)
            return path
    return ""
}
NR == FNR {
    if ($0 ~ "^ *[a-z_]+/ +[0-9]+([.][0-9]+)?( |$)") {
        name = $1
        sub("/$", "", name)
        if ($0 !~ "^ ")
            folder = name
        else
            name = folder "/" name
        rank[name] = $2
        if ($3 ~ "[.]h$" && whole_tree == 1 && !((name "/" $3) in exists))
            complain("the main header " name "/" $3 " does not exist")
        else if ($3 !~ "[.]h$" && $0 ~ "^ ")
            complain("the room " name " names no main header")
    }
    next
}
FNR == 1 {
    room = room_of(FILENAME)
    directory = FILENAME
    sub("/[^/]*$", "", directory)
    folder = FILENAME
    sub("/.*", "", folder)
    if (folder != "tests" && room != directory)
        complain(directory "/ is no room of docs/architecture.md")
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
    if (is_first && path != own)
        complain("include \"" own "\" first")
    is_first = 0
    target = path
    sub("/.*", "", target)
    target_room = target == "tests" ? target : room_of(path)
    if (path !~ "/" || (target != "tests" && target_room == ""))
        complain("\"" path "\" is not written from the root")
    else if (folder == "tests")
        ;
    else if (target == "tests")
        complain(folder " must not include \"" path "\" of the tests")
    else if (target != folder && int(rank[target]) >= int(rank[folder]))
        complain(folder " (rank " int(rank[folder]) ") must not include \"" path "\" (rank " int(rank[target]) ")")
    else if (target == folder && target_room != room && rank[target_room] + 0 >= rank[room] + 0)
        complain(room " (rank " rank[room] ") must not include \"" path "\" (rank " rank[target_room] ")")
}' "$tree" $sources)
[ -z "$found" ] && exit 0
printf '%s\n' "$found"
exit 1
