#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# --from: configurations of accelerate and DeepSpeed, said in ours: each key does what it did, or is named; the
# result is a configuration that trains.
# run: timeout=200
set -u
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/train.sh"
from() { "$launch" --from "$@" >log 2>err; }
# The settings of ours, as section.key=value.
set_of() { "$launch" --print-config "$1" | awk '/^[a-z]+:/ { at = $1; sub(":", "", at) }
    /^  [a-z_0-9]+:/ { sub(/^  /, ""); sub(/: */, "="); print at "." $0 }'; }
sets() { # line...: each is a setting of the result
    local line
    cp log got.yaml && set_of got.yaml >got || return 1
    for line in "$@"; do grep -q -x -F -- "$line" got || { echo "no $line" >>err; return 1; }; done
}

# ---- accelerate ----

cat >fsdp1.yaml <<'END'
compute_environment: LOCAL_MACHINE
debug: false
distributed_type: FSDP
downcast_bf16: 'no'
enable_cpu_affinity: false
fsdp_config:
  fsdp_activation_checkpointing: true
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_backward_prefetch: BACKWARD_PRE
  fsdp_cpu_ram_efficient_loading: true
  fsdp_forward_prefetch: true
  fsdp_offload_params: true
  fsdp_sharding_strategy: HYBRID_SHARD
  fsdp_state_dict_type: FULL_STATE_DICT
  fsdp_sync_module_states: true
  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer,Embedding
  fsdp_use_orig_params: false
  fsdp_surprise: 7
machine_rank: 0
main_process_ip: 10.0.0.1
main_process_port: 29555
main_training_function: main
mixed_precision: bf16
num_machines: 2
num_processes: 8
rdzv_backend: static
same_network: true
tpu_env: []
tpu_use_cluster: false
use_cpu: false
dynamo_config:
  dynamo_backend: INDUCTOR
END
from fsdp1.yaml && sets fsdp.sharding_strategy=HYBRID_SHARD fsdp.param_dtype=bfloat16 fsdp.offload=params \
    fsdp.activation_checkpointing=full fsdp.wrap_policy=transformer 'fsdp.wrap_classes=[LlamaDecoderLayer, Embedding]' \
    fsdp.backward_prefetch=1 fsdp.forward_prefetch=1
ok $? "accelerate, FSDP 1: its settings"
holds err "without a counterpart: dynamo_config.dynamo_backend" && holds err "unknown keys: fsdp_config.fsdp_surprise" &&
    holds log "#   fsdp_config.fsdp_surprise: 7" && holds log "ckpt-merge makes the full weights"
ok $? "what has no counterpart and what is unknown is named, in the file and on the terminal"
holds err "fsdp-launch --nnodes 2 --node-rank R --master-addr 10.0.0.1 --master-port 29555 -n 4 run.yaml"
ok $? "the command that starts it"
# Every key is in the result.
sed -n -E 's/^( *)([a-z_0-9]+):.*/\2/p' fsdp1.yaml | grep -v -x 'fsdp_config\|dynamo_config' >keys
! grep -v -F -f <(grep -o -E '[a-z_0-9]+' log) keys >err
ok $? "no key is dropped"

cat >fsdp2.yaml <<'END'
distributed_type: FSDP
fsdp_config:
  fsdp_version: 2
  fsdp_reshard_after_forward: false
  fsdp_auto_wrap_policy: SIZE_BASED_WRAP
  fsdp_min_num_params: 1e6
  fsdp_offload_params: false
  fsdp_activation_checkpointing: false
parallelism_config:
  parallelism_config_dp_replicate_size: 2
  parallelism_config_dp_shard_size: 4
  parallelism_config_tp_size: 2
  parallelism_config_cp_size: 1
mixed_precision: 'no'
num_processes: 16
END
from fsdp2.yaml && sets fsdp.reshard_after_forward=false fsdp.wrap_policy=size fsdp.min_num_params=1000000 \
    fsdp.sharding_strategy=HYBRID_SHARD fsdp.shard_size=4 fsdp.param_dtype=float32 fsdp.offload=none &&
    holds err "without a counterpart: parallelism_config.parallelism_config_tp_size"
ok $? "accelerate, FSDP 2, with a mesh"
for pair in MULTI_GPU:NO_SHARD MULTI_CPU:NO_SHARD NO:FULL_SHARD; do
    echo "{distributed_type: '${pair%:*}', num_processes: 2}" >type.yaml
    from type.yaml && sets "fsdp.sharding_strategy=${pair#*:}" || break
done
ok $? "accelerate, plain data parallelism"
printf 'distributed_type: TPU\nmixed_precision: fp8\n' >odd.yaml
from odd.yaml && holds err "without a counterpart: distributed_type" && sets fsdp.param_dtype=bfloat16 model.linear_dtype=float8_e4m3
ok $? "accelerate, what there is not here"

printf 'distributed_type: FSDP\nmixed_precision: fp8\nfp8_config: {backend: TE, use_mxfp8_block_scaling: true}\n' >mx.yaml
from mx.yaml && sets model.linear_dtype=float8_e4m3 model.linear_scales=block && holds err "without a counterpart: fp8_config.backend"
ok $? "accelerate, scales of blocks"

# ---- DeepSpeed ----

cat >ds.json <<'END'
{
	"train_batch_size": 12,
	"train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 3,
    "steps_per_print": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-3, "betas": [0.8, 0.99], "eps": 1e-7, "weight_decay": 3e-2}},
    "scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": 6, "warmup_num_steps": 2,
        "cos_min_ratio": 0.1, "warmup_type": "linear"}},
    "gradient_clipping": 0.5,
    "bf16": {"enabled": true},
    "communication_data_type": "fp32",
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": true},
        "overlap_comm": true, "reduce_bucket_size": 5e8, "zero_quantized_gradients": true},
    "activation_checkpointing": {"number_checkpoints": 4, "cpu_checkpointing": true,
        "partition_activations": true},
    "flops_profiler": {"enabled": true, "profile_step": 3},
    "wall_clock_breakdown": true,
    "tensorboard": {"enabled": true, "output_path": "tb/", "job_name": "x"},
    "no_such_key": {"deep": [1, {"a": "b"}]}
}
END
from ds.json && sets train.global_batch_size=12 train.micro_batch_size=2 train.steps=6 optim.name=adamw optim.lr=0.003 \
    'optim.betas=[0.8, 0.99]' optim.eps=1e-07 optim.weight_decay=0.03 optim.decay=all optim.schedule=cosine \
    optim.warmup_steps=2 optim.min_lr=0.0003 optim.clip_grad_norm=0.5 fsdp.param_dtype=bfloat16 \
    fsdp.reduce_dtype=float32 fsdp.sharding_strategy=FULL_SHARD fsdp.offload=optimizer \
    fsdp.activation_checkpointing=full fsdp.offload_activations=true log.interval=2 log.tensorboard=tb/
