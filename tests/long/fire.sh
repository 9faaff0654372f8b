#!/bin/sh
# The executor under fire: random faults over transports local and mpi at 2 to 8 ranks (tests/torture/fire.c).  Every run
# ends within its limit with the documented status and a line that names a rank or a file, leaves no process and no
# temporary file, and is then resumed to the bits of a run that nobody disturbs.  N runs (8), drawn by SEED (1);
# make fire N=1000 does more; ONLY=K repeats the K-th of them.
# shellcheck source=tests/cli/tap.sh
. tests/cli/tap.sh
# shellcheck source=tests/cli/mpi.sh
. tests/cli/mpi.sh
N=${N:-8}
SEED=${SEED:-1}
LIMIT_S=45 # a hanging rank is given 10 s

reason=$(why_no_mpi)
[ -n "$reason" ] || mpirun --version 2>/dev/null | grep -q 'Open MPI' || reason="no Open MPI"
if [ -n "$reason" ] || ! ${CC:-cc} -O1 -D_GNU_SOURCE -shared -fPIC -o "$W/local.so" tests/torture/fire.c 2>"$W/err" ||
    ! mpicc -O1 -D_GNU_SOURCE -DWITH_MPI -shared -fPIC -o "$W/mpi.so" tests/torture/fire.c 2>"$W/err"; then
    skip "the executor under fire" "${reason:-no C compiler: $(head -1 "$W/err")}"
    finish
fi

# What a run leaves behind lies here, and in the folder that the faulty rank tells; what it says goes by a pipe, which is never full.
mkdir "$W/tmp"
mkfifo "$W/pipe"
TMPDIR=$W/tmp
export TMPDIR

# undisturbed NAME FLAG...: a plan and the checkpoints of its run
undisturbed() {
    name=$1
    shift
    plan "$name" --global-batch 12 --micro-batch 1 --schedule 1f1b --slices 2 "$@"
    # shellcheck disable=SC2086
    "$DEGAS" run "$W/$name.json" $R --checkpoint "$W/$name.whole" >/dev/null 2>"$W/err" || report 1 "plan $name" "$(cat "$W/err")"
}
R="--device reference --seed 5 --steps 6 --checkpoint-every 2 --deterministic --json"
undisturbed 2 --gpus 2 --dp 1 --pp 2
undisturbed 3 --gpus 3 --dp 3 --pp 1
undisturbed 4 --gpus 4 --dp 2 --pp 2
undisturbed 6 --gpus 6 --dp 3 --pp 2
undisturbed 8 --gpus 8 --dp 2 --pp 4

# draw WORD...: sets $drawn to one of them
state=$SEED
draw() {
    state=$(((state * 1103515245 + 12345) % 2147483648))
    shift $((state / 65536 % $#))
    drawn=$1
}

# What may come of a fault, as a pattern of statuses: 0 where it does no harm, or comes after the last moment.
statuses() {
    case $1.$2 in
    local.kill) echo '137|0' ;;
    *.kill | *.corrupt) echo '7|0' ;;
    *.drop) echo '7|8|0' ;;
    mpi.stop) echo '8|0' ;;
    *.full) echo '4|0' ;;
    *) echo 0 ;;
    esac
}

i=0
while [ $i -lt "$N" ]; do
    i=$((i + 1))
    draw 2 3 4 6 8
    ranks=$drawn
    draw local mpi mpi
    transport=$drawn
    if [ "$transport" = local ]; then
        draw kill stop full clock
        most=150
    else
        draw kill stop drop delay corrupt full clock
        most=400
    fi
    fault=$drawn
    # shellcheck disable=SC2046
    draw $(seq 0 $((ranks - 1)))
    rank=$drawn
    # shellcheck disable=SC2046
    draw $(seq 1 $most)
    at=$drawn
    [ -z "${ONLY:-}" ] || [ "$i" = "$ONLY" ] || continue
    name="$i: $fault at $at in rank $rank of $ranks, $transport"
    rm -rf "$W/time" "$W/dir"
    beats_begin
    # shellcheck disable=SC2086
    FIRE=$fault FIRE_RANK=$rank FIRE_AT=$at FIRE_TIME="$W/time" LD_PRELOAD="$W/$transport.so" \
        "$DEGAS" run "$W/$ranks.json" $R --checkpoint "$W/dir" --transport "$transport" --timeout 10s \
        >/dev/null 2>"$W/pipe" </dev/null &
    run=$!
    cat "$W/pipe" >"$W/words" &
    reader=$!
    # Nobody watches a process that is stopped as a whole: it goes on when it is told to.
    if [ "$transport.$fault" = local.stop ]; then
        while kill -0 $run 2>/dev/null; do
            [ ! -e "$W/time" ] || kill -CONT $run 2>/dev/null
            sleep 0.05
        done
    fi
    wait $run 2>/dev/null
    got=$?
    beats_end
    wait $reader
    wanted=$(statuses "$transport" "$fault")
    problem=
    echo "$got" | grep -qxE "$wanted" || problem="status $got instead of $wanted"
    [ $got != 0 ] || [ ! -e "$W/time" ] || echo "$wanted" | grep -qx 0 || [ "$fault" = full ] || problem="status 0 after $fault"
    # shellcheck disable=SC2154
    [ "$took" -le $LIMIT_S ] || problem="$problem, $took s"
    [ $got = 0 ] || [ $got = 137 ] || { [ "$(grep -c '^degas: ' "$W/words")" = 1 ] &&
        grep -qE '^degas: .*(rank [0-9]|step-0)' "$W/words"; } || problem="$problem, not one line that names a rank"
    folder=$(cat "$W/time" 2>/dev/null)
    left=$(pgrep -af "run $W/" || true)$(find "$W/tmp" ${folder:+"$folder"} -type f 2>/dev/null)
    [ -z "$left" ] || problem="$problem, left: $left"
    resume=
    [ -z "$(find "$W/dir" -maxdepth 1 -name 'step-*' 2>/dev/null)" ] || resume=--resume
    # shellcheck disable=SC2086
    [ -d "$W/dir/step-00000006" ] ||
        "$DEGAS" run "$W/$ranks.json" $R --checkpoint "$W/dir" $resume >"$W/out" 2>"$W/err" </dev/null ||
        problem="$problem, not resumed: $(cat "$W/err")"
    differences=$(diff -r "$W/$ranks.whole/step-00000006" "$W/dir/step-00000006" 2>&1)
    [ -z "$differences" ] || problem="$problem, other bits: $differences"
    struck=$([ -e "$W/time" ] && echo struck || echo "not struck")
    [ -z "$problem" ]
    report $? "$name: status $got, $struck, $took s" "$problem
$(cat "$W/words")"
done
finish
