#!/bin/sh
# Whether a program that uses a library links here: that, not a file or a package, is what having it
# means.  Prints 1 or 0.
# usage: links.sh HEADER EXPRESSION 'COMPILER FLAGS' LIBRARIES
#        links.sh mpi.h 'MPI_Init(0, 0)' mpicc ''
to=$(mktemp) || exit 1
trap 'rm -f "$to"' EXIT
# shellcheck disable=SC2086
printf '#include <%s>\nint main(void) { return (int)(%s); }\n' "$1" "$2" |
    $3 -x c -o "$to" - -x none $4 >/dev/null 2>&1 && echo 1 || echo 0
