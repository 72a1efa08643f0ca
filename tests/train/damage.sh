#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What training says to damaged checkpoints, wrong weights, a full disk and ranks that differ: the object
# is named, the status is not zero, and nothing is lost.
set -u
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/train.sh"
. "$TOP/tests/lib/disk.sh"
refused() { # what must stand in err, text; of the run before
    local code=$?
    [ $code != 0 ] && [ $code -lt 128 ] && grep -q -F -e "$1" err
    ok $? "$2: $(tail -n 2 err | head -n 1 | cut -c 1-150)"
}

make_input 300
cat >run.yaml <<END
model: {path: model, init: random}
data: {path: text, seq_len: 32}
train: {steps: 4, global_batch_size: 4}
optim: {schedule: constant}
fsdp: {timeout: 60}
checkpoint: {path: ck, interval: 2, fsync: false}
END
run -n 2 run.yaml
ok $? "a run to damage"

echo '{}' | tee secret >model/own.json
ln -s ../secret model/added_tokens.json
ln -s own.json model/generation_config.json
run -n 2 run.yaml checkpoint.path=linked
ok "$([ $? = 0 ] && [ "$(grep -c "added_tokens.json' is a link out of the model's folder" err)" = 1 ] &&
    ! [ -e linked/step-00000004/hf/added_tokens.json ] && [ -e linked/step-00000004/hf/generation_config.json ]; echo $?)" \
    "a link that leaves the model's folder is not kept in checkpoints, and is named once"
rm model/own.json model/added_tokens.json model/generation_config.json

"$BIN/ckpt-merge" ck/step-00000004 -o codes --quantize fp8_dynamic --quiet && cp model/config.json codes/config.json
run -n 2 run.yaml model.path=codes model.init=pretrained checkpoint.path=decoded
refused "holds codes in F8_E4M3, and their scales in '" "codes whose scales config.json does not describe"

# ---- checkpoints ---------------------------------------------------------------------------------------

shard=model/shard-00002-model-00001-of-00001.safetensors
damaged() { # name of the copy
    rm -rf "$1" && cp -r ck "$1" && target=$1/step-00000004
}
damaged lost && rm $target/$shard
run -n 2 run.yaml train.steps=6 checkpoint.path=lost
refused "$shard' is missing" "a shard is missing"
ok "$(grep -q 'checkpoint.resume may name an older one' err; echo $?)" "and the way to an older checkpoint"
damaged short && truncate -s -100 $target/$shard
run -n 2 run.yaml train.steps=6 checkpoint.path=short
refused "$shard' has" "a shard is truncated"
damaged flipped
at=$(($(stat -c %s $target/$shard) - 1000))
printf "$(printf '\\x%02x' $((0x$(xxd -s $at -l 1 -p $target/$shard 2>/dev/null || od -An -tx1 -j $at -N 1 $target/$shard | tr -d ' ') ^ 16)))" |
    dd of=$target/$shard bs=1 seek=$at conv=notrunc status=none
run -n 4 run.yaml train.steps=6 checkpoint.path=flipped
refused "shard-00002" "a bit is flipped"
damaged extra && cp $target/$shard $target/model/shard-00003-model-00001-of-00001.safetensors
run -n 2 run.yaml train.steps=6 checkpoint.path=extra
refused "shard-00003" "a shard too many"
for name in lost short flipped extra; do
    "$BIN/ckpt-merge" $name/step-00000004 -o $name.safetensors >log 2>err
    refused "shard-0000" "ckpt-merge of it ($name)"
    ls $name.safetensors* >/dev/null 2>&1
    ok $((!$?)) "leaves no output"
done
run -n 2 run.yaml train.steps=4 checkpoint.resume=lost/step-00000002 checkpoint.path=again
ok $? "the checkpoint before the damaged one resumes"

# ---- weights ---------------------------------------------------------------------------------------------

"$BIN/ckpt-merge" ck -o weights/ >log 2>err
layers=$(sed -n 's/.*"num_hidden_layers": *\([0-9]*\).*/\1/p' weights/config.json)
sed -i "s/\"num_hidden_layers\": *$layers/\"num_hidden_layers\": $((layers + 1))/" weights/config.json
run -n 2 run.yaml model.path=weights model.init=pretrained checkpoint.path=w
refused "model.layers.$layers." "weights lack a tensor"
sed -i "s/\"num_hidden_layers\": *$((layers + 1))/\"num_hidden_layers\": $layers/; s/\(\"intermediate_size\": *\)\([0-9]*\)/\1\20/" weights/config.json
run -n 2 run.yaml model.path=weights model.init=pretrained checkpoint.path=w
refused "mlp." "weights of another shape"

# ---- a full disk -------------------------------------------------------------------------------------------

mkdir small
why=$(why_no_disk)
if [ -z "$why" ]; then
    mount -t tmpfs -o size=$(($(du -sk ck/step-00000004 | cut -f1) * 5 / 2))k tmpfs small
    run -n 2 run.yaml checkpoint.path=small train.steps=8 checkpoint.keep=0
    refused "No space left on device" "a full disk"
    ok "$(ls small | grep -q tmp; echo $((!$?)))" "nothing half-written stays"
    newest=$(ls -d small/step-* | tail -n 1)
    "$BIN/ckpt-verify" "$newest" >log 2>err
    ok $? "what was saved before is whole ($newest)"
    umount small
else
    n=$((n + 1))
    echo "ok $n # SKIP a full disk: $why"
fi

# ---- ranks that differ --------------------------------------------------------------------------------------

export OMPI_MCA_mpi_yield_when_idle=1
mkdir here there
for d in here there; do cp -r model text run.yaml $d; done
differ() { # one program for all ranks: some mpirun die of two
    timeout 250 mpirun --oversubscribe --bind-to none -n 2 sh -c \
        '[ "$OMPI_COMM_WORLD_RANK" = 0 ] && cd here || cd there; exec "$0" run.yaml' "$launch" >log 2>err
}
sed -i 's/"rms_norm_eps": *[^,]*/"rms_norm_eps": 0.5/' there/model/config.json
differ
refused "rank 1 has another model or data than rank 0: 'hash of config.json" "another model of the same name"
sed -i 's/schedule: constant/schedule: linear/' there/run.yaml
differ
refused "'optim.schedule = linear' where rank 0 has 'optim.schedule = constant'" "another configuration"

echo "1..$n"
exit $bad
