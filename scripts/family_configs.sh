# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034
# Sourced: a config.json of each model family that training knows, of two layers, at any size.

FAMILIES='gemma gemma2 gemma3 gemma3_text gpt2 gpt_neox gpt_oss granite granitemoe granitemoeshared llama ministral
 ministral3 mistral mixtral olmo2 olmo3 olmoe phi3 qwen2 qwen3 qwen3_moe smollm3'

# Width, width of an MLP or an expert, heads (a third of them for keys and values, or all if 3 does not divide them),
# size of a head, tokens of the vocabulary, positions, positions of a sliding window.
family_config() { # family, width, ffn, heads, head size, vocabulary, positions, window
    local kv=$(($4 % 3 ? $4 : $4 / 3))
    local sizes="\"vocab_size\": $6, \"hidden_size\": $2, \"intermediate_size\": $3, \"num_hidden_layers\": 2,
 \"num_attention_heads\": $4, \"num_key_value_heads\": $kv, \"max_position_embeddings\": $7, \"tie_word_embeddings\": false"
    echo "{\"model_type\": \"$1\", $(family_keys "$@")}"
}

family_keys() { # as above, and what its caller has: sizes
    local heads="\"head_dim\": $5"
    local experts='"num_experts_per_tok": 2, "num_local_experts": 8, "output_router_logits": true'
    local layers="\"sliding_window\": $8, \"layer_types\": [\"sliding_attention\", \"full_attention\"]"
    local factors='"embedding_multiplier": 12.0, "logits_scaling": 8.0, "residual_multiplier": 0.22, "attention_multiplier": 0.015625'
    case $1 in
    gpt2) echo "\"vocab_size\": $6, \"n_embd\": $2, \"n_inner\": $(($3 * 3 / 2)), \"n_layer\": 2, \"n_head\": $4, \"n_positions\": $7,
 \"embd_pdrop\": 0, \"attn_pdrop\": 0, \"resid_pdrop\": 0" ;;
    gpt_neox) echo "$sizes, \"hidden_act\": \"gelu\"" ;;
    gemma | qwen3 | ministral3) echo "$sizes, $heads" ;;
    gemma2 | gemma3_text) echo "$sizes, $heads, $layers, \"query_pre_attn_scalar\": $5" ;;
    gemma3) echo "\"text_config\": {$(family_keys gemma3_text "${@:2}")}" ;;
    ministral | olmo3) echo "$sizes, $layers" ;;
    mistral) echo "$sizes, \"sliding_window\": $8" ;;
    granite) echo "$sizes, $factors" ;;
    granitemoe) echo "$sizes, $factors, $experts" ;;
    granitemoeshared) echo "$sizes, $factors, $experts, \"shared_intermediate_size\": $(($3 / 2))" ;;
    gpt_oss) echo "$sizes, $heads, $experts, $layers" ;;
    mixtral) echo "$sizes, $experts" ;;
    olmoe) echo "$sizes, $experts, \"num_experts\": 8" ;;
    qwen3_moe) echo "$sizes, $heads, $experts, \"num_experts\": 8, \"moe_intermediate_size\": $3" ;;
    *) echo "$sizes" ;;
    esac
}
