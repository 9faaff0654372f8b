#!/bin/sh
# scripts/packages.sh where something is missing, with stand-ins for the system's programs: offline, and
# without the right to install.
set -u
# shellcheck source=tests/cli/tap.sh
. tests/cli/tap.sh

mkdir "$W/bin"
fake() { # fake NAME LINE: a program of that name
    printf '#!/bin/sh\n%s\n' "$2" >"$W/bin/$1"
    chmod +x "$W/bin/$1"
}

# packages STATUS PATTERN NAME ARGUMENT...
packages() {
    want=$1 pattern=$2 name=$3
    shift 3
    PATH="$W/bin:${TOOLS:-$PATH}" sh scripts/packages.sh "$@" >"$W/out" 2>"$W/err"
    got=$?
    [ "$got" = "$want" ] && cat "$W/out" "$W/err" >"$W/both" && echo >>"$W/both" &&
        grep -q -e "$pattern" "$W/both"
    report $? "$name" "status $got instead of $want, pattern $pattern
$(cat "$W/out" "$W/err")"
}

fake dpkg-query 'echo "install ok installed"'
packages 0 '' "nothing is missing, nothing is done"
[ ! -s "$W/out" ] && [ ! -s "$W/err" ]
report $? "and nothing is said" "$(cat "$W/out" "$W/err")"

fake dpkg-query 'case "$*" in *libcjson-dev*) exit 1 ;; esac; echo "install ok installed"'
packages 1 'missing: libcjson-dev$' "--check names what is missing" --check

fake id 'echo 0'
fake apt-get 'exit 100'
packages 6 'offline.*: libcjson-dev$' "an offline machine gets the list"

fake apt-get 'echo "$@" >>'"'$W/calls'"
packages 0 'installing: libcjson-dev$' "what is installed is listed"
grep -q 'install.* libcjson-dev$' "$W/calls"
report $? "only what is missing is installed" "$(cat "$W/calls")"
fake apt-get 'case "$*" in *coinor-cbc*) exit 100 ;; esac; echo "$@" >>'"'$W/calls'"
packages 0 'installing: libcjson-dev$' "the solver of some tests cannot be had: no failure"
fake apt-get 'echo "$@" >>'"'$W/calls'"

# MPI is the tests', and what they skip without it.
fake dpkg-query 'case "$*" in *openmpi*) exit 1 ;; esac; echo "install ok installed"'
packages 0 '' "a build asks for no MPI"
: >"$W/calls"
TOOLS=$W/tools # has no mpicc
mkdir "$TOOLS"
for tool in sh env; do
    ln -s "$(command -v $tool)" "$TOOLS/$tool"
done
packages 0 'installing: libopenmpi-dev openmpi-bin$' "tests do" --tests
grep -q 'install.* libopenmpi-dev openmpi-bin$' "$W/calls"
report $? "it is installed, and nothing else" "$(cat "$W/calls")"
fake apt-get 'exit 100'
packages 0 'tests that need it are skipped: libopenmpi-dev openmpi-bin$' "tests go on where it cannot be had" --tests
fake mpicc ':'
fake mpirun ':'
packages 0 '' "tests take the MPI that is there" --tests
[ ! -s "$W/out" ] && [ ! -s "$W/err" ]
report $? "and nothing is installed" "$(cat "$W/out" "$W/err")"
TOOLS=
fake apt-get 'echo "$@" >>'"'$W/calls'"
fake dpkg-query 'case "$*" in *libcjson-dev*) exit 1 ;; esac; echo "install ok installed"'

fake id 'echo 1000'
fake sudo 'echo sudo >>'"'$W/calls'"'; exec "$@"'
: >"$W/calls"
packages 0 'installing' "not root: through sudo"
grep -q '^sudo$' "$W/calls"
report $? "sudo was called" "$(cat "$W/calls")"
finish
