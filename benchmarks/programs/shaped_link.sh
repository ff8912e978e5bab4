#!/bin/sh
# unshare -n shaped_link.sh RATE COMMAND...: where servers at 127.0.0.2 and 127.0.0.3 have each a link of RATE in either direction
rate=$1
shift
ip link set lo up || exit 1
tc qdisc add dev lo root handle 1: htb default 1 2>/dev/null || exit 1
tc class add dev lo parent 1: classid 1:1 htb rate 100gbit burst 1m cburst 1m quantum 100000
number=10
for address in 127.0.0.2 127.0.0.3; do
    for end in src dst; do
        tc class add dev lo parent 1: classid 1:$number htb rate "$rate" burst 256k cburst 256k quantum 100000 || exit 1
        tc filter add dev lo parent 1: protocol ip prio 1 u32 match ip $end $address/32 flowid 1:$number || exit 1
        number=$((number + 1))
    done
done
exec "$@"
