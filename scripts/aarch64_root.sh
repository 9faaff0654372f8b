#!/bin/sh
# Gets the libraries that a degas for aarch64 needs from Debian, and unpacks them: nothing is installed, and the
# system's own list of architectures stays as it is.  What compiles and runs it: apt-get install
# gcc-aarch64-linux-gnu qemu-user.  Then: AARCH64_ROOT=DIR sh tests/long/processors.sh
# usage: aarch64_root.sh DIR
set -eu
mkdir -p "$1/lists/partial" "$1/debs"
dir=$(cd "$1" && pwd)
get() {
    apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State::Lists="$dir/lists" \
        -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= -o APT::Sandbox::User=root "$@"
}
get update
cd "$dir/debs"
get download libc6 libgcc-s1 libglib2.0-0 libglib2.0-dev libpcre2-8-0 libcjson1 libcjson-dev libyaml-0-2 libyaml-dev \
    zlib1g zlib1g-dev
for package in *.deb; do
    dpkg -x "$package" "$dir"
done
rm -rf "$dir/lists" "$dir/debs"
