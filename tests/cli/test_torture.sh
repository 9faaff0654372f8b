#!/bin/sh
# Some commands while open, read, write, fsync, rename, threads or memory fail, one call after the other; all
# commands and all calls are tests/long/torture.sh.
. tests/cli/tap.sh

T=$(dirname "$(readlink -f "$DEGAS")")/tests/torture
if [ ! -x "$T/torture" ]; then
    skip "torture" "a sanitizer's library does not let another be loaded before it"
    finish
fi
"$T/torture" "$DEGAS" "$T/faults.so" --few
