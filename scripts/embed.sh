#!/bin/sh
# Prints an assembler file that packs the named files into the table of base/embedded.c.
# usage: embed.sh FILE...   (paths relative to the source root, where it is run)
set -eu
LC_ALL=C
export LC_ALL
files=$(printf '%s\n' "$@" | sort)
printf '\t.section .rodata\n'
i=0
for f in $files; do
    printf '.Lpath%d:\t.asciz "%s"\n.Ltext%d:\t.incbin "%s"\n.Lend%d:\t.byte 0\n' \
        "$i" "$f" "$i" "$f" "$i"
    i=$((i + 1))
done
printf '\t.section .data.rel.ro,"aw"\n\t.balign 8\n\t.globl embedded_data\nembedded_data:\n'
i=0
for f in $files; do
    printf '\t.quad .Lpath%d, .Ltext%d, .Lend%d\n' "$i" "$i" "$i"
    i=$((i + 1))
done
printf '\t.globl embedded_data_end\nembedded_data_end:\n\t.section .note.GNU-stack,"",@progbits\n'
