#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# run: timeout=120
# ckpt-diff --map: what is fused, split or has its rows in another order is compared as it stands.
set -u
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
diff() { "$BIN/ckpt-diff" "$@" >log 2>err; }
holds() { grep -q -F -- "$2" "$1"; }
# diff, which says this and ends so
says() { # status text arguments...
    local wanted=$1 text=$2
    shift 2
    diff "$@"
    [ $? = "$wanted" ] && holds $([ "$wanted" = 2 ] && echo err || echo log) "$text" || { cat log err; false; }
}
src=$TOP/tests/data/llama-tiny # 4 query heads, 2 key heads

"$BIN/ckpt-merge" $src -o fused --map fuse-qkv --map fuse-gate-up --quiet &&
    "$BIN/ckpt-merge" $src -o titan --map hf-to-torchtitan --quiet &&
    "$BIN/ckpt-merge" titan -o titan.safetensors --quiet &&
    "$BIN/ckpt-merge" $src -o bare.safetensors --quiet &&
    "$BIN/ckpt-reshard" fused -o native --world 3 --quiet || exit 1

for other in fused native; do
    says 0 '15 tensors are the same, 0 near, 0 different' --map fuse-qkv --map fuse-gate-up $src $other
    ok $? "$other: joined"
    says 0 '21 tensors are the same, 0 near, 0 different' --map split-gate-up --map split-qkv $other $src \
        --heads 4x2 --mem 1M --threads 3
    ok $? "$other: split"
done
says 1 'only A   model.layers.0.mlp.up_proj.weight' --map split-qkv --heads 4x2 $src fused
ok $? "what the maps do not touch stays as it is"
for other in titan titan.safetensors; do
    says 0 '21 tensors are the same, 0 near, 0 different' --map hf-to-torchtitan $src $other
    ok $? "$other: rows in the order of the other"
done
says 0 '21 tensors are the same' --map torchtitan-to-hf titan $src
ok $? "and back"
says 0 '2 tensors are the same, 0 near, 0 different' --map hf-to-torchtitan --include '*.wq.weight' $src titan
ok $? "--include means the names that the map makes"
says 1 'model.layers.0.self_attn.q_proj.weight: ' --map torchtitan-to-hf --heads 8x4 $src titan.safetensors
ok $? "other heads are other rows"
says 2 "a head of 'layers.0.attention.wq.weight' has 8 rows (of 64) and one of 'layers.0.attention.wk.weight' has 16 (of 32)" \
    --map torchtitan-to-hf --heads 8x2 $src titan.safetensors
ok $? "heads of queries and keys of other sizes: $(tail -n 1 err)"
says 2 "has 32 rows (of 64) and one of 'model.layers.0.self_attn.k_proj.weight' has 8 (of 32)" --map hf-to-torchtitan --heads 2x4 \
    bare.safetensors titan.safetensors
ok $? "and in Hugging Face's names: $(tail -n 1 err)"
says 2 "--heads 8x4, but 'titan/config.json' has 4 heads of queries and 2 of keys" --map torchtitan-to-hf --heads 8x4 $src titan
ok $? "other heads than config.json has: $(tail -n 1 err)"
says 2 "give them (--heads 32x8" --map torchtitan-to-hf $src titan.safetensors
ok $? "a file that does not say how many heads"
says 2 'which are not 5 heads' --map hf-to-torchtitan --heads 5x2 bare.safetensors titan
ok $? "heads that cannot be"
"$BIN/ckpt-merge" $src -o torn --exclude '*layers.1*k_proj*' --quiet
says 2 "cannot be joined with 'model.layers.1.self_attn.k_proj.weight': there is none" --map fuse-qkv torn $src
ok $? "a part that is not there"
echo 'model.** -> one' >rules
says 2 "'$src': two tensors would be called 'one'" --map rules $src $src
ok $? "two tensors of one name, and whose they are"

# A map of which a part of the names is.
merge() { "$BIN/ckpt-merge" "$@" >log 2>err; }
echo '/(.*layers[.]0[.])(.*)/ -> $1_checkpoint_wrapped_module.$2' >wrap
merge titan -o wrapped.safetensors --map wrap && ! holds err 'fit'
ok $? "a file of rules may fit few names: no warning"
merge wrapped.safetensors -o half.safetensors --map torchtitan-to-hf --heads 4x2 &&
    holds err "map 'torchtitan-to-hf' does not fit 9 of 21 tensors, which keep their names, such as 'layers.0._checkpoint_wrapped_module."
ok $? "a map that fits some names says how many it does not: $(cat err)"
merge half.safetensors -o half2.safetensors --map hf-to-torchtitan --heads 4x2 &&
    holds err "map 'hf-to-torchtitan' does not fit 9 of 21 tensors"
ok $? "the other way round, too"
echo 'norm.** -> model.norm.$1' >norm
merge titan.safetensors -o all.safetensors --map norm --map torchtitan-to-hf --heads 4x2 && ! holds err 'fit' &&
    says 0 '21 tensors are the same' all.safetensors $src
ok $? "names that the map would make are not counted"

# A wrong row of k_proj is at the row of the fused tensor: 64 of q, then k.
"$BIN/ckpt-merge" $src -o k.safetensors --include '*layers.0*k_proj*' --quiet
printf '\377\377\377' | dd of=k.safetensors bs=1 seek=$(($(stat -c %s k.safetensors) - 32 * 64 * 4 + (5 * 64 + 7) * 4)) \
    conv=notrunc status=none
"$BIN/ckpt-merge" $src -o qv.safetensors --include '*layers.0*[qv]_proj*' --quiet
mkdir qkv && "$BIN/ckpt-merge" qv.safetensors -o qkv/model-1.safetensors --quiet && cp k.safetensors qkv/model-2.safetensors
says 1 'qkv_proj.weight: 1 of 8192 elements' --map fuse-qkv --include '*layers.0*qkv*' $src qkv && holds log 'first at [69, 7]'
ok $? "a difference is named by the row of the fused tensor"

# Tied weights that the other has untied.
install -D -m 644 "$TOP/examples/llama-tiny/config.json" model/config.json && sed -i 's/"tie_word_embeddings": *false/"tie_word_embeddings": true/' model/config.json
seq 2000 >text
printf '%s\n' 'model: {path: model, init: random, seed: 1}' 'data: {path: text, seq_len: 32}' \
    'train: {steps: 0, global_batch_size: 2}' 'checkpoint: {path: ck, fsync: false}' >run.yaml
"$BIN/fsdp-launch" run.yaml >log 2>err || { cat err; exit 1; }
echo 'model.embed_tokens.weight -> lm_head.weight' >head
"$BIN/ckpt-merge" ck -o head.safetensors --include '*embed*' --map head --quiet
"$BIN/ckpt-info" ck | grep -q '^tied ' && says 0 '0 different' --model --include lm_head.weight ck head.safetensors
ok $? "a tied name is compared with the tensor that it names"
printf '\377\377' | dd of=head.safetensors bs=1 seek=$(($(stat -c %s head.safetensors) - 8)) conv=notrunc status=none
says 1 'differs  lm_head.weight: 1 of' --model --include lm_head.weight ck head.safetensors &&
    says 1 'differs  lm_head.weight: 1 of' --model --include lm_head.weight head.safetensors ck
ok $? "and differs if it does, whichever comes first"
echo "1..$n"
exit $bad
