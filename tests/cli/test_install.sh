#!/bin/sh
# make install and uninstall, into a temporary folder.
. tests/cli/tap.sh

case "$(dirname "$(readlink -f "$DEGAS")")" in
*/release) ;;
*)
    skip "make install" "only of the release build"
    finish
    ;;
esac
build=$(dirname "$(readlink -f "$DEGAS")")
plugins=$(cd "$build" && ls degas-*.so 2>/dev/null)
to="$W/a root"
prefix=/opt/degas-test-$$
at=$to$prefix

# install STATUS NAME ARGUMENT...: the script that make install calls
install() {
    want=$1 name=$2
    shift 2
    scripts/install.sh "$@" >"$W/out" 2>"$W/err"
    got=$?
    [ "$got" = "$want" ]
    report $? "$name" "status $got: $(cat "$W/err")"
}

# What make would do, without another build beside this one.
make -n install PREFIX="$prefix" DESTDIR="$to" 2>/dev/null | grep -q "scripts/install.sh [^ ]*release \"$prefix\" \"$to\""
report $? "make install hands over PREFIX and DESTDIR" "$(make -n install PREFIX="$prefix" DESTDIR="$to" 2>&1 | tail -2)"
make -n uninstall PREFIX="$prefix" DESTDIR="$to" 2>/dev/null | grep -q "scripts/install.sh --remove \"$prefix\" \"$to\""
report $? "make uninstall does, too"
install 2 "a PREFIX that is no absolute path is refused" "$build" usr "$to"
[ ! -e "$to" ]
report $? "and nothing is written"

mkdir -p "$at/share/man" "$at/bin"
echo mine >"$at/bin/other"
# shellcheck disable=SC2086
install 0 "it installs" "$build" "$prefix" "$to" $plugins
(cd / && env -i PATH=/usr/bin:/bin "$at/bin/degas" --version) >"$W/out" 2>"$W/err"
report $? "the installed program runs from elsewhere" "$(cat "$W/err")"
for f in share/man/man1/degas.1 share/man/man1/degas-plan.1 share/man/man1/degas-completion.1 \
    share/bash-completion/completions/degas share/zsh/site-functions/_degas \
    share/fish/vendor_completions.d/degas.fish share/doc/degas/README.md; do
    [ -s "$at/$f" ] || missing="${missing:-}$f "
done
[ -z "${missing:-}" ]
report $? "pages, completions and documents are there" "${missing:-}"
[ ! -e "$prefix" ] && [ "$(ls "$to")" = opt ]
report $? "nothing is outside DESTDIR/PREFIX" "$(find "$to")"

# A plugin is found where it is installed, and only there.
case "$plugins" in
*degas-mpi.so*)
    runs 0 "a plan for two ranks" plan gpt-mini local-cpu --gpus 2 --global-batch 8 --dtype fp32 -o "$W/plan.json"
    rm "$at/lib/degas/degas-mpi.so"
    says() { # says PATTERN NAME: why it cannot run by MPI
        env OMPI_COMM_WORLD_SIZE=1 "$at/bin/degas" run "$W/plan.json" --transport mpi >"$W/out" 2>"$W/err" </dev/null
        grep -q "$1" "$W/err"
        report $? "$2" "$(cat "$W/err")"
    }
    says 'degas-mpi.so is not built' "without its plugin the installed program says so"
    echo "no plugin" >"$at/lib/degas/degas-mpi.so"
    says 'degas-mpi.so cannot be opened' "a plugin is looked for in lib/degas"
    install 0 "a second time" "$build" "$prefix" "$to" degas-mpi.so
    cmp -s "$build/degas-mpi.so" "$at/lib/degas/degas-mpi.so"
    report $? "the plugin is replaced"
    [ ! -e "$at/lib/degas/degas-cuda.so" ]
    report $? "what an earlier version had is gone" ""
    ;;
*) skip "a plugin is found where it is installed" "the plugin for MPI is not built" ;;
esac

install 0 "it uninstalls" --remove "$prefix" "$to"
left=$(cd "$at" && find . | LC_ALL=C sort | tr '\n' ' ')
[ "$left" = ". ./bin ./bin/other ./share ./share/man " ]
report $? "what was there before is left, and nothing else" "$left"
install 1 "there is nothing to uninstall twice" --remove "$prefix" "$to"

version=$("$DEGAS" --version | cut -d' ' -f2)
[ "$(sed -n 's/^## \([0-9.]*\) - .*/\1/p' CHANGELOG.md | head -1)" = "$version" ]
report $? "the newest version of CHANGELOG.md is the program's" "$(grep '^## ' CHANGELOG.md)"
"$DEGAS" help --man | grep -q "$(sed -n 's/^## [0-9.]* - //p' CHANGELOG.md | head -1)"
report $? "its day is that of the manual page"
# The words of the Containerfile's COPY and RUN lines that are files of this tree.
for f in $(sed -n 's/.*\(scripts\/[a-z_]*\.sh\).*/\1/p' Containerfile); do
    [ -x "$f" ] || gone="${gone:-}$f "
done
[ -z "${gone:-}" ] && grep -q '^deb:' Makefile
report $? "the Containerfile calls what is there" "${gone:-}"
finish
