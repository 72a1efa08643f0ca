#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A PyTorch script that expects torchrun runs unchanged under srun and fsdp-launch, on two nodes.
# run: timeout=300
if [ "$(id -u)" != 0 ]; then
    echo "1..0 # SKIP nodes with networks of their own need root"
    exit 0
fi
export NODES=2 MODE=net
. "$TOP/tests/slurm/lib/cluster.sh"
cat >sum.py <<'END'
import os
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
x = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(x)
assert dist.get_world_size() == int(os.environ["WORLD_SIZE"])
local = f"local {os.environ['LOCAL_RANK']} of {os.environ['LOCAL_WORLD_SIZE']}"
os.write(1, f"rank {dist.get_rank()} {local} sum {x.item()}\n".encode())  # at once: the ranks share a pipe
dist.destroy_process_group()
END
want="rank 0 local 0 of 2 sum 10.0,rank 1 local 1 of 2 sum 10.0,rank 2 local 0 of 2 sum 10.0,rank 3 local 1 of 2 sum 10.0"
LIMIT=120 step --mpi=none -N2 -n4 --ntasks-per-node=2 fsdp-launch -- "$TORCH_PYTHON" sum.py
[ $rc = 0 ] && [ "$(sort log | paste -sd,)" = "$want" ]
ok $? "one task a rank"
LIMIT=120 step --mpi=none -N2 -n2 fsdp-launch --ranks-per-task 2 -- "$TORCH_PYTHON" sum.py
[ $rc = 0 ] && [ "$(sort log | paste -sd,)" = "$want" ]
ok $? "one task a node"
echo "1..$n"
exit $bad
