#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Nodes started by hand (--nnodes), each in a network, a host name and a /dev/shm of its own: how they
# meet, whom they refuse and what they say when one is lost.
# run: long
# run: timeout=300
set -u
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/launcher/lib/nodes.sh"
nodes_up 3 || { echo "1..0 # SKIP no network namespaces here"; exit 0; }
trap nodes_down EXIT
L=$BIN/tests/launcher/test_launch
export BOOT_KEY_FILE=$PWD/key
echo "fake: {}" >c.yaml
saw() { grep -q -F -- "$2" "$1"; } # file, text

# ---- meeting ----

on 0 "$L" --master-addr n0 -n 2 -v c.yaml
on 1 "$L" --master-addr "${addr[0]}" -n 2 -v c.yaml
on 2 "$L" --master-addr "[${addr6[0]}]" -n 2 -v c.yaml
finish
[ "$rcs" = "0 0 0" ] && saw out.0 "rank 1 of 6, local 1 of 2, node 0 of 3, host n0" &&
    saw out.2 "rank 5 of 6, local 1 of 2, node 2 of 3, host n2" && saw err.0 "3 launchers on 3 nodes have met through nodes"
ok $? "3 nodes meet by name, IPv4 and IPv6 address; each prints its ranks"
[ "$(stat -c %a key)" = 600 ]
ok $? "node 0 has made the key"

# shellcheck disable=SC2016
program=(sh -c 'echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $NODE_RANK $MASTER_ADDR $MASTER_PORT')
on 0 "$L" -n 1 -- "${program[@]}"
on 1 "$L" -n 3 -- "${program[@]}"
on 2 "$L" -- "${program[@]}"
finish
[ "$rcs" = "0 0 0" ] && [ "$(cat out.0)" = "0 0 5 1 0 n0 $((port + 1))" ] &&
    [ "$(sort out.1 | cut -d' ' -f1-5 | xargs)" = "1 0 5 3 1 2 1 5 3 1 3 2 5 3 1" ] &&
    [ "$(cat out.2)" = "4 0 5 1 2 n0 $((port + 1))" ]
ok $? "a program's environment; nodes may have different numbers of ranks"

nnodes=2
export MASTER_ADDR=n0 MASTER_PORT=$((port + 100))
for i in 0 1; do NODE_RANK=$i at $i "$L" --nnodes 2 -n 2 c.yaml; done
unset MASTER_ADDR MASTER_PORT
finish
[ "$rcs" = "0 0" ] && [ "$(cat out.0 out.1 | wc -l)" = 4 ]
ok $? "NODE_RANK, MASTER_ADDR and MASTER_PORT are defaults"
for i in 0 1; do BOOT_INTERFACE=eth0 on $i "$L" c.yaml; done
finish
[ "$rcs" = "0 0" ]
ok $? "on the interface that is named"
for i in 0 1; do BOOT_INTERFACE=ib on $i "$L" --timeout 4 c.yaml; done
finish
[ "$rcs" != "0 0" ] && saw err.1 127.0.0.1
ok $? "not on one that is not there"

# ---- who is refused ----

on 0 "$L" --timeout 4 c.yaml
finish
[ "$rcs" = 76 ] && saw err.0 "node 1 (never connected)"
ok $? "a node that does not come is named"
on 1 "$L" --timeout 2 c.yaml
finish
[ "$rcs" = 76 ] && saw err.1 "node 1, n1, found no node 0 at port $port of n0"
ok $? "node 0 does not come"

nnodes=3
on 0 "$L" c.yaml
wait_until listens
at 1 "$L" --nnodes 3 --node-rank 1 "${where[@]}" c.yaml
as=9 at 2 "$L" --nnodes 2 --node-rank 1 "${where[@]}" c.yaml
wait "${pids[9]}"
[ $? = 2 ] && saw err.9 "node 1, n2, was refused: --nnodes 2 here, --nnodes 3 on node 0 (n0)"
ok $? "another --nnodes is refused"
wait_until '[ "$(meetings 1)" = 2 ]'
as=9 at 2 "$L" --nnodes 3 --node-rank 1 "${where[@]}" c.yaml
wait "${pids[9]}"
[ $? = 2 ] && saw err.9 "--node-rank 1 is taken by n1; every node needs a number of its own" &&
    wait_until 'saw err.0 "refused node 1, n2: --node-rank 1 is taken"'
