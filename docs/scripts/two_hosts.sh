#!/usr/bin/env bash
# Two machines in one: runs the same command on two hosts, host-a and host-b, at the same time.
#
#   docs/scripts/two_hosts.sh torchrun --nnodes 2 --nproc_per_node 1 \
#       --rdzv-backend c10d --rdzv-endpoint host-a:29400 -m multigpu train --data digits --mode ddp
#
# Each host is a network namespace of Linux with its own name, its own loopback and one network
# card, 10.77.0.1 or 10.77.0.2. A virtual cable joins the two; nothing else can be reached. Files,
# memory and processors are this machine's. RATE=100mbit in front makes the cable that slow.
#
# Needs Linux, util-linux and iproute2, and root or a kernel that lets every user make namespaces.
# Whatever happens, nothing stays: the kernel ends all processes with the first one, and takes the
# namespaces and the cable away with the last one.
set -euo pipefail

if [ "${1-}" != --inside ]; then
    [ $# -gt 0 ] || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit 2; }
    root=()
    [ "$(id -u)" = 0 ] || root=(--user --map-root-user)
    exec unshare "${root[@]}" --net --uts --mount --pid --fork --kill-child --mount-proc \
        bash "$0" --inside "$@"
fi
shift
trap 'exit 130' INT  # this shell is the first process: when it ends, all end
trap 'exit 143' TERM

# Names and addresses, seen by these processes only. A host's own name must not mean 127.0.0.1:
# it is what ranks tell each other to connect to.
hosts=$(mktemp)
printf '%s\n' "127.0.0.1 localhost" "10.77.0.1 host-a" "10.77.0.2 host-b" \
    "::ffff:10.77.0.1 host-a" "::ffff:10.77.0.2 host-b" >"$hosts"
mount --bind "$hosts" /etc/hosts
rm "$hosts"

host() { # NAME ADDRESS COMMAND...: takes the name and the address, then runs the command
    hostname "$1"
    until ip link set eth0 up 2>/dev/null; do sleep 0.02; done # until the cable is plugged in
    ip link set lo up
    ip address add "$2/24" dev eth0
    [ -z "${RATE-}" ] || tc qdisc add dev eth0 root tbf rate "$RATE" burst 64kb latency 400ms
    "${@:3}" 2>&1 | sed -u "s/^/$1 | /"
    awk -v host="$1" '/eth0/ { print host " | received " $2 " bytes" }' /proc/net/dev
}

export -f host
unshare --net --uts bash -euo pipefail -c 'host "$@"' host host-b 10.77.0.2 "$@" &
b=$!
here=$(readlink /proc/self/ns/net)
while [ "$(readlink "/proc/$b/ns/net")" = "$here" ]; do sleep 0.02; done
exec {other}</proc/"$b"/ns/net # a namespace that is open stays, and the cable with it
ip link add eth0 type veth peer name eth0 netns "$b"
host host-a 10.77.0.1 "$@" &
a=$!

wait -n -p ended "$a" "$b" # a host that fails ends the other one, too
wait $((a + b - ended))
