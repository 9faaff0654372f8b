#!/bin/sh
# Prints every path and C identifier that README, CONTRIBUTING or docs/ name in backticks and that does not exist;
# silent and 0 when there is none.
#   - `folder/file.c`, `folder/`: a path from the root that begins with one of its folders
#   - `snake_case()`: a function of the code or the tests;  `TypeName`, in docs/glossary.md: a type
# Also every mark of a merge that was not finished.
# usage: docs_true.sh [ROOT]
set -eu
cd "${1:-$(dirname "$0")/../..}"
LC_ALL=C
export LC_ALL
failed=0
pages=$(find README.md CONTRIBUTING.md docs -name '*.md' 2>/dev/null | sort)
[ -n "$pages" ] || exit 0
folders='base|models|schedule|profiles|planner|simulator|executor|cli|tests|scripts|docs'

# shellcheck disable=SC2086
for found in $(grep -noE "\`($folders)/[A-Za-z0-9_./{},-]*\`" $pages /dev/null | tr -d '`' | sort -u); do
    path=${found##*:}
    case "$path" in *"{"* | *[A-Z][A-Z][A-Z]*) continue ;; esac
    [ -e "$path" ] || { echo "$found does not exist" && failed=1; }
done
# shellcheck disable=SC2086
for found in $(grep -snoE '^(<<<<<<<|=======|>>>>>>>)( |$)' $pages CHANGELOG.md /dev/null | tr -d ' '); do
    echo "$found is a mark of a merge" && failed=1
done
words=$(mktemp)
trap 'rm -f "$words"' EXIT INT TERM
grep -rhoE '\b[A-Za-z_][A-Za-z0-9_]*\b' base models schedule profiles planner simulator executor cli tests \
    --include='*.[ch]' --include='*.cu' --include='*.cuh' --include='*.cc' --include='*.hh' 2>/dev/null |
    sort -u >"$words"
# shellcheck disable=SC2086
for found in $(grep -noE "\`[a-z]+_[a-z0-9_]+\(\)\`" $pages /dev/null | tr -d '`()' | sort -u) \
    $(grep -noE "\`(Model|Schedule|Trace|Profile|Plan|Sim|Exec|Workload|Report)[A-Z][A-Za-z]+\`" $pages /dev/null |
        tr -d '`' | sort -u); do
    grep -qxF -- "${found##*:}" "$words" || { echo "$found is not in the code" && failed=1; }
done
exit "$failed"
