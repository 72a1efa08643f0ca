#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Whole runs on a device whose memory the host cannot touch (opaque.c) end in the CPU's bits: with work
# done at once, and with work put off until somebody waits for it, in random order.
# run: long
# run: timeout=900
cd "$TOP" || exit 1
export FSDP_CUDA_LIBRARY=$BIN/tests/libfsdp-opaque.so FSDP_CUDA_TUNE=$TEST_TMP/tune

n=0 bad=0
run() { # folder, setting of the environment, options of fsdp-launch, key=value...
    local to=$TEST_TMP/$1
    # shellcheck disable=SC2086
    env "$2" "$BIN/fsdp-launch" $3 examples/llama-tiny.yaml train.threads=1 train.steps=4 \
        data.eval_path=libfsdp/include/fsdp/mesh.h train.eval_interval=2 optim.warmup_steps=1 "checkpoint.path=$to" "${@:4}" >"$to.out" 2>&1
}
same() { # text, options, key=value...
    local text=$1 how seed
    shift
    n=$((n + 1))
    rm -rf "$TEST_TMP"/{cpu,opaque}
    if ! run cpu _= "$@" fsdp.device=cpu; then
        echo "not ok $n - $text: the CPU's own run"
        bad=1
        tail -n 5 "$TEST_TMP/cpu.out" | sed 's/^/# /'
        return
    fi
    for how in at-once put-off; do
        seed=_=
        [ $how = at-once ] || seed=OPAQUE_SEED=$n
        rm -rf "$TEST_TMP/opaque"
        if ! run opaque "$seed" "$@" fsdp.device=cuda ||
            ! "$BIN/ckpt-diff" "$TEST_TMP/cpu/step-00000004" "$TEST_TMP/opaque/step-00000004" \
                >"$TEST_TMP/diff" 2>&1; then
            echo "not ok $n - $text, $how"
            bad=1
            tail -n 12 "$TEST_TMP/opaque.out" "$TEST_TMP/diff" | sed 's/^/# /'
            return
        fi
    done
    echo "ok $n - $text"
}
same "bf16, moments in 8 bits, saved in the background" "-n 1" fsdp.param_dtype=bfloat16 \
    fsdp.reduce_dtype=bfloat16 fsdp.grad_dtype=bfloat16 optim.name=adamw8bit fsdp.output_dtype=bfloat16 \
    checkpoint.interval=2 checkpoint.async=true
same "fp16 with its loss scale, accumulated, traced" "-n 1" fsdp.param_dtype=float16 \
    fsdp.output_dtype=float32 \
    train.micro_batch_size=4 "log.trace=$TEST_TMP/trace.json" log.trace_steps=2
same "two ranks, recomputed, averages, gathered as fp8" "-n 2" fsdp.activation_checkpointing=full \
    optim.ema_decay=0.9 fsdp.gather_dtype=float8_e4m3
same "two nodes, SGD, dropout, results read late" "-n 2 --nodes 2" fsdp.sharding_strategy=HYBRID_SHARD \
    optim.name=sgd optim.momentum=0.9 model.dropout=0.1 train.late_results=true
same "two nodes, results of four micro-steps summed between them" "-n 2 --nodes 2" \
    fsdp.sharding_strategy=HYBRID_SHARD train.micro_batch_size=2 optim.ema_decay=0.9
same "two ranks, replicas of four micro-steps, updates at the reduction" "-n 2" fsdp.sharding_strategy=NO_SHARD \
    train.micro_batch_size=2 fsdp.reduce_last=true fsdp.update_at=reduce optim.clip_late=true
for i in {1..80}; do
    printf '{"text": "%s"}\n' "$(head -c $((i * 37 % 90 + 1)) /dev/zero | tr '\0' "\\$(printf %o $((97 + i % 26)))")"
done >"$TEST_TMP/short.jsonl"
same "two ranks, rows of several documents, accumulated" "-n 2" "data.path=$TEST_TMP/short.jsonl" \
    "data.eval_path=$TEST_TMP/short.jsonl" data.format=jsonl train.micro_batch_size=2
same "two ranks, Lion, in bf16, products in 8 bits, of weights gathered so" "-n 2" optim.name=lion \
    fsdp.param_dtype=bfloat16 fsdp.output_dtype=float32 model.linear_dtype=float8_e4m3 fsdp.gather_dtype=float8_e4m3
same "two ranks, schedule-free AdamW, offloaded" "-n 2" optim.name=schedulefree optim.schedule=constant \
    fsdp.offload=optimizer
