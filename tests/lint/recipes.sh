#!/bin/sh
# Prints every recipe of CONTRIBUTING.md that does not name just the files that its example touches; silent and 0
# when there is none.  A recipe is a section "### To add ..." with a line
#     <!-- example: PATTERN -->
# PATTERN is an extended regular expression that finds the example in files; the files that a numbered line of the
# section begins with, "1. `FILE` ...", must be all files of the program's folders that PATTERN is found in, and
# PATTERN must be found in each of them, documents and tests too.
# usage: recipes.sh [ROOT]
set -eu
cd "${1:-$(dirname "$0")/../..}"
LC_ALL=C
export LC_ALL
[ -f CONTRIBUTING.md ] || exit 0
failed=0
section=
pattern=
listed=

# Compares the files that the section lists with those that the example is found in.
check_section() {
    [ -n "$section" ] || return 0
    if [ -z "$pattern" ]; then
        echo "CONTRIBUTING.md: \"$section\" has no example"
        failed=1
        return 0
    fi
    found=$(grep -rlE -- "$pattern" base models schedule profiles planner simulator executor cli 2>/dev/null | sort || true)
    for file in $found; do
        case " $listed " in
        *" $file "*) ;;
        *)
            echo "CONTRIBUTING.md: \"$section\" does not name $file, where $pattern is found"
            failed=1
            ;;
        esac
    done
    for file in $listed; do
        if ! grep -qE -- "$pattern" "$file" 2>/dev/null; then
            echo "CONTRIBUTING.md: \"$section\" names $file, where $pattern is not found"
            failed=1
        fi
    done
}

while IFS= read -r line; do
    case "$line" in
    "### To add "*)
        check_section
        section=${line#"### "}
        pattern=
        listed=
        ;;
    "#"*)
        check_section
        section=
        ;;
    "<!-- example: "*)
        pattern=${line#"<!-- example: "}
        pattern=${pattern%" -->"}
        ;;
    [0-9]". \`"* | [0-9][0-9]". \`"*)
        file=${line#*\`}
        listed="$listed ${file%%\`*}"
        ;;
    esac
done <CONTRIBUTING.md
check_section
exit "$failed"
