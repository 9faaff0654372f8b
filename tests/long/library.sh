#!/bin/sh
# libdegas: installed, found by pkg-config, compiled against by the C example, loaded by the Python example; it
# shows its own names only, says what degas plan says, in many threads at once, and prints nothing.
. tests/cli/tap.sh

make -s libdegas CC="${CC:-gcc}" >"$W/make" 2>&1
report $? "make libdegas" "$(cat "$W/make")"
sh scripts/install.sh build/release /usr "$W/root"
report $? "make install installs it"
lib=$W/root/usr/lib
export PKG_CONFIG_PATH="$lib/pkgconfig" PKG_CONFIG_SYSROOT_DIR="$W/root" LD_LIBRARY_PATH="$lib"
# Its prefix is where it will be, so what is staged is found by the root.
[ "$(pkg-config --modversion degas)" = "$("$DEGAS" --version | sed 's/degas //')" ]
report $? "pkg-config knows its version" "$(pkg-config --modversion degas 2>&1)"
nm -D --defined-only "$lib/libdegas.so" | awk '$2 != "A" { sub("@.*", "", $3); print $3 }' | sort >"$W/names"
printf 'degas_plan\ndegas_result_clear\ndegas_simulate\ndegas_version\n' | cmp -s - "$W/names"
report $? "it shows the functions of its header and nothing else" "$(cat "$W/names")"
objdump -p "$lib/libdegas.so" | grep -q 'SONAME *libdegas.so.0$'
report $? "its name has the version of its interface"

# What the command line says of the same.
for gpus in 16 32 64; do
    "$DEGAS" plan llama3-8b dgx-h100 --gpus $gpus --global-batch 128 --json >"$W/plan.$gpus"
    python3 -c "
import json
p = json.load(open('$W/plan.$gpus')); r = p['predicted']
print('%3d devices: dp %d, tp %d, pp %d, %s: %.3f s, %.1f GiB of %.1f' % ($gpus, p['degrees']['dp'],
      p['degrees']['tp'], p['degrees']['pp'], p['schedule'], r['iteration_s'], r['peak_memory_bytes'] / 2**30,
      r['memory_limit_bytes'] / 2**30))"
done >"$W/want"
flags="-I$W/root/usr/include -L$lib -ldegas"
pkg-config --libs degas | grep -q -e '-ldegas'
report $? "and its flags" "$(pkg-config --cflags --libs degas 2>&1)"
# shellcheck disable=SC2086
gcc -std=c11 -D_POSIX_C_SOURCE=200809L -Wall -Wextra -Werror -pthread examples/plan.c -o "$W/plan" $flags >"$W/out" 2>&1
report $? "the C example compiles without a warning" "$(cat "$W/out")"
printf '#include <degas.h>\nint main() { return degas_version()[0] == 0; }\n' >"$W/x.cc"
if command -v g++ >/dev/null 2>&1; then
    # shellcheck disable=SC2086
    g++ "$W/x.cc" -o "$W/x" $flags && "$W/x"
    report $? "its header is C++, too"
else
    skip "its header is C++, too" "g++ is not installed"
fi
"$W/plan" >"$W/out" 2>"$W/err" && cmp -s "$W/out" "$W/want" && [ ! -s "$W/err" ]
report $? "in three threads it says what degas plan says" "$(diff "$W/out" "$W/want"; cat "$W/err")"
python3 examples/plan.py >"$W/out" 2>"$W/err" && cmp -s "$W/out" "$W/want" && [ ! -s "$W/err" ]
report $? "and so does the Python example" "$(diff "$W/out" "$W/want"; cat "$W/err")"

# Errors are values: statuses of docs/formats.md and one line, nothing printed, the process goes on.
cat >"$W/errors.py" <<'P'
import ctypes, json, locale, sys, threading
sys.argv = sys.argv[:1]
exec(open('examples/plan.py').read().split('for gpus')[0])
for name in 'de_DE.UTF-8', 'fr_FR.UTF-8':
    try:
        locale.setlocale(locale.LC_ALL, name)
    except locale.Error:
        pass
small = {'model': 'llama3-8b', 'cluster': 'dgx-h100', 'gpus': 8, 'global_batch': 8}
def ask(request, stop=None, function=None):
    r = Result(size=ctypes.sizeof(Result))
    text = request if isinstance(request, bytes) else json.dumps(request).encode()
    status = library.degas_plan(text, stop, r) if function is None else function(text, r)
    got = status, r.message, r.json, r.iteration_s
    library.degas_result_clear(r)
    library.degas_result_clear(r)  # a second time is harmless
    return got
assert ask(small)[0] == 0
status, message, _, _ = ask({**small, 'global_bach': 8})
assert status == 3 and b'global_batch' in message, (status, message)
for bad in (b'', b'{', b'[1]', b'null', b'"x"', b'{"model":1}', b'\xff', b'{"format":"degas-plan"}'):
    for function in None, library.degas_simulate:
        status, message, text, _ = ask(bad, function=function)
        assert status in (2, 3) and message and b'\n' not in message and text is None, (bad, status, message)
status, message, _, _ = ask({**small, 'memory_limit': '1GiB'})
assert status == 1 and b'GiB' in message, (status, message)
status, _, text, seconds = ask({**small, 'tp': 2, 'dp': 4}, function=library.degas_simulate)
assert status == 0 and seconds > 0 and json.loads(text)['iteration_s'] == seconds
stop = ctypes.c_int(1)
status, message, _, _ = ask(small, ctypes.addressof(stop))
assert status == 9, (status, message)
# A caller of an older interface gets no more than it knows.
class Old(ctypes.Structure):
    _fields_ = [('size', ctypes.c_size_t), ('message', ctypes.c_char_p), ('json', ctypes.c_char_p),
                ('iteration_s', ctypes.c_double), ('guard', ctypes.c_double)]
old = Old(size=Old.guard.offset, guard=7.5)
library.degas_plan.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p]
assert library.degas_plan(json.dumps(small).encode(), None, ctypes.addressof(old)) == 0
assert old.guard == 7.5 and old.iteration_s > 0 and old.size == Old.guard.offset
library.degas_plan.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.POINTER(Result)]
answers = []
threads = [threading.Thread(target=lambda: answers.append(ask({**small, 'threads': 2}))) for _ in range(8)]
for t in threads: t.start()
for t in threads: t.join()
assert len(answers) == 8 and len(set(answers)) == 1
P
python3 "$W/errors.py" >"$W/out" 2>&1 && [ ! -s "$W/out" ]
report $? "errors are values, old callers are safe, threads agree" "$(cat "$W/out")"
sh scripts/install.sh --remove /usr "$W/root"
[ -z "$(find "$W/root" -type f -o -type l)" ]
report $? "uninstalling removes it" "$(find "$W/root" -type f -o -type l)"
finish
