#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Nodes with addresses of their own: the control channel crosses a real network, IPv4 or IPv6.
# run: timeout=200
if [ "$(id -u)" != 0 ] || ! ip link add fsprobe type bridge 2>/dev/null; then
    echo "1..0 # SKIP no network namespaces here"
    exit 0
fi
ip link del fsprobe
export MODE=net NODES=3
. "$TOP/tests/slurm/lib/cluster.sh"
L=$BIN/tests/launcher/test_launch
echo "fake: {}" >c.yaml
for mpi in none pmix; do
    step --mpi=$mpi -N3 -n6 --ntasks-per-node=2 "$L" -v c.yaml
    [ $rc = 0 ] && [ "$(grep -c 'of 6, local . of 2, node . of 3' log)" = 6 ]
    ok $? "--mpi=$mpi: 6 ranks on 3 nodes with own addresses"
done
BOOT_INTERFACE=eth0 step --mpi=none -N3 -n3 "$L" -v c.yaml
[ $rc = 0 ]
ok $? "on the interface that is named"
step --mpi=none -N1 -n1 -w n1 tc qdisc add dev eth0 root tbf rate 400mbit burst 256kb latency 50ms
if [ $rc = 0 ]; then
    step --mpi=none -N3 -n3 -w n0,n1,n2 fsdp-launch --check
    [ $rc = 1 ] && grep -q "error: n1: all-gather with other nodes: 0.[01][0-9]* GB/s, elsewhere" err && grep -q -x "bad nodes: n1" log
    ok $? "--check names the node behind a slow link, and no other"
else
    ok 0 "--check names the node behind a slow link # SKIP no tc here"
fi
echo "1..$n"
exit $bad
