#!/bin/sh
# make install, make uninstall: the program, its plugins, manual pages, completions and documents under DESTDIR/PREFIX.
# What was installed stands in share/degas/installed there, files and then the folders that were made for them;
# uninstalling removes just these.  Nothing outside DESTDIR/PREFIX is touched.
# usage: install.sh BUILD_FOLDER PREFIX DESTDIR PLUGIN...     PLUGIN: degas-mpi.so
#        install.sh --remove PREFIX DESTDIR
set -eu
umask 022
remove=
[ "$1" != --remove ] || remove=1
build=$1
prefix=${2%/}
case "$prefix/" in
/*) ;;
*)
    echo "install: PREFIX is \"$2\"; expected a path that begins with /" >&2
    exit 2
    ;;
esac
root=${3%/}$prefix
shift 3
list=$root/share/degas/installed

# Of an earlier version, which may have had other files.
if [ -e "$list" ]; then
    while read -r path; do
        case "/$path/" in *"/../"*) continue ;; esac
        if [ -d "$root/$path" ] && [ ! -L "$root/$path" ]; then
            rmdir "$root/$path" 2>/dev/null || true
        else
            rm -f "$root/$path"
        fi
    done <"$list"
elif [ -n "$remove" ]; then
    echo "install: nothing of degas is installed in $root" >&2
    exit 1
fi
if [ -n "$remove" ]; then
    exit 0
fi

files='' folders=''
# folder PATH: makes it, and remembers which were not there
folder() {
    [ -d "$root/$1" ] || {
        case "$1" in */*) folder "${1%/*}" ;; esac
        mkdir -p "$root/$1"
        folders="$1
$folders"
    }
}

# put MODE PATH: standard input becomes that file, whole or not at all, as an old one may be running
put() {
    case "$2" in */*) folder "${2%/*}" ;; esac
    cat >"$root/$2.new"
    chmod "$1" "$root/$2.new"
    mv -f "$root/$2.new" "$root/$2"
    files="$files$2
"
}

mkdir -p "$root"
degas=$build/degas
put 755 bin/degas <"$degas"
for plugin; do
    put 644 "lib/degas/$plugin" <"$build/$plugin"
done
# The C library, where make libdegas has built it.
link() { # link TARGET PATH
    folder "${2%/*}"
    ln -sfn "$1" "$root/$2"
    files="$files$2
"
}
version=$("$degas" --version | sed 's/^degas //')
if [ -e "$build/libdegas.so.$version" ]; then
    put 644 "lib/libdegas.so.$version" <"$build/libdegas.so.$version"
    link "libdegas.so.$version" "lib/libdegas.so.${version%%.*}"
    link "libdegas.so.${version%%.*}" lib/libdegas.so
    put 644 include/degas.h <cli/library/degas.h
    put 644 lib/pkgconfig/degas.pc <<END
prefix=$prefix
libdir=\${prefix}/lib
Name: degas
Description: plans and simulates parallel training of large models
Version: $version
Cflags: -I\${prefix}/include
Libs: -L\${libdir} -ldegas
END
    for example in plan.c plan.py; do
        put 644 "share/doc/degas/examples/$example" <"examples/$example"
    done
fi
page=$(mktemp)
trap 'rm -f "$page"' EXIT INT TERM
write() { # write MODE PATH ARGUMENT...: what degas prints
    mode=$1 path=$2
    shift 2
    "$degas" "$@" >"$page" # its failure ends this script; that of the left side of a pipe would not
    put "$mode" "$path" <"$page"
}
write 644 share/man/man1/degas.1 help --man
for command in $("$degas" help --man | sed -n 's/^\\fBdegas\\-\([a-z]*\)\\fR(1)$/\1/p'); do
    write 644 "share/man/man1/degas-$command.1" help --man "$command"
done
# Where Debian's zsh looks for what packages bring.
functions=site-functions
[ "$prefix" != /usr ] || functions=vendor-completions
write 644 share/bash-completion/completions/degas completion bash
write 644 share/zsh/$functions/_degas completion zsh
write 644 share/fish/vendor_completions.d/degas.fish completion fish
for document in README.md CHANGELOG.md LICENSE docs/formats.md docs/glossary.md docs/cost-model.md; do
    put 644 "share/doc/degas/${document##*/}" <"$document"
done
folder share/degas
printf '%sshare/degas/installed\n%s' "$files" "$folders" | put 644 share/degas/installed
