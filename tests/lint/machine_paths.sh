#!/bin/sh
# Prints every committed line that names a place on one machine; silent and 0 when there is none.
# usage: machine_paths.sh [ROOT]
set -eu
cd "${1:-$(dirname "$0")/../..}"
# In pieces, so that this file does not find itself.
pattern="(^|[^A-Za-z0-9_.~}])/(work|tm""p|home|ro""ot|Users)/[A-Za-z0-9_.]"
if git rev-parse --git-dir >/dev/null 2>&1; then
    found=$(git grep -n -I -E "$pattern" -- . || true)
else
    found=$(grep -r -n -I -E "$pattern" --exclude-dir=build --exclude-dir=.git . || true)
fi
[ -z "$found" ] && exit 0
printf '%s\n' "$found"
exit 1
