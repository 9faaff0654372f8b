#!/bin/sh
# doctor: what is here, what is missing, and the exit status.
. tests/cli/tap.sh

# Stand-ins for programs, so that the answer does not depend on what is installed.
mkdir "$W/bin"
printf '#!/bin/sh\necho gnuplot 5.4 patchlevel 4\n' >"$W/bin/gnuplot"
printf '#!/bin/sh\necho "mpirun (Open MPI) 4.1.4"\n' >"$W/bin/mpirun"
chmod +x "$W/bin/gnuplot" "$W/bin/mpirun"
doctor() { # doctor PATH ARGUMENT...: its status is in $got
    path=$1
    shift
    PATH=$path DEGAS_PLUGIN_DIR="$W" "$(readlink -f "$DEGAS")" doctor "$@" >"$W/out" 2>"$W/err"
    got=$?
}
doctor "$W/bin:/usr/bin:/bin"
has '^gnuplot  *ok  *gnuplot 5.4 patchlevel 4' "gnuplot is found, with its version"
has '^mpirun  *ok  *mpirun (Open MPI) 4.1.4' "mpirun, too"
has "^cores  *ok  *$(nproc)\\(,\\|  \\)" "all cores are counted"
has '^degas-mpi.so  *missing  *mpi: the plugin degas-mpi.so is not built' "a plugin that is not there is missing"
[ "$got" = 6 ] && grep -q '^degas: doctor: missing: .*degas-mpi.so' "$W/err"
report $? "then the status is 6" "$got: $(cat "$W/err")"
doctor "$W"
has '^gnuplot  *missing  *there is no program gnuplot in PATH  *pictures as SVG and PNG  *apt install gnuplot-nox' \
    "what is missing has its use and how to get it"
doctor "$W/bin:/usr/bin:/bin" --json
json "the JSON says the same" '
items = {i["name"]: i for i in d["items"]}
assert d["format"] == "degas-doctor" and d["version"] == 1
assert items["gnuplot"]["state"] == "ok" and items["gnuplot"]["why"] is None
assert items["degas-mpi.so"]["state"] == "missing" and items["degas-mpi.so"]["found"] is None
assert all(i["state"] in ("ok", "missing", "absent") for i in d["items"])
assert all(i["get"] for i in d["items"] if i["state"] != "ok")
assert all(i["state"] == "ok" for i in d["items"] if i["get"] is None)'
if [ ! -e /dev/nvidiactl ] && [ ! -e /proc/driver/nvidia/version ]; then
    json "without a GPU nothing of GPUs is missing" '
items = {i["name"]: i for i in d["items"]}
assert items["GPUs"]["state"] == "absent" and items["degas-cuda.so"]["state"] == "absent"'
fi
(ulimit -f 100 && PATH=$W/bin:/usr/bin:/bin "$DEGAS" doctor) 2>/dev/null | grep -q '^mpirun  *missing  *Open MPI writes files'
report $? "a limit on files that Open MPI cannot live with is found"

# Where all is there the status is 0: with the plugins that were built.
PATH=$W/bin:/usr/bin:/bin "$DEGAS" doctor >"$W/out" 2>"$W/err"
got=$?
if grep -q '  missing  ' "$W/out"; then
    [ "$got" = 6 ]
else
    [ "$got" = 0 ] && [ ! -s "$W/err" ]
fi
report $? "the status follows from the table" "$got: $(cat "$W/out" "$W/err")"
finish
