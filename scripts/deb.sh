#!/bin/sh
# make deb: a Debian package of the program and the plugin for MPI, for the release that it is built on.  The plugin for
# CUDA is not in it, since its libraries are no packages of Debian's: make install puts it where it belongs.
# usage: deb.sh BUILD_FOLDER PLUGIN...     writes degas_VERSION_ARCHITECTURE.deb there and prints its path
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
cat >"$doc/copyright" <<END
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: degas

Files: *
Copyright: ${day%%-*} the authors of degas
License: Apache-2.0

License: Apache-2.0
 On Debian systems the complete text of the Apache License, Version 2.0, is in
 /usr/share/common-licenses/Apache-2.0.
END
cat >"$doc/changelog" <<END
degas ($version) unstable; urgency=medium

  * Version $version; CHANGELOG.md says what is new.

 -- $maintainer  $(LC_ALL=C date -u -R -d "$day")
END
gzip -9n "$doc/changelog" "$root"/usr/share/man/man1/*.1

# What it needs follows from what it is linked with; what it opens when asked is recommended.
cat >"$work/debian/control" <<END
Source: degas

Package: degas
Architecture: any
END
(
    cd "$work"
    # shellcheck disable=SC2086
    dpkg-shlibdeps -Tsubstvars -dDepends debian/degas/usr/bin/degas \
        ${plugins:+-dRecommends debian/degas/usr/lib/degas/$plugins}
) >&2
needs() { sed -n "s/^shlibs:$1=//p" "$work/substvars"; }
mpi=$(needs Recommends)
cat >"$root/DEBIAN/control" <<END
Package: degas
Version: $version
Architecture: $architecture
Maintainer: $maintainer
Installed-Size: $(du -sk --apparent-size "$root/usr" | cut -f1)
Depends: $(needs Depends)
Recommends: gnuplot-nox | gnuplot, libopenblas0-pthread | libopenblas0${mpi:+, $mpi}
Suggests: openmpi-bin, libmicrohttpd12
Section: science
Priority: optional
Description: planner and simulator of distributed training of Transformers
 degas says how the training of a large Transformer is best split over many
 devices (data, tensor, pipeline, context and expert parallelism, micro-batches,
 slices and schedules), how long a step takes and whether it fits into memory.
 It measures what ops cost on a machine, runs plans, and compares what was
 measured with what was predicted.  No GPU is needed to ask.
END
(cd "$root" && find usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum >DEBIAN/md5sums)
package=$build/degas_${version}_$architecture.deb
dpkg-deb --root-owner-group -Zxz --build "$root" "$package" >&2
echo "$package"
