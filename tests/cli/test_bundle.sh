#!/bin/sh
# make bundle: a folder that brings its libraries along, wherever it is moved to.
. tests/cli/tap.sh

build=$(dirname "$(readlink -f "$DEGAS")")
case "$build" in
*/release) ;;
*)
    skip "a bundle" "only of the release build"
    finish
    ;;
esac
scripts/bundle.sh "$build" "$W/made" >"$W/out" 2>"$W/err"
report $? "a bundle is made and is under its limit" "$(cat "$W/out" "$W/err")"
mkdir "$W/else where"
mv "$W/made" "$W/else where/degas"
bundle="$W/else where/degas"

# Nothing of the environment, another working folder, through a link.
ln -s "$bundle/degas" "$W/link"
(cd / && env -i PATH=/usr/bin:/bin "$W/link" --version) >"$W/out" 2>"$W/err"
report $? "it runs from elsewhere through a link" "$(cat "$W/err")"
has '^degas ' "it says its version"

# Every library but the C library's own comes from the bundle.
for file in "$bundle"/lib/degas "$bundle"/lib/libopenblas.so.0; do
    [ -e "$file" ] || continue
    foreign=$(LD_LIBRARY_PATH="$bundle/lib" ldd "$file" | awk '$2 == "=>" { print $1, $3, $4 }' |
        grep -v -e " $bundle/lib/" -e '^libc\.so' -e '^libm\.so' -e '^libdl\.so' \
            -e '^libpthread\.so' -e '^librt\.so' -e '^linux-vdso')
    [ -z "$foreign" ]
    report $? "$(basename "$file") needs nothing of this machine" "$foreign"
done

"$bundle/degas" plan gpt-mini local-cpu --gpus 1 --global-batch 1 --seq-len 16 --dtype fp32 \
    --framework degas --recompute none --zero 0 -o "$W/plan.json" >"$W/out" 2>"$W/err"
report $? "it plans" "$(cat "$W/err")"
if [ -e "$bundle/lib/libopenblas.so.0" ]; then
    "$bundle/degas" run "$W/plan.json" --steps 1 --json >"$W/out" 2>"$W/err"
    report $? "it trains on the CPU" "$(cat "$W/err")"
else
    skip "it trains on the CPU" "OpenBLAS is not installed"
fi

# --- a machine with nothing but a C library and the usual commands ---

root=$W/root
# elsewhere COMMAND...: there
elsewhere() {
    # shellcheck disable=SC2016
    unshare -m sh -c 'mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && exec chroot "$0" env -i HOME=/root \
        PATH=/usr/bin "$@"' "$root" "$@" >"$W/out" 2>"$W/err" </dev/null
}
mkdir -p "$root/proc" "$root/dev" "$root/tmp" "$root/root" "$root/usr/bin" "$root/opt" "$root/srv"
ln -s usr/bin "$root/bin"
for program in sh bash ldd awk basename cat chroot cut date dirname env grep gzip head ls mkdir mktemp mv readlink rm sed sleep sort tail \
    tar timeout touch tr uname; do
    path=$(command -v "$program") && cp -L "$path" "$root/usr/bin/$program"
    ldd "$path" 2>/dev/null | grep -o '/[^ ]*' | while read -r library; do
        mkdir -p "$root$(dirname "$library")" && cp -L "$library" "$root$library"
    done
done
if ! elsewhere true 2>/dev/null && ! elsewhere sh -c :; then
    skip "a machine without libraries" "it needs a folder as the root of its own, which only the administrator may have: $(cat "$W/err")"
    finish
fi
cp -r "$bundle" "$root/opt/degas"
for library in libdl.so.2 libpthread.so.0 librt.so.1 libm.so.6 libresolv.so.2; do # the C library's own
    path=$(ldconfig -p | awk -v l="$library" '$1 == l && /x86-64|AArch64/ { print $NF; exit }')
    [ -z "$path" ] || { mkdir -p "$root$(dirname "$path")" && cp -L "$path" "$root$path"; }
done
elsewhere /opt/degas/degas plan gpt-mini local-cpu --gpus 1 --global-batch 1 --seq-len 16 --dtype bf16 --framework degas \
    --recompute none --zero 0 -o /srv/plan.json
report $? "it plans on a machine without libraries" "$(cat "$W/err")"
if [ -e "$bundle/lib/libopenblas.so.0" ]; then
    elsewhere /opt/degas/degas run /srv/plan.json --steps 1
    report $? "... and trains there" "$(cat "$W/err")"
fi
if [ ! -e "$bundle/lib/degas-cuda.so" ]; then
    skip "it finds CUDA's libraries" "no CUDA toolkit"
    finish
fi
elsewhere /opt/degas/degas run /srv/plan.json --device cuda --steps 1
grep -q 'libcublasLt.*cannot open' "$W/err"
report $? "without cuBLASLt it says so" "$(cat "$W/err")"

# cuBLASLt in a Python environment in an unusual place, as python3 says; of it only the names.
packages=/srv/tools/.venv/lib/python3.12/site-packages/nvidia
mkdir -p "$root$packages/cu13/lib"
name=$(LD_LIBRARY_PATH="$bundle/lib" ldd "$bundle/lib/degas-cuda.so" | awk '/libcublasLt/ { print $1 }')
echo "$name { global: cublasLt*; };" >"$W/versions"
nm -D --undefined-only "$bundle/lib/degas-cuda.so" | awk '$2 ~ /^cublasLt/ { sub(/@.*/, "", $2); print "void " $2 "(void) {}" }' |
    ${CC:-cc} -w -shared -fPIC -Wl,-soname,"$name" -Wl,--version-script="$W/versions" -x c -o "$root$packages/cu13/lib/$name" -
printf '#!/bin/sh\n[ "$2" = "import nvidia; print(*nvidia.__path__)" ] && echo %s\n' $packages >"$root/usr/bin/python3"
chmod +x "$root/usr/bin/python3"
elsewhere /opt/degas/degas run /srv/plan.json --device cuda --steps 1
[ $? = 6 ] && grep -q 'there is no NVIDIA driver' "$W/err"
report $? "it finds cuBLASLt where python3 says, and nothing else is missing but the driver" "$(cat "$W/err")"
elsewhere /opt/degas/gpu-check --small /opt/degas /srv/results
[ $? = 6 ] && grep -q '^gpu-check: .*no NVIDIA driver' "$W/err"
report $? "gpu-check runs there as far as it can" "$(cat "$W/err")"
tar -xzOf "$root/srv/results/gpu-check.tar.gz" ./items.tsv >"$W/out"
has "^environment	cuBLASLt	.*pass	$packages/cu13/lib/$name" "its archive says which libraries it found"
finish