ok $? "DeepSpeed: its settings"
holds err "without a counterpart: zero_optimization.zero_quantized_gradients, activation_checkpointing.partition_activations" &&
    holds err "unknown keys: no_such_key.deep" && holds log "no_such_key.deep: [1, {a: b}]"
ok $? "DeepSpeed: what has no counterpart"
bare='"train_batch_size": 12, "bf16": {"enabled": true, "bf16_master_weights_and_grads": true}'
echo "{$bare}" >bare.json
echo "{\"data_types\": {\"grad_accum_dtype\": \"fp32\"}, $bare}" >wide.json
echo '{"train_batch_size": 12, "data_types": {"grad_accum_dtype": "bf16"}}' >narrow.json
from bare.json && sets optim.master=none fsdp.grad_dtype=bfloat16 && from wide.json && sets optim.master=none fsdp.grad_dtype=float32 &&
    from narrow.json && sets fsdp.grad_dtype=bfloat16
ok $? "DeepSpeed: types of gradients"
cat >auto.json <<'END'
{"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2, "gradient_clipping": "auto",
 "fp16": {"enabled": true, "loss_scale": 0, "initial_scale_power": 12, "loss_scale_window": 500, "hysteresis": 2},
 "optimizer": {"type": "SGD", "params": {"lr": "auto", "momentum": 0.5, "nesterov": true}},
 "scheduler": {"type": "OneCycle", "params": {"cycle_max_lr": 0.1}},
 "zero_optimization": {"stage": 2, "zero_hpz_partition_size": 4}}
END
from auto.json && sets train.global_batch_size=8 fsdp.param_dtype=float16 fsdp.loss_scale_init=4096 \
    fsdp.loss_scale_interval=500 optim.name=sgd optim.momentum=0.5 optim.nesterov=true optim.clip_grad_norm=1 \
    fsdp.sharding_strategy=SHARD_GRAD_OP fsdp.reshard_after_forward=4 &&
    holds err "to fill in: gradient_clipping, optimizer.params.lr" && holds log "MULTIPLY BY THE NUMBER OF RANKS" &&
    holds err "without a counterpart: fp16.hysteresis, scheduler.type, scheduler.params.cycle_max_lr"