same "two ranks, Muon" "-n 2" optim.name=muon optim.momentum=0.95 optim.nesterov=true
same "two ranks, Adafactor" "-n 2" optim.name=adafactor optim.groups=[]
offloaded=(fsdp.param_dtype=bfloat16 fsdp.output_dtype=float32 optim.moment_dtype=bfloat16 optim.master=split fsdp.offload=params)
same "two ranks, masters split, moments in bf16, all of it offloaded" "-n 2" "${offloaded[@]}"
mkdir -p "$TEST_TMP/mixture"
cat >"$TEST_TMP/mixture/config.json" <<'END'
{"model_type": "mixtral", "vocab_size": 256, "hidden_size": 36, "intermediate_size": 20, "num_hidden_layers": 2,
 "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "head_dim": 10,
 "num_local_experts": 5, "output_router_logits": true, "router_aux_loss_coef": 0.1}
END
same "two ranks, a mixture of experts, recomputed, its experts units" "-n 2" "model.path=$TEST_TMP/mixture" \
    model.init=random fsdp.activation_checkpointing=full 'fsdp.wrap_classes=[MixtralDecoderLayer,MixtralSparseMoeBlock]'
same "two ranks, experts in 8 bits, of weights that travel so" "-n 2" "model.path=$TEST_TMP/mixture" model.init=random \
    fsdp.param_dtype=bfloat16 fsdp.output_dtype=float32 model.linear_dtype=float8_e4m3 fsdp.gather_dtype=float8_e4m3 \
    'model.linear_targets=[all-linear,experts]'
