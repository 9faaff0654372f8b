# shellcheck shell=sh
# What the tests of degas run --transport mpi share; sourced after tap.sh.

# Prints why there is no MPI to test with, or nothing.
why_no_mpi() {
    [ -e "$(dirname "$(readlink -f "$DEGAS")")/degas-mpi.so" ] || {
        echo "degas-mpi.so is not built"
        return
    }
    command -v mpirun >/dev/null 2>&1 || echo "mpirun is not installed"
}

# As root Open MPI wants to be asked twice, and more ranks than cores to be allowed; for the tests
# that call mpirun themselves.
OMPI_ALLOW_RUN_AS_ROOT=1
OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM OMPI_MCA_rmaps_base_oversubscribe

# Open MPI's plugins keep memory when they are closed, which a leak sanitizer reports of "<unknown module>", so that no
# suppression can name it.  Leaks are looked for in all other tests.
ASAN_OPTIONS=detect_leaks=0${ASAN_OPTIONS:+:$ASAN_OPTIONS}
export ASAN_OPTIONS

cat >"$W/tiny.json" <<'END'
{"format":"degas-model","version":1,"name":"tiny","family":"gpt","n_layers":4,"hidden":32,
 "n_heads":2,"vocab":256,"max_seq_len":64}
END
# A second: these tests want runs, whatever is predicted.
"$DEGAS" profile "$W/tiny.json" --device reference --quick --budget 1 --batches 1,2 --slices 64,32 \
    --concurrency 4 -o "$W/profile.json" >/dev/null 2>"$W/err" ||
    report 1 "profile" "$(cat "$W/err")"

# plan NAME FLAG...: a plan file of the tiny model for this machine
plan() {
    name=$1
    shift
    "$DEGAS" plan "$W/tiny.json" "$W/profile.json" --seq-len 64 --dtype fp32 --framework degas \
        --recompute none --zero 0 --tp 1 "$@" -o "$W/$name.json" >/dev/null 2>"$W/err" ||
        report 1 "plan $name" "$(cat "$W/err")"
}

# gone NAME: no process of this test's plans is left
gone() {
    left=$(pgrep -af "run $W/" || true)
    [ -z "$left" ]
    report $? "$1" "$left"
}
