#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# run: timeout=400
# Whole runs whose optimizer state, or parameters too, live in host memory, or that state in files with either, or whose activations
# and gradient shards do, end in the bits of a run that keeps them there: accumulated, clipped, saved, saved in the background, resumed either way.
set -u
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/train.sh"
. "$TOP/tests/lib/disk.sh"
run() { "$BIN/fsdp-launch" "$@" >log 2>err || { sed 's/^/# /' err; false; }; }
same() { "$BIN/ckpt-diff" "$1" "$2" >log 2>err || { sed 's/^/# /' err log; false; }; }
losses() { sed -E 's/.*"loss": ([^,]*),.*"grad_norm": ([^,]*),.*/\1 \2/' "$1"; }

make_input
cat >run.yaml <<END
model: {path: model, init: random, seed: 1}
data: {path: text, seq_len: 32}
train: {steps: 6, global_batch_size: 12, micro_batch_size: 2, seed: 2, eval_interval: 2}
optim: {lr: 3.0e-3, schedule: cosine, warmup_steps: 2, clip_grad_norm: 0.5, ema_decay: 0.9}
fsdp: {timeout: 60}
checkpoint: {interval: 3, fsync: false}
END
narrow="fsdp.param_dtype=bfloat16 optim.moment_dtype=bfloat16 optim.master=split"

declare -A to=([optimizer]=fsdp.offload=optimizer [params]=fsdp.offload=params
    [files]="fsdp.offload=optimizer fsdp.offload_dir=disk" [both]="fsdp.offload=params fsdp.offload_dir=disk"
    [activations]="fsdp.offload_activations=true fsdp.offload_slots=1"
    [rest]="fsdp.offload_activations=true fsdp.offload_gradients=true fsdp.offload_slots=1"
    [once]="fsdp.offload_activations=true fsdp.offload_gradients=true fsdp.reduce_last=true"
    [host]="fsdp.offload=optimizer fsdp.offload_gradients=true fsdp.offload_update=host"
    [host-all]="fsdp.offload=params fsdp.offload_gradients=true fsdp.offload_update=host train.threads=2"
    [host-files]="fsdp.offload=optimizer fsdp.offload_dir=disk fsdp.offload_gradients=true fsdp.offload_update=host")
mkdir disk
compare() { # text, ranks, settings, updates on the host
    # shellcheck disable=SC2086
    run -n "$2" run.yaml $3 checkpoint.path="here$n" log.metrics="here$n.jsonl"
    local here=here$n what away=rest
    [ "$2" != 1 ] || away=once # else micro-steps are summed as on several ranks, with other roundings
    case "$3" in *update_at=reduce*) away=activations ;; esac # there are no gradient shards
    # shellcheck disable=SC2086
    for what in optimizer params files both $away $4; do
        # shellcheck disable=SC2086
        run -n "$2" run.yaml $3 ${to[$what]} checkpoint.path="$here-$what" log.metrics="$here-$what.jsonl" \
            checkpoint.async=true && cmp -s <(losses "$here.jsonl") <(losses "$here-$what.jsonl") &&
            same "$here/step-00000003" "$here-$what/step-00000003" &&
            same "$here/step-00000006" "$here-$what/step-00000006"
        ok $? "$1: ${to[$what]}: losses, norms and two checkpoints are the same"
    done
}
compare "2 ranks in fp32" 2 "" "host host-all host-files"
compare "3 ranks, masters split, moments in bfloat16" 3 "$narrow" ""
compare "3 ranks, the same without an average" 3 "$narrow optim.ema_decay=0" "host host-files"
compare "2 ranks, units below the layer, recomputed, updates at the reduction" 2 "fsdp.param_dtype=bfloat16 \
    fsdp.activation_checkpointing=full fsdp.wrap_classes=[LlamaDecoderLayer,LlamaMLP] train.micro_batch_size=6 \
    fsdp.update_at=reduce optim.clip_grad_norm=0" ""