mkdir -p "$TEST_TMP/biased"
cat >"$TEST_TMP/biased/config.json" <<'END'
{"model_type": "gpt_oss", "vocab_size": 256, "hidden_size": 36, "intermediate_size": 20, "num_hidden_layers": 2,
 "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "head_dim": 10,
 "num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 9}
END
same "two ranks, experts with biases, in bf16" "-n 2" "model.path=$TEST_TMP/biased" model.init=random \
    fsdp.param_dtype=bfloat16 fsdp.output_dtype=float32
"$BIN/ckpt-merge" -q "$TEST_TMP/cpu" -o "$TEST_TMP/experts/" >"$TEST_TMP/merge.out" 2>&1
same "two ranks, adapters on these experts, accumulated" "-n 2" "model.path=$TEST_TMP/experts" model.init=pretrained \
    lora.r=3 'lora.target_parameters=[gate_up_proj,down_proj]' train.micro_batch_size=2 fsdp.param_dtype=bfloat16 \
    fsdp.output_dtype=float32
# One rank: a writer's wait comes at another moment on each, and with it another order at random.
same "all of it offloaded, the optimizer's state to files, saved in the background" "-n 1" "${offloaded[@]}" \
    "fsdp.offload_dir=$TEST_TMP" checkpoint.interval=2 checkpoint.async=true
same "the optimizer's state offloaded, accumulated" "-n 1" fsdp.offload=optimizer train.micro_batch_size=4
on_host=(fsdp.offload_gradients=true fsdp.offload_update=host)
same "two ranks, updates on the host" "-n 2" fsdp.offload=optimizer "${on_host[@]}"
same "the same, masters split, moments in bf16, all of it offloaded" "-n 2" "${offloaded[@]}" "${on_host[@]}"
same "the same, to files, saved in the background" "-n 1" "${offloaded[@]}" "${on_host[@]}" \
    "fsdp.offload_dir=$TEST_TMP" checkpoint.interval=2 checkpoint.async=true
same "two ranks in fp16, updates on the host" "-n 2" fsdp.param_dtype=float16 fsdp.output_dtype=float32 fsdp.loss_scale_init=1.0e12 \
    fsdp.loss_scale_backoff=1.0e-4 fsdp.offload=optimizer "${on_host[@]}"

"$BIN/ckpt-merge" -q "$TEST_TMP/cpu" -o "$TEST_TMP/base/" >"$TEST_TMP/merge.out" 2>&1
same "adapters on a model in NF4" "-n 1" "model.path=$TEST_TMP/base" model.init=pretrained lora.r=4 lora.dora=true \
    lora.base=nf4 fsdp.param_dtype=bfloat16 fsdp.output_dtype=float32

# Logits have the type of the parameters on a GPU, and on a CPU that multiplies in it; else fp32, unless a setting says
# otherwise.
n=$((n + 1))
logits() { # folder, device, type, key=value...
    run "$1" _= "-n 1 -v" "fsdp.device=$2" checkpoint.path= train.steps=1 "${@:4}" &&
        grep -q "types .*logits $3, gradients" "$TEST_TMP/$1.out"
}
unset DNNL_MAX_CPU_ISA ONEDNN_MAX_CPU_ISA
here=float32
"$BIN/fsdp-launch" --version | grep -q '+dnnl' && grep -qE ' (avx512_bf16|amx_bf16)( |$)' /proc/cpuinfo && here=bfloat16
if logits opaque cuda bfloat16 fsdp.param_dtype=bfloat16 && logits cpu cpu $here fsdp.param_dtype=bfloat16 &&
    DNNL_MAX_CPU_ISA=AVX2 logits cpu cpu float32 fsdp.param_dtype=bfloat16 &&
    run cpu _= "-n 1" fsdp.device=cpu checkpoint.path= train.steps=1 fsdp.param_dtype=bfloat16 &&
    grep -q "types  *parameters bfloat16, logits $here, " "$TEST_TMP/cpu.out" &&
    logits cpu cpu float32 fsdp.param_dtype=float16 &&
    logits opaque cuda float32 && logits opaque cuda float32 fsdp.param_dtype=bf16 fsdp.output_dtype=float32; then
    echo "ok $n - the type of the logits follows the parameters where the device multiplies in it"
else
    echo "not ok $n - the type of the logits follows the parameters where the device multiplies in it"
    grep -h 'types' "$TEST_TMP"/{opaque,cpu}.out | sed 's/^/# /'
    bad=1
fi

# What is timed before the first step is kept, is the same on all ranks, and a file that is damaged is
# made anew.
n=$((n + 1))
tuned() { # what is said of it
    rm -rf "$TEST_TMP/opaque"
    run opaque "FSDP_CUDA_TUNE=$TEST_TMP/cache/below" "-n 2" fsdp.device=cuda train.steps=1 &&
        grep -q "warmed up in .*products: $1\$" "$TEST_TMP/opaque.out" &&
        [ "$(echo "$TEST_TMP"/cache/below/*)" = "$TEST_TMP/cache/below/products-"???????????????? ]
}
tuned "0 known, 1 timed" && tuned "1 known, 0 timed" && truncate -s -1 "$TEST_TMP"/cache/below/products-* &&
    tuned "0 known, 1 timed" && grep -q 'products-.* is damaged' "$TEST_TMP/opaque.out" &&
    tuned "1 known, 0 timed" && ! grep -q 'damaged' "$TEST_TMP/opaque.out" &&
    run opaque FSDP_CUDA_TUNE=off "-n 2" fsdp.device=cuda train.steps=1 checkpoint.resume=never \
        checkpoint.path= && ! grep -q 'products:' "$TEST_TMP/opaque.out"
if [ $? = 0 ]; then
    echo "ok $n - products are timed once"
else
    echo "not ok $n - products are timed once"
    tail -n 12 "$TEST_TMP/opaque.out" | sed 's/^/# /'
    bad=1
fi

# A device that hangs for good does not hold a run that has failed: the process ends, with its code.
n=$((n + 1))
run opaque OPAQUE_HANGS=1 "-n 1" fsdp.device=cuda checkpoint.path= train.steps=20 train.on_nonfinite=stop \
    optim.lr=1e30 optim.clip_grad_norm=0 optim.warmup_steps=0
if [ $? = 1 ] && grep -q 'train.on_nonfinite is stop' "$TEST_TMP/opaque.out" &&
    grep -q 'rank 0 on .*: its GPU hangs: .* within 30 s of the abort' "$TEST_TMP/opaque.out"; then
    echo "ok $n - a device that hangs does not hold a run that has failed"
else
    echo "not ok $n - a device that hangs does not hold a run that has failed"
    tail -n 12 "$TEST_TMP/opaque.out" | sed 's/^/# /'
    bad=1
fi

# On another number of ranks, from what the other device left.
n=$((n + 1))
rm -rf "$TEST_TMP"/{cpu,opaque}
run cpu _= "-n 2" fsdp.device=cpu train.steps=2 && cp -r "$TEST_TMP/cpu" "$TEST_TMP/opaque" &&
    run cpu _= "-n 1" fsdp.device=cpu && run opaque OPAQUE_SEED=1 "-n 1" fsdp.device=cuda &&
    grep -q 'resum' "$TEST_TMP/opaque.out" &&
    "$BIN/ckpt-diff" "$TEST_TMP/cpu/step-00000004" "$TEST_TMP/opaque/step-00000004" >"$TEST_TMP/diff"
if [ $? = 0 ]; then
    echo "ok $n - resumed by one rank from two"
else
    echo "not ok $n - resumed by one rank from two"
    tail -n 12 "$TEST_TMP/opaque.out" "$TEST_TMP/diff" | sed 's/^/# /'
    bad=1
fi

# The compute lane's waits for communication are in the metrics; one rank has none.
n=$((n + 1))
rm -rf "$TEST_TMP"/{one,two}
run two OPAQUE_SEED=1 "-n 2" fsdp.device=cuda "log.metrics=$TEST_TMP/two.jsonl" &&
    run one OPAQUE_SEED=1 "-n 1" fsdp.device=cuda fsdp.sharding_strategy=NO_SHARD "log.metrics=$TEST_TMP/one.jsonl"
if [ $? = 0 ] && grep -q '"exposed_comm_s"' "$TEST_TMP/two.jsonl" && ! grep -q '"exposed_comm_s"' "$TEST_TMP/one.jsonl"; then
    echo "ok $n - exposed communication is in the metrics"
else
    echo "not ok $n - exposed communication is in the metrics"
    tail -n 4 "$TEST_TMP"/{one,two}.out "$TEST_TMP"/{one,two}.jsonl | sed 's/^/# /'
    bad=1
fi
echo "1..$n"
exit $bad
