#!/bin/sh
# What is built is hardened, as the loader will see it: position-independent, nothing writable that need not be (full RELRO),
# no executable stack, canaries on stacks, checked copies.
. tests/cli/tap.sh

build=$(dirname "$(readlink -f "$DEGAS")")
if ! command -v readelf >/dev/null 2>&1; then
    skip "hardened binaries" "readelf is not installed"
    finish
fi
case $build in
*/release) ;;
*)
    skip "hardened binaries" "a sanitizer has its own checks"
    finish
    ;;
esac

# says FILE OPTION PATTERN NAME: readelf OPTION FILE has a line with PATTERN
says() {
    readelf -W "$2" "$1" 2>/dev/null | grep -q "$3"
    report $? "${1##*/}: $4" "$(readelf -W "$2" "$1" 2>&1 | head -20)"
}

for f in "$DEGAS" "$build"/degas-*.so "$build"/libdegas.so.0; do
    [ -f "$f" ] || continue
    says "$f" -h 'Type: *DYN' "loads at any address"
    says "$f" -l 'GNU_RELRO' "what is relocated is read-only afterwards"
    says "$f" -d 'BIND_NOW\|Flags: NOW' "so are the addresses of functions"
    says "$f" -l 'GNU_STACK.* RW ' "the stack is not executable"
    ! readelf -Wd "$f" | grep -q TEXTREL
    report $? "${f##*/}: no code is relocated"
done
says "$DEGAS" --dyn-syms '__stack_chk_fail' "stacks have canaries"
says "$DEGAS" --dyn-syms '__[a-z]*_chk' "copies are checked"
finish