compare "1 rank, SGD with split masters" 1 "fsdp.param_dtype=bfloat16 optim.master=split optim.name=sgd optim.lr=0.05" ""
compare "2 ranks in fp16, whose first steps are skipped" 2 \
    "fsdp.param_dtype=float16 fsdp.loss_scale_init=1.0e12 fsdp.loss_scale_backoff=1.0e-4" "host host-all"
ok "$(grep -q -E '"skipped": ?2' here*/step-00000006/manifest.json; echo $?)" "two of them were"

# The embedding's optimizer keeps nothing: its weights come to the place that moments are still written from.
sed '/^optim:/s/, ema_decay: 0.9/, momentum: 0, groups: ["*embed*: optimizer=sgd"]/' run.yaml >kept.yaml
run -n 2 kept.yaml checkpoint.path=kept && run -n 2 kept.yaml ${to[both]} fsdp.offload_slots=1 checkpoint.path=kept-both &&
    same kept/step-00000003 kept-both/step-00000003 && same kept/step-00000006 kept-both/step-00000006
ok $? "a unit without state between others, offloaded"
passing() { "$BIN/fsdp-plan" kept.yaml -n 2 fsdp.offload=optimizer "fsdp.offload_slots=$1" | grep 'passing through'; }
ok "$([ "$(passing 64)" ] && [ "$(passing 64)" = "$(passing 32)" ] && [ "$(passing 64)" != "$(passing 1)" ] &&
    run -n 2 kept.yaml ${to[both]} fsdp.offload_slots=64 checkpoint.path=kept-many &&
    same kept/step-00000006 kept-many/step-00000006; echo $?)" "there are no more places than units"

# shellcheck disable=SC2086
run -n 2 run.yaml $narrow checkpoint.path=a && cp -r a b && rm -r b/step-00000006 &&
    run -n 2 run.yaml $narrow checkpoint.path=b fsdp.offload=params && same a/step-00000006 b/step-00000006
ok $? "resumed with its parameters offloaded"
# shellcheck disable=SC2086
cp -r b c && rm -r c/step-00000006 && run -n 2 run.yaml $narrow checkpoint.path=c fsdp.offload=optimizer \
    fsdp.offload_slots=1 && same a/step-00000006 c/step-00000006
ok $? "and with the optimizer's state, through one place"
# shellcheck disable=SC2086
cp -r b f && rm -r f/step-00000006 && cp -r b g && rm -r g/step-00000006 &&
    run -n 3 run.yaml $narrow checkpoint.path=f && run -n 3 run.yaml $narrow checkpoint.path=g ${to[files]} &&
    same f/step-00000006 g/step-00000006
ok $? "with that in files, on other ranks"
# shellcheck disable=SC2086
run -n 2 run.yaml $narrow checkpoint.path=h ${to[files]} && same a/step-00000006 h/step-00000006 && rm -r h/step-00000006 &&
    run -n 2 run.yaml $narrow checkpoint.path=h && same a/step-00000006 h/step-00000006
ok $? "and back from them"

run -v -n 2 run.yaml fsdp.offload=optimizer train.steps=1
ok "$([ $? = 0 ] && holds log "the optimizer's state, to host memory, through 2 places" &&
    holds log 'offloaded state passing through' && holds log 'state offloaded to the host'; echo $?)" "the tables show it"
run -v -n 2 run.yaml ${to[files]} train.steps=1
ok "$([ $? = 0 ] && holds log "the optimizer's state, to files in disk, through 2 places" &&
    holds log 'state offloaded to a file' && ! holds log 'state offloaded to the host'; echo $?)" "those of files, too"
run -v -n 2 run.yaml $narrow ${to[both]} train.steps=1
ok "$([ $? = 0 ] && holds log "parameters to host memory, the optimizer's state, to files in disk" &&
    holds log 'state offloaded to a file' && holds log 'parameters offloaded to the host'; echo $?)" "and those of both"
