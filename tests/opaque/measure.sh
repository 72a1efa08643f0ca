#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# fsdp-plan --measure on a device whose memory is not the host's: what the host does for it is measured, too.
# run: timeout=300 local=2
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/train.sh"
export FSDP_CUDA_LIBRARY=$BIN/tests/libfsdp-opaque.so

cat >run.yaml <<END
model: {path: $TOP/tests/data/llama-tiny, init: random}
data: {path: $TOP/docs/gpu.md, seq_len: 32, tokenizer: bytes}
train: {steps: 2, global_batch_size: 4}
fsdp: {device: cuda, offload: optimizer, offload_gradients: true}
END

measure() {
    "$BIN/fsdp-plan" run.yaml --measure -n 2 -o cluster.yaml "$@" >log 2>err
}

measure
ok "$([ $? != 0 ] && holds err 'no stock numbers of this device: say with --gpu' && ! holds err 'passes over memory'; echo $?)" \
    "a device without stock numbers is refused before anything is measured: $(cat err)"
measure --gpu h100
ok $? "with them two ranks measure: $(tail -n 1 err)"
ok "$(holds cluster.yaml '  host: ' && holds cluster.yaml '  host_memory: '; echo $?)" "copies to the host, and updates on it"
"$BIN/fsdp-plan" run.yaml --cluster cluster.yaml -v fsdp.offload_update=host >plan 2>err
ok "$([ $? = 0 ] && holds plan 'measured: measured.host_memory'; echo $?)" "plans take the rates: $(cat err)"
host_s() { # what-ifs
    "$BIN/fsdp-plan" run.yaml --cluster cluster.yaml fsdp.offload_update=host --json - "$@" 2>err |
        sed -n 's/.*"host_updates_s": \([0-9.e+-]*\).*/\1/p'
}
ok "$(awk -v a="$(host_s)" -v b="$(host_s --what-if node.host_memory=1e6)" 'BEGIN {exit !(a > 0 && b > 10 * a)}'; echo $?)" \
    "and a number of the command line in their place: $(cat err)"
"$BIN/fsdp-plan" run.yaml --cluster cluster.yaml --what-if gpu.hbm=1e9 >plan 2>err
ok "$([ $? != 0 ] && holds err 'gpu.hbm changes nothing: the table measured.copy has taken its place'; echo $?)" \
    "one that a table replaced is refused: $(cat err)"

echo "1..$n"
exit $bad
