#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A training step of each model family on one CPU thread, as rows of a table in Markdown: CPU seconds, and the shares of
# products of weights, of attention (mostly its own products) and of the rest. Two layers of width 768, 4 x 256 tokens.
# Run it as scripts/bench.sh families [FAMILY...].
set -u
TOP=$(cd "$(dirname "$0")/.." && pwd)
BIN=${BIN:-$TOP/build/bin}
unset OPENBLAS_CORETYPE
export OMP_NUM_THREADS=1
work=$(mktemp -d "${TMPDIR:-/tmp}/fsdp-bench.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT

SIZES='"vocab_size": 8192, "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 2,
 "num_attention_heads": 12, "num_key_value_heads": 4, "max_position_embeddings": 1024, "tie_word_embeddings": false'
HEADS='"head_dim": 64'
EXPERTS='"num_experts_per_tok": 2, "num_local_experts": 8, "output_router_logits": true'
LAYERS='"sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"]'
MULTIPLIERS='"embedding_multiplier": 12.0, "logits_scaling": 8.0, "residual_multiplier": 0.22, "attention_multiplier": 0.015625'
keys() { # family: what config.json has besides model_type
    case $1 in
    gpt2) echo '"vocab_size": 8192, "n_embd": 768, "n_inner": 3072, "n_layer": 2, "n_head": 12, "n_positions": 1024,
 "embd_pdrop": 0, "attn_pdrop": 0, "resid_pdrop": 0' ;;
    gpt_neox) echo "$SIZES, \"hidden_act\": \"gelu\"" ;;
    gemma | qwen3 | ministral3) echo "$SIZES, $HEADS" ;;
    gemma2 | gemma3_text) echo "$SIZES, $HEADS, $LAYERS, \"query_pre_attn_scalar\": 64" ;;
    gemma3) echo "\"text_config\": {$(keys gemma3_text)}" ;;
    ministral | olmo3) echo "$SIZES, $LAYERS" ;;
    mistral) echo "$SIZES, \"sliding_window\": 128" ;;
    granite) echo "$SIZES, $MULTIPLIERS" ;;
    granitemoe) echo "$SIZES, $MULTIPLIERS, $EXPERTS" ;;
    granitemoeshared) echo "$SIZES, $MULTIPLIERS, $EXPERTS, \"shared_intermediate_size\": 1024" ;;
    gpt_oss) echo "$SIZES, $HEADS, $EXPERTS, $LAYERS" ;;
    mixtral) echo "$SIZES, $EXPERTS" ;;
    olmoe) echo "$SIZES, $EXPERTS, \"num_experts\": 8" ;;
    qwen3_moe) echo "$SIZES, $HEADS, $EXPERTS, \"num_experts\": 8, \"moe_intermediate_size\": 2048" ;;
    *) echo "$SIZES" ;;
    esac
}

[ $# -gt 0 ] || set -- gemma gemma2 gemma3 gemma3_text gpt2 gpt_neox gpt_oss granite granitemoe granitemoeshared llama \
    ministral ministral3 mistral mixtral olmo2 olmo3 olmoe phi3 qwen2 qwen3 qwen3_moe smollm3
echo '| family | CPU seconds | products of weights, % | attention, % | the rest, % | largest of the rest |'
echo '| --- | --- | --- | --- | --- | --- |'
for family; do
    echo "{\"model_type\": \"$family\", $(keys "$family")}" >"$work/config.json"
    "$BIN/tests/models/bench_llama" config="$work/config.json" batch=4 seq=256 steps="${STEPS:-3}" threads=1 \
        >"$work/log" 2>&1 || { echo "bench: $family: $(tail -n 1 "$work/log")" >&2 && exit 1; }
    awk -v family="$family" '
        /^step  / { best = $2 }
        /^outside matrix products/ { outside = $(NF - 1) }
        /^and outside attention/ { rest = $(NF - 1) }
        / s .* %$/ && !/^(step|outside|and|linear|affine|grouped|attention)/ && $(NF - 1) > most {
            most = $(NF - 1)
            name = $0
            sub(/  .*/, "", name)
            sub(/ +[0-9.]+ s.*/, "", name)
        }
        END { printf "| `%s` | %.3f | %.1f | %.1f | %.1f | %s, %.1f |\n", family, best, 100 - outside, outside - rest,
              rest, name, most }' "$work/log"
    [ -z "${SHOW:-}" ] || cat "$work/log"
done
