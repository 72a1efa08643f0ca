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
L=$BIN/tests/boot/test_launch
echo "fake: {}" >c.yaml
for mpi in none pmix; do
    step --mpi=$mpi -N3 -n6 --ntasks-per-node=2 "$L" -v c.yaml
    [ $rc = 0 ] && [ "$(grep -c 'of 6, local . of 2, node . of 3' log)" = 6 ]
    ok $? "--mpi=$mpi: 6 ranks on 3 nodes with own addresses"
done
BOOT_INTERFACE=eth0 step --mpi=none -N3 -n3 "$L" -v c.yaml
[ $rc = 0 ]
ok $? "on the interface that is named"
echo "1..$n"
exit $bad