ok $? "DeepSpeed: auto, fp16, SGD, another schedule"
echo '{"train_batch_size": 8, "fp16": {"enabled": true, "loss_scale": 128}, "zero_optimization": {"stage": 1}}' >static.json
from static.json && sets fsdp.loss_scale_init=128 fsdp.loss_scale_interval=0 fsdp.loss_scale_backoff=1 \
    fsdp.sharding_strategy=ZERO1 optim.clip_grad_norm=0
ok $? "DeepSpeed: a loss scale that stays"
mkdir -p deep && cp static.json deep/ &&
    echo "{distributed_type: DEEPSPEED, deepspeed_config: {deepspeed_config_file: static.json}, num_processes: 4}" >deep/acc.yaml
from deep/acc.yaml && sets fsdp.loss_scale_init=128 fsdp.sharding_strategy=ZERO1 train.global_batch_size=8
ok $? "accelerate with a file of DeepSpeed: both are read"
cat >plugin.yaml <<'END'
distributed_type: DEEPSPEED
deepspeed_config: {gradient_accumulation_steps: 4, gradient_clipping: 0.7, offload_optimizer_device: nvme,
  offload_optimizer_nvme_path: /local/nvme, offload_param_device: none, zero3_init_flag: true,
  zero3_save_16bit_model: true, zero_stage: 2}
mixed_precision: fp16
num_processes: 4
END
from plugin.yaml && sets optim.clip_grad_norm=0.7 fsdp.offload=optimizer fsdp.offload_dir=/local/nvme \
    fsdp.sharding_strategy=SHARD_GRAD_OP fsdp.param_dtype=float16 && holds log "train.global_batch_size is rows of a step"
ok $? "accelerate's own section for DeepSpeed"

# ---- the result trains ----

make_input
from ds.json -o run.yaml && [ ! -s log ] && sed -i 's/MODEL_FOLDER/model/; s/DATA_FILES/text/' run.yaml &&
    "$launch" -n 2 run.yaml model.init=random data.seq_len=32 log.metrics=m.jsonl >log 2>err && [ "$(wc -l <m.jsonl)" = 6 ]
ok $? "-o writes it; with model and data it trains on 2 ranks"
cp run.yaml before
"$launch" --from ds.json -o run.yaml >log 2>err
[ $? = 2 ] && cmp -s run.yaml before && holds err "run.yaml is there already"
ok $? "a file that is there is left alone"

# ---- refusals ----

refuses() { # text, file: status 2 and the text
    "$launch" --from "$2" >log 2>err
    [ $? = 2 ] && [ ! -s log ] && holds err "$1"
}
echo 'apiVersion: v1' >other.yaml
refuses "other.yaml: neither a configuration of accelerate nor of DeepSpeed" other.yaml
ok $? "another program's file"
echo '{"train_batch_size": 8,' >cut.json
refuses "cut.json:" cut.json
ok $? "a file that ends early"
printf 'use_cpu: true\nuse_cpu: false\n' >twice.yaml
refuses "twice.yaml:2: this key is in the file twice" twice.yaml
ok $? "a key that is there twice"
refuses "none.yaml: No such file" none.yaml && : >empty.yaml && refuses "empty.yaml:" empty.yaml
ok $? "no file, and an empty one"
{ for _ in $(seq 60); do printf '{"a":'; done; echo 1; } >depth.json
refuses "depth.json:1:" depth.json
ok $? "nested without end"
"$launch" --from ds.json run.yaml >log 2>err
[ $? = 2 ] && holds err "--from FILE starts nothing"
ok $? "with a configuration"

# ---- the tables of docs/migrate.md ----

cp "$TOP/examples/llama-tiny.yaml" own.yaml && "$BIN/fsdp-launch" --from own.yaml >log 2>err
ok "$([ $? != 0 ] && grep -q 'own.yaml: is a configuration of fsdp-launch already' err; echo $?)" "one of fsdp-launch itself is refused"
for name in accelerate deepspeed; do
    "$BIN/tests/models/test_from" --table $name | grep '^|' >want
    [ -s want ] && ! grep -v -x -F -f "$TOP/docs/migrate.md" want >log
    ok $? "docs/migrate.md has the table of $name"
done
echo "1..$n"
exit $bad
