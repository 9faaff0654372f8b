#!/bin/sh
# Help, version, unknown commands and options.
. tests/cli/tap.sh

commands=$("$DEGAS" --help | sed -n 's/^  \([a-z][a-z]*\)  .*/\1/p')
for c in plan simulate slices schedule profile run compare validate calibrate import plot export list show; do
    printf '%s\n' "$commands" | grep -q "^$c\$"
    report $? "--help lists $c" "$commands"
done
runs 0 "--help" --help
for c in $commands; do
    runs 0 "$c --help" "$c" --help
    [ "$(awk '{ if (length($0) > 80) print }' "$W/out")" = "" ]
    report $? "$c --help fits 80 columns" "$(awk 'length($0) > 80' "$W/out")"
    [ -s "$W/out" ] && [ ! -s "$W/err" ]
    report $? "$c --help is on stdout" "$(cat "$W/err")"
    cp "$W/out" "$W/help"
    runs 0 "help $c" help "$c"
    cmp -s "$W/out" "$W/help"
    report $? "help $c is $c --help"
    fails 2 'unknown option' "$c refuses an unknown option" "$c" --no-such-option
done
runs 0 "--version" --version
has '^degas [0-9]' "--version names the program and a number"
fails 2 'command is missing' "no command"
fails 2 'did you mean "plan"' "a misspelt command is suggested" pln
fails 2 'did you mean "simulate"' "a misspelt command is suggested (transposition)" simualte
fails 2 'unknown command' "a far command is not guessed" xyzzy
fails 2 'did you mean "--global-batch"' "a misspelt option is suggested" \
    plan gpt3-13b dgx-a100-80g --globl-batch 4
fails 2 '--tp needs a value' "an option without its value" plan gpt3-13b dgx-a100-80g --tp
fails 2 '--tp needs a value' "an option in place of a value" \
    plan gpt3-13b dgx-a100-80g --tp --json
fails 2 '--json takes no value' "a switch with a value" \
    plan gpt3-13b dgx-a100-80g --global-batch 8 --json=yes
fails 2 'argument is missing' "a missing argument" plan gpt3-13b
fails 2 'unexpected argument "c"' "one argument too many" plan a b c
fails 4 'no-such-file' "what follows -- is no option" simulate -- no-such-file
finish
