#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Ranks inside a container, made as enroot makes one: a user and a mount namespace with a root of its own,
# in which there is no scontrol, no munge, and every node's name resolves to loopback. (enroot and pyxis
# themselves are not needed, and not tried.)
# run: timeout=300
if ! unshare --user --map-root-user --mount true 2>/dev/null; then
    echo "1..0 # SKIP no user namespaces here"
    exit 0
fi
[ "$(id -u)" != 0 ] || ! ip link add fsprobe type bridge 2>/dev/null || { ip link del fsprobe && export MODE=net; }
. "$TOP/tests/slurm/lib/cluster.sh"
cat >run.yaml <<END
model: {path: $TOP/examples/llama-tiny, init: random}
data: {path: $TOP/README.md, seq_len: 64}
train: {steps: 4, global_batch_size: 8}
fsdp: {sharding_strategy: HYBRID_SHARD}
checkpoint: {path: ''}
log: {metrics: ''}
END
# inside PROGRAM ARGS...: in the root, from the same folder.
cat >inside <<END
#!/bin/sh
exec unshare --user --map-root-user --mount sh $PWD/enter "\$@"
END
cat >enter <<END
set -e
root=\$(mktemp -d $PWD/root.XXXXXX)
mount -t tmpfs tmpfs "\$root"
mkdir "\$root/etc"
for dir in /*; do
    [ "\$dir" = /etc ] || [ -L "\$dir" ] || [ ! -d "\$dir" ] || { mkdir "\$root\$dir" && mount --rbind "\$dir" "\$root\$dir"; }
    [ ! -L "\$dir" ] || cp -P "\$dir" "\$root\$dir"
done
cp -r /etc/ld.so.* /etc/alternatives "\$root/etc/"
cp /etc/passwd /etc/nsswitch.conf "\$root/etc/"
echo 127.0.0.1 localhost >"\$root/etc/hosts"
for node in n0 n1 n2 n3 \$(hostname); do echo "127.0.1.1 \$node" >>"\$root/etc/hosts"; done
for tool in scontrol srun squeue; do mount --bind /bin/false "\$root\$(command -v \$tool)"; done
exec chroot "\$root" sh -c 'cd "\$0" && exec "\$@"' $PWD "\$@"
END
chmod +x inside
step --mpi=none -N2 -n2 --ntasks-per-node=1 "$PWD/inside" sh -c 'getent hosts n1; scontrol show config || echo no scontrol'
[ $rc = 0 ] && [ "$(grep -c "127.0.1.1 *n1" log)" = 2 ] && [ "$(grep -c "no scontrol" log)" = 2 ]
ok $? "a container without scontrol, where names lead to loopback"
for mpi in none pmix; do
    if [ $mpi = pmix ] && ! srun --mpi=list 2>&1 | grep -q pmix; then
        ok 0 "ranks in containers train, --mpi=pmix # SKIP this Slurm has no PMIx"
        continue
    fi
    # srun runs on the first node, as in a batch script: without a name that leads anywhere, ranks find
    # rank 0 where srun is.
    timeout 120 sbatch --quiet --wait --output="$PWD/log" -N2 -n4 --ntasks-per-node=2 --wrap \
        "srun --quiet --mpi=$mpi $PWD/inside fsdp-launch -v run.yaml" 2>err
    rc=$?
    [ $rc = 0 ] && grep -q "HYBRID_SHARD, 2 x 2 (replicate x shard)" log && grep -q "done: 4 steps" log
    ok $? "ranks in containers train, --mpi=$mpi"
done
if [ "${MODE:-}" = net ]; then
    step --mpi=none -N2 -n4 --ntasks-per-node=2 -w n0,n1 "$PWD/inside" fsdp-launch --timeout 8 run.yaml
    [ $rc = 76 ] && grep -q "rank 2 on n1 found no rank 0 on n0: " err
    ok $? "srun from elsewhere cannot do that, and ends with the name of who was not found"
fi
echo "1..$n"
exit $bad
