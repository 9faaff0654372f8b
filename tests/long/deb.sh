#!/bin/sh
# make deb: the Debian packages are sound, the program in them runs, and a program is built and run with the library in them.
. tests/cli/tap.sh
# What lintian and dpkg leave.
TMPDIR=$W
export TMPDIR

build=$(dirname "$(readlink -f "$DEGAS")")
plugins=$(cd "$build" && ls degas-*.so 2>/dev/null)
if ! command -v dpkg-shlibdeps >/dev/null 2>&1 || ! command -v dpkg-deb >/dev/null 2>&1; then
    skip "Debian packages" "dpkg-dev is not installed"
    finish
fi
make -s libdegas CC="${CC:-gcc}" >"$W/make" 2>&1
report $? "make libdegas" "$(cat "$W/make")"
mkdir "$W/build"
cp "$build/degas" "$W/build"
cp -P "$build"/libdegas.so* "$W/build"
# shellcheck disable=SC2086
(cd "$build" && cp $plugins "$W/build") 2>/dev/null
# shellcheck disable=SC2086
scripts/deb.sh "$W/build" $plugins >"$W/packages" 2>"$W/err"
report $? "Debian packages are made" "$(cat "$W/err")"
version=$("$DEGAS" --version | cut -d' ' -f2)
[ "$(sed 's|.*/\([^_]*\)_.*|\1|' "$W/packages" | sort | tr '\n' ' ')" = "degas libdegas-dev libdegas0 " ]
report $? "of the program, the library and its header" "$(cat "$W/packages")"
while read -r package; do
    dpkg-deb -x "$package" "$W/unpacked"
    dpkg-deb -f "$package" >"$W/fields.$(dpkg-deb -f "$package" Package)"
done <"$W/packages"
"$W/unpacked/usr/bin/degas" --version >"$W/out"
report $? "the program in it runs"
for package in degas libdegas0; do
    grep '^Depends:' "$W/fields.$package" | grep 'libglib2.0-0' | grep -q 'libcjson1'
    report $? "$package depends on its libraries" "$(cat "$W/fields.$package")"
done
grep -q "^Depends: libdegas0 (= $version)$" "$W/fields.libdegas-dev"
report $? "libdegas-dev depends on the library of its version" "$(cat "$W/fields.libdegas-dev")"

# As on a machine where libdegas-dev is installed: the compiler asks pkg-config, which knows the place of this architecture.
place=$W/unpacked/usr/lib/$(dpkg-architecture -qDEB_HOST_MULTIARCH)
flags=$(PKG_CONFIG_LIBDIR=$place/pkgconfig PKG_CONFIG_SYSROOT_DIR=$W/unpacked PKG_CONFIG_ALLOW_SYSTEM_CFLAGS=1 \
    PKG_CONFIG_ALLOW_SYSTEM_LIBS=1 pkg-config --cflags --libs degas)
# shellcheck disable=SC2086
gcc -std=c11 -D_POSIX_C_SOURCE=200809L -pthread "$W/unpacked/usr/share/doc/libdegas-dev/examples/plan.c" -o "$W/plan" $flags >"$W/out" 2>&1 &&
    LD_LIBRARY_PATH=$place "$W/plan" >"$W/out" 2>&1
report $? "its example is compiled with what pkg-config says, and runs" "$flags
$(cat "$W/out")"
[ "$(grep -c '^ *[0-9]* devices: dp' "$W/out")" = 3 ]
report $? "and plans" "$(cat "$W/out")"
if command -v lintian >/dev/null 2>&1; then
    # shellcheck disable=SC2046
    found=$(lintian --allow-root --pedantic $(cat "$W/packages") 2>&1)
    [ -z "$found" ]
    report $? "lintian finds nothing" "$found"
else
    skip "lintian finds nothing" "lintian is not installed"
fi
finish