ok $? "a second node of one number is refused, and node 0 says so"
version=$(sed -n 's/^#define FSDP_VERSION_STRING "\(.*\)"/\1/p' "$TOP/libfsdp/include/fsdp/base.h")
other=9.${version#*.}
LC_ALL=C sed "s/${version%.*}\./${other%.*}./g" "$L" >changed && chmod +x changed
as=9 at 2 ./changed --nnodes 3 --node-rank 2 "${where[@]}" c.yaml
wait "${pids[9]}"
[ $? = 2 ] && saw err.9 "node 2, n2, was refused: version $other of this program here, $version on node 0 (n0); install the same" &&
    wait_until 'saw err.0 "refused node 2, ${addr[2]}: version $other of this program here"'
ok $? "a node with another version of the program is refused, and node 0 says which"
as=9 at 2 "$L" --nnodes 3 --node-rank 0 "${where[@]}" c.yaml
wait "${pids[9]}"
[ $? = 2 ] && saw err.9 "--node-rank 0 belongs on the machine that --master-addr names, and n0 is not an address of this one, n2"
ok $? "node 0 on another machine than --master-addr names"
as=9 BOOT_KEY_FILE=$PWD/none at 2 "$L" --nnodes 3 --node-rank 2 "${where[@]}" c.yaml
wait "${pids[9]}"
[ $? = 2 ] && saw err.9 "node 2, n2, has no key: copy the file $PWD/none of node 0 (n0) to here" && [ ! -e none ]
ok $? "a node without a key, which makes none"
head -c 32 /dev/urandom >other && chmod 600 other
as=9 BOOT_KEY_FILE=$PWD/other at 2 "$L" --nnodes 3 --node-rank 2 "${where[@]}" c.yaml
wait "${pids[9]}"
[ $? = 2 ] && saw err.9 "node 2, n2: what answers on port $port of n0 has another key; copy node 0's $PWD/other to this node"
ok $? "a node with another key"
as=9 at 0 "$L" --nnodes 3 --node-rank 0 "${where[@]}" c.yaml
wait "${pids[9]}"
[ $? = 2 ] && saw err.9 "TCP port $port of n0 is in use; give all nodes another --master-port"
ok $? "a second job on the port"
unset "pids[9]"
on 2 "$L" c.yaml
finish
[ "$rcs" = "0 0 0" ]
ok $? "after all that, the right node comes late and the job runs"

# ---- losses and requests ----

nnodes=3
for i in 0 1 2; do on $i "$L" -n 2 c.yaml fake.mode=kill fake.rank=3; done
finish
[ "$rcs" = "76 76 76" ] && for i in 0 1 2; do saw err.$i "rank 3 on n1 was killed by signal 9 (Killed)" || break; done
ok $? "a rank dies: each node says which"
for i in 0 1 2; do on $i "$L" -n 2 c.yaml fake.mode=stop "fake.text=$PWD/k"; done
wait_until '[ -e k.0 ] && [ -e k.2 ] && [ -e k.3 ] && [ -e k.4 ]'
as=9 on 2 "$L" --timeout 3 c.yaml
wait "${pids[9]}"
[ $? = 2 ] && unset "pids[9]" && saw err.9 "--node-rank 2 is taken by n2"
ok $? "a node that comes when the job runs is refused"
kill -KILL "${pids[1]}"
finish
# The ranks there die with it: the others notice it, or one of them, first.
[ "$rcs" = "76 137 76" ] && grep -qE '(node 1, n1,|rank [23] on n1) is lost' err.0 &&
    grep -qE '(node 1, n1,|rank [23] on n1) is lost' err.2 &&
    wait_until "! kill -0 $(cat k.2) 2>/dev/null && ! kill -0 $(cat k.3) 2>/dev/null"
ok $? "a node's fsdp-launch is killed: the others end with 76, and its ranks too"
for i in 0 1 2; do on $i "$L" -n 2 c.yaml fake.mode=stop "fake.text=$PWD/z"; done
wait_until '[ -e z.0 ] && [ -e z.1 ] && [ -e z.2 ] && [ -e z.3 ] && [ -e z.4 ] && [ -e z.5 ]'
kill -INT "${pids[2]}"
finish
[ "$rcs" = "75 75 75" ] && saw out.0 "rank 0 saved" && saw out.1 "rank 3 saved" && saw out.2 "rank 5 saved"
ok $? "Ctrl-C on one node: all ranks save, and the job may be started again"
# shellcheck disable=SC2016
for i in 0 1 2; do on $i "$L" -- sh -c 'trap "exit 0" TERM; touch t.$RANK; while :; do sleep 0.1; done'; done
wait_until '[ -e t.0 ] && [ -e t.1 ] && [ -e t.2 ]'
kill -INT "${pids[1]}"
finish
[ "$rcs" = "0 0 0" ]
ok $? "and a program on all nodes is asked to end"
# shellcheck disable=SC2016
for i in 0 1 2; do on $i "$L" -- sh -c 'trap "" TERM; touch u.$RANK; while :; do sleep 0.1; done'; done
wait_until '[ -e u.0 ] && [ -e u.1 ] && [ -e u.2 ]'
kill -INT "${pids[1]}" && sleep 0.3 && kill -INT "${pids[1]}"
finish
[ "$rcs" = "143 130 143" ]
ok $? "a second Ctrl-C ends it everywhere"
for i in 0 1 2; do on $i "$L" -- sh -c '[ $RANK != 1 ] || exit 5; sleep 60'; done
finish
[ "$rcs" = "76 5 76" ] && saw err.0 "rank 1 on n1 exited with code 5" && saw err.1 "rank 1 on n1 exited with code 5"
ok $? "a program fails on one node: it ends on the others, which say why"
for i in 0 1 2; do on $i "$L" -n 2 c.yaml fake.mode=stop "fake.text=$PWD/y"; done
wait_until '[ -e y.0 ] && [ -e y.1 ] && [ -e y.2 ] && [ -e y.3 ] && [ -e y.4 ] && [ -e y.5 ]'
unplug 2
finish
plug 2
[ "$rcs" = "76 76 76" ] && grep -q "n2" err.0 && saw err.1 "n2" && grep -q "n0\|n1" err.2
ok $? "a cable is pulled: all end with 76 and name the other side"

# ---- training ----

. "$TOP/tests/lib/train.sh"
make_input
cat >run.yaml <<END
model: {path: model, init: random, seed: 1}
data: {path: text, seq_len: 32}
train: {steps: 6, global_batch_size: 12, seed: 2}
optim: {lr: 3.0e-3, schedule: cosine, warmup_steps: 2}
fsdp: {timeout: 60}
checkpoint: {interval: 3, fsync: false}
END
losses() { grep -o '"step": [0-9]*\|"loss": [0-9.]\{6\}' "$1" | xargs -n4; }
"$launch" -n 1 run.yaml checkpoint.path=one log.metrics=one.jsonl >log 2>err
for i in 0 1 2; do on $i "$launch" -n 1 run.yaml checkpoint.path=many log.metrics=many.jsonl; done
finish
[ "$rcs" = "0 0 0" ] && [ -n "$(losses one.jsonl)" ] && cmp -s <(losses one.jsonl) <(losses many.jsonl)
ok $? "3 nodes train to one machine's losses"
nnodes=2
rm -r many/step-00000006
for i in 0 1; do on $i "$launch" -n $((1 + i)) run.yaml checkpoint.path=many log.metrics=many.jsonl; done
finish
[ "$rcs" = "0 0" ] && saw out.0 "resumes from many/step-00000003" && cmp -s <(losses one.jsonl) <(losses many.jsonl)
ok $? "2 nodes of 1 and 2 ranks resume it, to the same losses"
for i in 0 1; do on $i "$launch" -n $((1 + i)) run.yaml fsdp.sharding_strategy=HYBRID_SHARD checkpoint.path=h; done
finish
[ "$rcs" != "0 0" ] && cat err.0 err.1 | grep -q "HYBRID_SHARD"
ok $? "a mesh that needs equal nodes refuses others"
for i in 0 1; do on $i "$launch" run.yaml "optim.lr=0.$((i + 1))" checkpoint.path=d; done
finish
[ "$rcs" != "0 0" ] && cat err.0 err.1 | grep -q "optim.lr"
ok $? "nodes with other settings are refused, and the setting is named"
on 0 "$launch" --check run.yaml
on 1 "$launch" --check run.yaml
finish
[ "$rcs" = "0 0" ]
ok $? "--check looks at both nodes"
echo "1..$n"
exit $bad
