#!/bin/sh
# Help, version, unknown commands and options.
. tests/cli/tap.sh

commands=$("$DEGAS" --help | sed -n 's/^  \([a-z][a-z]*\)  .*/\1/p')
for c in plan simulate slices schedule profile run compare validate calibrate import plot export list show; do
    printf '%s\n' "$commands" | grep -q "^$c\$"
    report $? "--help lists $c" "$commands"
done
runs 0 "-h" -h
[ "$(wc -l <"$W/out")" -le 24 ] && [ "$(awk 'length($0) > 80' "$W/out")" = "" ]
report $? "-h fits 80 x 24" "$(cat "$W/out")"
runs 0 "--help" --help
lint() {
    if command -v mandoc >/dev/null 2>&1; then
        found=$(mandoc -Tlint -W warning "$W/page.1" 2>&1)
    else
        found=$(man --warnings -l "$W/page.1" 2>&1 >/dev/null) || found="man fails: $found"
    fi
    [ -z "$found" ]
    report $? "the manual page of $1 is sound" "$found"
}
for shell in bash zsh fish; do
    "$DEGAS" completion $shell >"$W/$shell"
    if command -v $shell >/dev/null 2>&1; then
        $shell -n "$W/$shell" 2>"$W/err"
        report $? "the completion is a $shell script" "$(cat "$W/err")"
    else
        skip "the completion is a $shell script" "$shell is not installed"
    fi
done
"$DEGAS" help --man >"$W/page.1"
! command -v man >/dev/null 2>&1 || lint degas
# Exit statuses: the page's are those of docs/formats.md.
sed -n 's/^| \([0-9][0-9]*\) | \(.*\) |$/\1 \2/p' docs/formats.md | tr -d '`' >"$W/documented"
awk '/^.SH EXIT/ { on = 1 } /^.SH ENV/ { on = 0 } on && /^[0-9]+$/ { n = $0; getline; print n, $0 }' "$W/page.1" |
    sed 's/\\-/-/g' | cmp -s - "$W/documented"
report $? "the manual page has the exit statuses of docs/formats.md" "$(cat "$W/documented")"
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
    "$DEGAS" help --man "$c" >"$W/page.1"
    ! command -v man >/dev/null 2>&1 || lint "$c"
    missing=
    for o in $(sed -n 's/^  \(-o, \)*--\([a-z-]*\).*/\2/p' "$W/help"); do
        [ "$o" != help ] || continue
        grep "^    '$c options')" "$W/bash" | grep -q -- "--$o " && grep -q -- "'--${o}[=[]" "$W/zsh" &&
            grep -q "__degas_at $c' -l $o " "$W/fish" &&
            sed 's/\\-/-/g' "$W/page.1" | grep -q -- "--$o.fR" || missing="$missing $o"
    done
    [ -z "$missing" ]
    report $? "completions and the manual page have all options of $c" "missing:$missing"
    runs 0 "$c -h" "$c" -h
    [ "$(wc -l <"$W/out")" -le 24 ] && [ "$(awk 'length($0) > 80' "$W/out")" = "" ]
    report $? "$c -h fits 80 x 24" "$(cat "$W/out")"
    fails 2 'unknown option' "$c refuses an unknown option" "$c" --no-such-option
done
[ "$("$DEGAS" --help | awk 'length($0) > 80')" = "" ]
report $? "--help fits 80 columns" "$("$DEGAS" --help)"

# What each shell offers after these words, of which the last is begun.
cat >"$W/offers.bash" <<'EOF'
. "$1"
shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_degas
echo "${COMPREPLY[*]}"
EOF
# fish says it itself; zsh only to a terminal: one is made, which lists the choices.
cat >"$W/offers.py" <<'EOF'
import fcntl, os, pty, re, select, struct, subprocess, sys, termios
shell, folder, *asked = sys.argv[1:]
if shell == 'fish':
    for words in asked:
        code = "source %s/fish; complete -C 'degas %s'" % (folder, words)
        told = subprocess.run(['fish', '--no-config', '-c', code], capture_output=True, text=True, env={**os.environ, 'HOME': folder})
        print(' '.join(sorted({line.split('\t')[0].split('=')[-1] for line in told.stdout.splitlines()})), told.stderr)
    sys.exit()
os.makedirs(folder + '/functions')
os.rename(folder + '/zsh', folder + '/functions/_degas')
pid, fd = pty.fork()
if pid == 0:
    os.environ.update(TERM='dumb', HOME=folder)
    os.execvp('zsh', ['zsh', '-f', '-i'])
fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack('HHHH', 200, 200, 0, 0))
def read(pattern):
    got = ''
    while not re.search(pattern, got, re.S) and select.select([fd], [], [], 10)[0]:
        got += os.read(fd, 65536).decode()
    return got
# Ctrl-T lists the choices below the line and shows the line again; Ctrl-U empties it.
os.write(fd, b"PS1=READY'>'; PROMPT_EOL_MARK=; unset zle_bracketed_paste; fpath=(%s/functions $fpath); autoload -Uz compinit; "
             b"compinit -u -D; LISTMAX=100000; zstyle ':completion:*' verbose no; bindkey '^T' list-choices\n" % folder.encode())
read('READY>')
for words in asked:
    os.write(fd, b'degas ' + words.encode() + b'\x14\x15echo DO""NE\n')
    got = read('\r\nDONE.*READY>')
    lines = got.replace('\r', '\n').split('\n')
    shown = [line for line in lines if line and 'READY>' not in line and 'DO' not in line and not line.startswith('degas ' + words)]
    print(' '.join(sorted({w for line in shown for w in line.split()})))
EOF
offers() { # offers WORDS WORD...
    want=$1
    shift
    if command -v bash >/dev/null 2>&1; then
        got=$(bash "$W/offers.bash" "$W/bash" degas "$@")
        [ "$got" = "$want" ]
        report $? "completion of: $*" "offered $got, not $want"
    else
        skip "completion of: $*" "bash is not installed"
    fi
    printf '%s\n' "$*" | sed 's/ = /=/' >>"$W/asked"
    printf '%s\n' "$want" | tr ' ' '\n' | sort | tr '\n' ' ' | sed 's/ $//' >>"$W/wanted"
    echo >>"$W/wanted"
}
offers "plan plot" pl
offers "llama3-405b llama3-70b llama3-8b" plan llama3-
offers "dgx-h100 dgx-h200" plan llama3-8b --gpus 64 dgx-h
offers "bf16" plan gpt2 dgx-h100 --dtype = b
offers "auto none selective full" plan gpt2 dgx-h100 --recompute ""
offers "" plan gpt2 dgx-h100 --gpus ""
offers "zb-h1 zb-h2" schedule zb-h
offers "README.md" simulate READM
offers "models" run plan.json --checkpoint model
for shell in zsh fish; do
    if ! command -v $shell >/dev/null 2>&1 || ! command -v python3 >/dev/null 2>&1; then
        skip "the same completions by $shell" "$shell or python3 is not installed"
        continue
    fi
    set --
    while IFS= read -r words; do set -- "$@" "$words"; done <"$W/asked"
    python3 "$W/offers.py" $shell "$W" "$@" 2>&1 | sed 's/ *$//; s|/$||' >"$W/offered"
    cmp -s "$W/offered" "$W/wanted"
    report $? "the same completions by $shell" "$(paste "$W/asked" "$W/wanted" "$W/offered")"
done
fails 2 'none of bash, zsh, fish' "a shell that is not known" completion tcsh
fails 2 'did you mean "plan"' "help suggests a command" help pln
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
