#!/bin/sh
# make deb: Debian packages for the release that they are built on: degas, the program and the plugin for MPI; libdegas0, the C
# library; libdegas-dev, its header, its file for pkg-config and its examples.  The plugin for CUDA is in none, since its
# libraries are no packages of Debian's: make install puts it where it belongs.
# usage: deb.sh BUILD_FOLDER PLUGIN...     writes NAME_VERSION_ARCHITECTURE.deb there and prints their paths
set -eu
umask 022
build=$1
shift
for tool in dpkg-deb dpkg-shlibdeps strip; do
    command -v $tool >/dev/null 2>&1 || {
        echo "deb: $tool is missing; install dpkg-dev and binutils" >&2
        exit 6
    }
done
plugins=
for plugin; do
    [ "$plugin" != degas-mpi.so ] || plugins=$plugin
done
version=$("$build/degas" --version | cut -d' ' -f2)
day=$(sed -n "s/^## $version - //p" CHANGELOG.md)
[ -n "$day" ] || {
    echo "deb: CHANGELOG.md has no line \"## $version - DAY\"" >&2
    exit 1
}
architecture=$(dpkg --print-architecture)
maintainer=${DEB_MAINTAINER:-"$(git log -1 --format='%an <%ae>' 2>/dev/null || echo 'degas <root@localhost>')"}
# The same tree gives the same bytes.
SOURCE_DATE_EPOCH=$(date -u -d "$day" +%s)
export SOURCE_DATE_EPOCH

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM
root=$work/debian/degas
doc=$root/usr/share/doc/degas
mkdir -p "$root/DEBIAN"
# shellcheck disable=SC2086
scripts/install.sh "$build" /usr "$root" $plugins
rm -r "$root/usr/share/degas" # dpkg keeps its own list
strip --strip-all --remove-section=.comment --remove-section=.note "$root/usr/bin/degas"
[ -z "$plugins" ] || strip --strip-unneeded --remove-section=.comment --remove-section=.note "$root"/usr/lib/degas/*.so

rm "$doc/LICENSE"
# The C library's files are packages of their own; a library lies where programs of its architecture look.
libraries=$work/debian/libdegas0
headers=$work/debian/libdegas-dev
place=usr/lib/$(dpkg-architecture -qDEB_HOST_MULTIARCH)
library=libdegas.so.$version
name=libdegas.so.${version%%.*}
mkdir -p "$libraries/DEBIAN" "$headers/DEBIAN" "$libraries/$place" "$headers/$place" "$headers/usr/share/doc/libdegas-dev"
mv "$root/usr/lib/$library" "$root/usr/lib/$name" "$libraries/$place"
strip --strip-unneeded --remove-section=.comment --remove-section=.note "$libraries/$place/$library"
mv "$root/usr/include" "$headers/usr"
mv "$root/usr/lib/libdegas.so" "$root/usr/lib/pkgconfig" "$headers/$place"
sed -i "s|^libdir=.*|libdir=/$place|" "$headers/$place/pkgconfig/degas.pc"
mv "$doc/examples" "$headers/usr/share/doc/libdegas-dev"
[ -n "$plugins" ] || rmdir "$root/usr/lib"

# documents PACKAGE_ROOT PACKAGE: what each package says of itself
documents() {
    mkdir -p "$1/usr/share/doc/$2"
    cat >"$1/usr/share/doc/$2/copyright" <<END
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: degas

Files: *
Copyright: ${day%%-*} the authors of degas
License: Apache-2.0

License: Apache-2.0
 On Debian systems the complete text of the Apache License, Version 2.0, is in
 /usr/share/common-licenses/Apache-2.0.
END
    gzip -9n >"$1/usr/share/doc/$2/changelog.gz" <<END
degas ($version) unstable; urgency=medium

  * Version $version; CHANGELOG.md says what is new.

 -- $maintainer  $(LC_ALL=C date -u -R -d "$day")
END
}
documents "$root" degas
documents "$libraries" libdegas0
documents "$headers" libdegas-dev
gzip -9n "$root"/usr/share/man/man1/*.1

# What they need follows from what they are linked with; what the program opens when asked is recommended.
cat >"$work/debian/control" <<END
Source: degas

Package: degas
Architecture: any

Package: libdegas0
Architecture: any
END
(
    cd "$work"
    # shellcheck disable=SC2086
    dpkg-shlibdeps -Tsubstvars -dDepends debian/degas/usr/bin/degas \
        ${plugins:+-dRecommends debian/degas/usr/lib/degas/$plugins}
    dpkg-shlibdeps -Tsubstvars.library "debian/libdegas0/$place/$library"
    dpkg-gensymbols -plibdegas0 "-v$version" "-edebian/libdegas0/$place/$library" -Pdebian/libdegas0 -Odebian/libdegas0/DEBIAN/symbols
) >&2
printf 'libdegas %s libdegas0 (>= %s)\n' "${version%%.*}" "$version" >"$libraries/DEBIAN/shlibs"
echo 'activate-noawait ldconfig' >"$libraries/DEBIAN/triggers"
needs() { sed -n "s/^shlibs:$1=//p" "$work/$2"; }
mpi=$(needs Recommends substvars)

# package ROOT NAME < FIELDS: the fields that differ, the description last
package() {
    {
        printf 'Package: %s\nSource: degas\nVersion: %s\nArchitecture: %s\nMaintainer: %s\nInstalled-Size: %s\nPriority: optional\n' \
            "$2" "$version" "$architecture" "$maintainer" "$(du -sk --apparent-size "$1/usr" | cut -f1)"
        cat
    } >"$1/DEBIAN/control"
    [ "$2" != degas ] || sed -i '/^Source:/d' "$1/DEBIAN/control" # it is its own
    (cd "$1" && find usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum >DEBIAN/md5sums)
    dpkg-deb --root-owner-group -Zxz --build "$1" "$build/$2_${version}_$architecture.deb" >&2
    echo "$build/$2_${version}_$architecture.deb"
}
package "$libraries" libdegas0 <<END
Depends: $(needs Depends substvars.library)
Section: libs
Multi-Arch: same
Description: planner and simulator of distributed training as a C library
 libdegas answers how the training of a large Transformer is best split over
 many devices, how long a step takes and whether it fits into memory.  Values go
 in and come out; it prints nothing, and any number of threads may call it.
END
package "$headers" libdegas-dev <<END
Depends: libdegas0 (= $version)
Section: libdevel
Multi-Arch: same
Description: header and examples of the C library of degas
 What programs in C need to be built with libdegas, the planner and simulator of
 distributed training of Transformers: its header, its file for pkg-config, and
 examples in C and in Python.
END
package "$root" degas <<END
Depends: $(needs Depends substvars)
Recommends: gnuplot-nox | gnuplot, libopenblas0-pthread | libopenblas0${mpi:+, $mpi}
Suggests: openmpi-bin, libmicrohttpd12
Section: science
Description: planner and simulator of distributed training of Transformers
 degas says how the training of a large Transformer is best split over many
 devices (data, tensor, pipeline, context and expert parallelism, micro-batches,
 slices and schedules), how long a step takes and whether it fits into memory.
 It measures what ops cost on a machine, runs plans, and compares what was
 measured with what was predicted.  No GPU is needed to ask.
END
