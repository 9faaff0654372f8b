#!/bin/sh
# TAP: the rules of the house that need nothing but a compiler, and that the rules are watched.
# usage: test_house.sh   (from anywhere)
# Test runner: first.
set -u
here=$(cd "$(dirname "$0")" && pwd)
n=0
failed=0

# report STATUS NAME OUTPUT
report() {
    n=$((n + 1))
    if [ "$1" = 0 ]; then
        echo "ok $n - $2"
    else
        echo "not ok $n - $2"
        printf '%s\n' "$3" | sed 's/^/# /'
        failed=1
    fi
}

# clean SCRIPT NAME: the script finds nothing in this tree
clean() {
    output=$("$here/$1" 2>&1)
    status=$?
    [ -z "$output" ] || status=1
    report "$status" "$2" "$output"
}

clean include_ranks.sh "folders and rooms include themselves and lower ranks only"
clean headers_alone.sh "every header compiles alone"
clean headers_lead.sh "every header leads to the code of its functions"
clean machine_paths.sh "nothing committed names a place on one machine"
clean recipes.sh "recipes of CONTRIBUTING.md name just the files that they touch"
clean docs_true.sh "pages name files and functions that exist"

# Each rule must also be seen to bite, in a tree that breaks it.
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT INT TERM
mkdir -p "$tree/base" "$tree/models" "$tree/schedule" "$tree/planner" "$tree/simulator" \
    "$tree/executor/device" "$tree/executor/run" "$tree/executor/cuda" "$tree/executor/attic"

# bites SCRIPT FILE TEXT EXPECTED NAME: with TEXT in FILE, the script complains with EXPECTED
bites() {
    printf '%b' "$3" >"$tree/$2"
    output=$("$here/$1" "$tree" 2>&1)
    status=$?
    rm "$tree/$2"
    case "$status $output" in
    0*) report 1 "$5" "accepted" ;;
    *"$4"*) report 0 "$5" "" ;;
    *) report 1 "$5" "$output" ;;
    esac
}

bites include_ranks.sh base/a.c '#include "models/arch.h"\n' \
    'base/a.c:1: base (rank 0) must not include "models/arch.h" (rank 1)' \
    "a higher rank is refused"
bites include_ranks.sh planner/a.c '\n#include "simulator/engine.h"\n' \
    'planner/a.c:2: planner (rank 3) must not include' "a sibling is refused"
bites include_ranks.sh executor/device/a.c '#include "executor/run/run.h"\n' \
    'executor/device/a.c:1: executor/device (rank 3.0) must not include "executor/run/run.h" (rank 3.4)' \
    "a room of a higher rank is refused"
bites include_ranks.sh executor/cuda/a.c '#include "executor/mpi/state.h"\n' \
    'executor/cuda (rank 3.2) must not include' "a room of the same rank is refused"
bites include_ranks.sh executor/attic/a.c '\n' 'executor/attic/ is no room' \
    "a folder that the tree does not name is refused"
bites include_ranks.sh models/a.c '#include "arch.h"\n' '"arch.h" is not written from the root' \
    "an include that is not from the root is refused"
bites include_ranks.sh models/a.c '#include <cjson/cJSON.h>\n' 'cJSON is met' \
    "cJSON outside base/json is refused"
printf '' >"$tree/models/b.h"
bites include_ranks.sh models/b.c '#include <glib.h>\n' 'models/b.c:1: include "models/b.h" first' \
    "another header before the own one is refused"
rm "$tree/models/b.h"
bites headers_alone.sh base/a.h 'int64_t f(void);\n' 'base/a.h: does not compile alone' \
    "a header that needs another is refused"
recipe='### To add a thing\n<!-- example: thing_new -->\n1. `base/a.c`: its code.\n'
bites recipes.sh CONTRIBUTING.md "$recipe" 'names base/a.c, where thing_new is not found' \
    "a recipe that names a file too many is found"
printf 'int thing_new;\n' >"$tree/base/b.c"
printf 'int thing_new;\n' >"$tree/base/a.c"
bites recipes.sh CONTRIBUTING.md "$recipe" 'does not name base/b.c' "a recipe that forgets a file is found"
rm "$tree/base/a.c" "$tree/base/b.c"
bites docs_true.sh README.md 'See `base/none.c`.\n' 'base/none.c does not exist' \
    "a page that names no file is found"
bites docs_true.sh README.md 'See `thing_free()`.\n' 'thing_free is not in the code' \
    "a page that names no function is found"
bites docs_true.sh README.md 'One\n=======\nTwo\n' 'README.md:2:======= is a mark of a merge' \
    "a merge that was not finished is found"
# Not a repository, wherever temporary files are kept: all its files count.
GIT_DIR="$tree/none"
export GIT_DIR
printf 'void a_go(void);\n' >"$tree/base/a.h"
bites headers_lead.sh base/b.c '#include "base/a.h"\n\nvoid\na_go(void)\n{\n}\n' \
    'base/a.h: a_go() is defined in base/b.c' "a function that its header does not lead to is found"
rm "$tree/base/a.h"
bites machine_paths.sh base/a.txt "see /ho""me/me/file\n" 'base/a.txt:1' \
    "a place on one machine is found"

echo "1..$n"
exit "$failed"
