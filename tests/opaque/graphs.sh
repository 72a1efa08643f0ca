#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Whole runs whose layers are launched as graphs (model.cuda_graphs) end in the bits of the CPU's runs
# without: on a device whose memory the host cannot touch, at once and put off until somebody waits
# (opaque.c). Which settings keep layers from it, and what is said of that.
# run: long
# run: timeout=900
. "$TOP/tests/lib/tap.sh"
export FSDP_CUDA_LIBRARY=$BIN/tests/libfsdp-opaque.so FSDP_CUDA_TUNE=$TEST_TMP/tune

run() ( # folder, setting of the environment, options of fsdp-launch, key=value...
    # shellcheck disable=SC2086
    cd "$TOP" && env "$2" "$BIN/fsdp-launch" $3 examples/llama-tiny.yaml train.threads=1 train.steps=4 log.interval=1 \
        data.eval_path=libfsdp/include/fsdp/mesh.h data.eval_rows=11 train.eval_interval=2 optim.warmup_steps=1 \
        "log.metrics=$TEST_TMP/$1.jsonl" "checkpoint.path=$TEST_TMP/$1" "${@:4}" >"$TEST_TMP/$1.out" 2>&1 && return
    tail -n 15 "$TEST_TMP/$1.out" >"$TEST_TMP/log"
    return 1
)

# How often graphs were launched, as the run says.
launched() { # folder
    sed -n 's/.*model.cuda_graphs: [1-9][0-9]* graphs were captured and launched \([0-9]*\) times$/\1/p' "$TEST_TMP/$1.out" |
        head -n 1
}

same() { # options, key=value...: the same losses and weights, by graphs
    local how seed
    rm -rf "$TEST_TMP"/{cpu,graphs}{,.jsonl}
    run cpu _= "$@" fsdp.device=cpu || return 1
    for how in at-once put-off; do
        seed=_=
        [ $how = at-once ] || seed=OPAQUE_SEED=3
        rm -rf "$TEST_TMP"/graphs{,.jsonl}
        run graphs "$seed" "$@" fsdp.device=cuda model.cuda_graphs=true &&
            "$BIN/ckpt-diff" "$TEST_TMP/cpu/step-00000004" "$TEST_TMP/graphs/step-00000004" >log 2>&1 &&
            cmp <(losses cpu) <(losses graphs) >log 2>&1 && [ "$(losses graphs | wc -l)" -ge 6 ] || return 1
        [ "$(launched graphs)" -gt 0 ] || return 1
    done
}
losses() { # folder: of steps and evaluations
    grep -o '"\(loss\|eval_loss\|grad_norm\)": *[^,}]*' "$TEST_TMP/$1.jsonl"
}

same "-n 2"
ok $? "two ranks, FULL_SHARD, evaluated with a last batch of fewer rows"
same "-n 2" train.micro_batch_size=4 fsdp.activation_checkpointing=full fsdp.param_dtype=bfloat16 fsdp.output_dtype=float32
ok $? "the same, accumulated and recomputed, in bf16"
same "-n 2" train.micro_batch_size=4 fsdp.sharding_strategy=NO_SHARD fsdp.activation_checkpointing=selective
ok $? "two replicas, accumulated, attention recomputed"
same "-n 1" model.path=tests/data/gpt2-tiny model.init=random model.dropout=0 data.seq_len=32 data.tokenizer=bytes \
    train.micro_batch_size=4 fsdp.activation_checkpointing=full
ok $? "GPT-2 without dropout, accumulated and recomputed"
same "-n 2" model.path=tests/data/llama-tiny model.init=pretrained lora.r=4 fsdp.gather_dtype=float8_e4m3
ok $? "adapters, gathered as fp8"

# A run that ends and continues has new memory, and graphs of its own.
rm -rf "$TEST_TMP"/{cpu,graphs}{,.jsonl}
long=(train.steps=6 optim.schedule=constant optim.min_lr=0 fsdp.activation_checkpointing=full)
run cpu _= "-n 2" fsdp.device=cpu "${long[@]}" &&
    run graphs _= "-n 2" fsdp.device=cuda model.cuda_graphs=true "${long[@]}" train.steps=3 &&
    run graphs _= "-n 2" fsdp.device=cuda model.cuda_graphs=true "${long[@]}" &&
    grep -q "step-00000003" "$TEST_TMP/graphs.out" && [ "$(launched graphs)" -gt 0 ] &&
    "$BIN/ckpt-diff" "$TEST_TMP/cpu/step-00000006" "$TEST_TMP/graphs/step-00000006" >log 2>&1
ok $? "a run that is resumed"

# A capture that fails costs no step.
rm -rf "$TEST_TMP"/{cpu,graphs}{,.jsonl}
run cpu _= "-n 1" fsdp.device=cpu &&
    run graphs OPAQUE_GRAPHS=3 "-n 1" fsdp.device=cuda model.cuda_graphs=true &&
    [ "$(grep -c 'model.cuda_graphs: no more are captured, because of: .*this capture is lost' "$TEST_TMP/graphs.out")" = 1 ] &&
    grep -q 'model.cuda_graphs: 2 graphs were captured' "$TEST_TMP/graphs.out" &&
    "$BIN/ckpt-diff" "$TEST_TMP/cpu/step-00000004" "$TEST_TMP/graphs/step-00000004" >log 2>&1
ok $? "the third capture fails: its reason is told once, and two graphs are launched on"

# Layers that cannot be captured.
told() { # reason, key=value...: once, and the CPU's bits
    rm -rf "$TEST_TMP"/{cpu,graphs}{,.jsonl}
    run cpu _= "-n 1" fsdp.device=cpu "${@:2}" && run graphs _= "-n 1" fsdp.device=cuda model.cuda_graphs=true "${@:2}" &&
        [ "$(grep -c "model.cuda_graphs: layers run without, because of: .*$1" "$TEST_TMP/graphs.out")" = 1 ] &&
        "$BIN/ckpt-diff" "$TEST_TMP/cpu/step-00000004" "$TEST_TMP/graphs/step-00000004" >log 2>&1
}
told dropout model.path=tests/data/gpt2-tiny model.init=random model.dropout=0.1 data.seq_len=32 data.tokenizer=bytes &&
    [ "$(launched graphs)" -gt 0 ]
ok $? "dropout: training runs without, evaluation with graphs"
awk 'length > 8 { gsub(/[\\"\t]/, " "); print "{\"text\": \"" $0 "\"}" }' "$TOP/docs/gpu.md" >"$TEST_TMP/lines.jsonl"
told "several documents" "data.path=$TEST_TMP/lines.jsonl" data.format=jsonl data.eval_path=
ok $? "rows of several documents"
mkdir -p "$TEST_TMP/mixture"
cat >"$TEST_TMP/mixture/config.json" <<'END'
{"model_type": "mixtral", "vocab_size": 256, "hidden_size": 36, "intermediate_size": 20, "num_hidden_layers": 2,
 "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "head_dim": 10,
 "num_local_experts": 5}
END
told experts "model.path=$TEST_TMP/mixture" model.init=random
ok $? "a mixture of experts"
rm -rf "$TEST_TMP"/graphs{,.jsonl}
run graphs _= "-n 1" fsdp.device=cpu model.cuda_graphs=true &&
    [ "$(grep -c "model.cuda_graphs: layers run without, because of: the device is a CPU" "$TEST_TMP/graphs.out")" = 1 ]
ok $? "the CPU"
echo "1..$n"
exit $bad
