#!/bin/sh
# What a terminal gets: tables that fit its width, and no bytes beyond ASCII under LC_ALL=C.
. tests/cli/tap.sh

if ! script -qec true /dev/null >/dev/null 2>&1 </dev/null; then
    skip "on a terminal" "script (of util-linux) cannot make one here"
    finish
fi
# on COLUMNS ARGUMENT...: degas on a terminal of that width; its output in $W/out, without what a slow search says of its progress
on() {
    columns=$1
    shift
    script -qec "stty cols $columns rows 50; $DEGAS $*" /dev/null 2>/dev/null </dev/null |
        sed "s/\r*searching[:,] [^\r\x1b]*\x1b\[K//g; s/\r\x1b\[K//g" | tr -d '\r' >"$W/out"
}
runs 0 "a plan" plan llama3-8b dgx-h100 --global-batch 64 --top 3 -o "$W/plan.json"
runs 0 "the same, printed" plan llama3-8b dgx-h100 --global-batch 64 --top 3
cp "$W/out" "$W/piped"
for columns in 40 60 80 100; do
    for what in "list schedules" "list models" "list clusters" "simulate $W/plan.json --explain"; do
        on "$columns" "$what"
        # Tables are indented there; what is not is prose.
        case "$what" in simulate*) sed -n '/^costs of/,$p' "$W/out" | grep '^  .*  ' >"$W/tables" && mv "$W/tables" "$W/out" ;; esac
        [ -s "$W/out" ] && [ "$(awk -v n="$columns" 'length($0) > n' "$W/out")" = "" ]
        report $? "${what%% *} ${what##* } fits $columns columns" "$(cat "$W/out")"
    done
    on "$columns" plan llama3-8b dgx-h100 --global-batch 64 --top 3
    [ "$columns" -ge 60 ] || continue
    sed -n '3,/^[*]/p' "$W/out" | awk -v n="$columns" 'length($0) > n' >"$W/long"
    grep -q '^best .*[0-9] s .* GiB *$' "$W/out" && [ ! -s "$W/long" ]
    report $? "plans fit $columns columns, with time and memory" "$(cat "$W/out")"
    tr '\n' ' ' <"$W/out" | grep -q "(left out to fit $columns columns: .*recompute none.*; a pipe gets all)"
    report $? "and it is said what was left out" "$(cat "$W/out")"
done
on 200 plan llama3-8b dgx-h100 --global-batch 64 --top 3
cmp -s "$W/out" "$W/piped"
report $? "a wide terminal gets what a pipe gets" "$(diff "$W/out" "$W/piped")"
! grep -q 'left out' "$W/piped"
report $? "a pipe gets all columns"

# A text that is too long is wrapped, and no word of it is lost.
"$DEGAS" list schedules | tr -s ' \n' '\n\n' | sort >"$W/words"
on 100 list schedules
tr -s ' \n' '\n\n' <"$W/out" | sort | cmp -s - "$W/words"
report $? "wrapped text keeps its words" "$(cat "$W/out")"

NO_COLOR=1
export NO_COLOR
# UTF-8 that is in a file and in an argument.
sed 's/"name": *"[^"]*"/"name": "modèle é"/' models/llama3-8b.json >"$W/m.json"
non_ascii() { LC_ALL=C grep -c '[^ -~[:space:]]' "$W/out"; }
for what in "show $W/m.json" "show $W/m.json --json" "plan $W/m.json dgx-h100 --global-batch 64" "show $W/é.json" \
    "simulate $W/plan.json --plot -" "schedule 1f1b --pp 2 --microbatches 3"; do
    LC_ALL=C.UTF-8 on 100 "$what"
    utf8=$(non_ascii)
    LC_ALL=C on 100 "$what"
    [ "$(non_ascii)" = 0 ] && [ -s "$W/out" ]
    report $? "LC_ALL=C: $(echo "$what" | sed "s,$W/,,g") has only ASCII ($utf8 lines of UTF-8 otherwise)" "$(cat "$W/out")"
    case "$what" in
    show*m.json)
        [ "$utf8" -gt 0 ]
        report $? "and UTF-8 where the terminal shows it" "$utf8"
        ;;
    esac
done
LC_ALL=C "$DEGAS" show "$W/m.json" | grep -q 'modèle é'
report $? "a pipe gets UTF-8 whatever the locale"
finish
