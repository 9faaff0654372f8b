# shellcheck shell=sh
# What the tests of several hosts share; sourced after mpi.sh.  Two network name spaces of this machine,
# $A at $A_ADDRESS and $B at $B_ADDRESS, which only Open MPI is led to through a stand-in for ssh.
A=degas-a-$$
B=degas-b-$$
A_ADDRESS=10.213.7.1
B_ADDRESS=10.213.7.2
SERVER=
OMPI_MCA_btl=tcp,self
export OMPI_MCA_btl

# The host B that a test has served: unshare does not hear SIGTERM, and ends with its processes.
stop_server() {
    [ -z "$SERVER" ] || kill -KILL "$SERVER" 2>/dev/null
    [ -z "$SERVER" ] || wait "$SERVER" 2>/dev/null
    SERVER=
}

remove_hosts() {
    stop_server
    ip netns del $A 2>/dev/null
    ip netns del $B 2>/dev/null
    rm -rf "$W"
}

# make_hosts NAME: or the test ends, NAME skipped
make_hosts() {
    reason=$(why_no_mpi)
    [ -n "$reason" ] || mpirun --version 2>/dev/null | grep -q 'Open MPI' ||
        reason="the stand-in for ssh is Open MPI's"
    [ -n "$reason" ] || ip netns add $A 2>/dev/null || reason="network name spaces are not permitted"
    if [ -n "$reason" ]; then
        skip "$1" "$reason"
        finish
    fi
    trap remove_hosts EXIT INT TERM
    ip netns add $B && ip link add va netns $A type veth peer name vb netns $B &&
        ip -n $A addr add $A_ADDRESS/24 dev va && ip -n $B addr add $B_ADDRESS/24 dev vb &&
        ip -n $A link set va up && ip -n $B link set vb up &&
        ip -n $A link set lo up && ip -n $B link set lo up
    report $? "two name spaces, connected"
}