ok "$([ -z "$(ls -A disk)" ]; echo $?)" "none of which stays"
run -n 2 run.yaml ${to[files]} train.steps=1
ok "$([ $? = 0 ] && holds log ' a rank, in a file ' && ! holds log 'host memory'; echo $?)" "the start names the file"
"$BIN/fsdp-launch" -n 2 run.yaml fsdp.offload=optimizer fsdp.offload_dir=none >log 2>err
ok "$([ $? != 0 ] && holds err 'offloaded state of rank ' && holds err ', in none/' && holds err 'No such file or directory' &&
    holds err 'fsdp.offload_dir'; echo $?)" "a folder that is not there is refused"
why=$(why_no_disk own)
if [ -z "$why" ]; then
    mkdir small
    unshare -m sh -c 'mount -t tmpfs -o size=300k tmpfs small && exec "$@"' - "$BIN/fsdp-launch" -n 2 run.yaml \
        fsdp.offload=optimizer fsdp.offload_dir=small log.metrics=small.jsonl >log 2>err
    ok "$([ $? != 0 ] && holds err 'No space left on device' && holds err ', in small/' && holds err ' are free: No space' && holds err 'free as much' &&
        [ ! -s small.jsonl ]; echo $?)" "a full disk is found before the first step"
else
    n=$((n + 1)) && echo "ok $n # SKIP $why"
fi
run -v -n 2 run.yaml ${to[host]} train.steps=1
ok "$([ $? = 0 ] && holds log "the optimizer's state, to host memory, through 2 places on the host" &&
    holds log ' of each rank' && holds log 'passing through the host for updates'; echo $?)" "updates on the host are told"
"$BIN/fsdp-launch" -n 2 run.yaml ${to[host-all]} --dump-schedule >log 2>err
ok "$([ $? = 0 ] && grep -q 'download *store_scalars' log && grep -q 'update *update' log && ! grep -q ' fetch ' log; echo $?)" \
    "they have their lane, and nothing but the scalars is copied for them"
refused() { # text of the error, settings
    "$BIN/fsdp-launch" -n 2 run.yaml fsdp.offload_update=host "${@:2}" >log 2>err
    ok "$([ $? != 0 ] && holds err fsdp.offload_update && holds err "$1"; echo $?)" "refused: $1"
}
refused 'set fsdp.offload_gradients true' fsdp.offload=params
refused 'averages need whole masters: set optim.master whole' fsdp.offload=params fsdp.offload_gradients=true \
    fsdp.param_dtype=bfloat16 optim.master=split
"$BIN/fsdp-launch" -n 2 run.yaml fsdp.offload_update=host >log 2>err
ok "$([ $? != 0 ] && holds err 'set fsdp.offload optimizer or params'; echo $?)" "nor without anything that lives there"
"$BIN/fsdp-launch" -n 2 run.yaml fsdp.offload=params --dump-schedule >log 2>err
ok "$([ $? = 0 ] && grep -q 'upload *load' log && grep -q 'upload *fetch' log && grep -q 'download *store' log; echo $?)" \
    "and so does the schedule"
"$BIN/fsdp-launch" -n 2 run.yaml fsdp.offload=params fsdp.gather_dtype=float8_e4m3 >log 2>err
ok "$([ $? != 0 ] && holds err 'fsdp.offload' && holds err 'F8_E4M3'; echo $?)" \
    "the gathered copy as fp8 cannot be offloaded: it is said"
run -n 2 run.yaml fsdp.offload=optimizer fsdp.gather_dtype=float8_e4m3 checkpoint.path=d &&
    run -n 2 run.yaml fsdp.gather_dtype=float8_e4m3 checkpoint.path=e && same d/step-00000006 e/step-00000006
ok $? "but the optimizer next to it can"

echo "1..$n"
exit $bad
