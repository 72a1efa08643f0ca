#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# ckpt-merge --quantize: compressed-tensors' own bytes; the same from shards, with little memory and after kills; and
# what is refused, by name. tests/interop/ctensors.sh has transformers load such folders.
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
samples=$TOP/tests/data/compressed-tensors
merge() { "$BIN/ckpt-merge" --no-card "$@" >log 2>err </dev/null; }
holds() { grep -q -F -- "$2" "$1"; }
# Of JSON, in any order. A number of a config.json that is changed may get more digits.
lines() { sed '/rms_norm_eps/d; s/,$//' "$1/config.json" | sort; }
touch log err
mkdir -p tiny
install -m 644 "$TOP/tests/data/llama-tiny"/{config.json,model.safetensors} tiny

# ---- known bytes -----------------------------------------------------------------------------------

for scheme in fp8_dynamic fp8_channel fp8_tensor w8a16_channel w8a16_g32; do
    merge "$samples/base" -o $scheme --quantize $scheme && "$BIN/ckpt-diff" $scheme "$samples/$scheme" >log 2>err &&
        lines $scheme >a && lines "$samples/$scheme" >b && diff a b >log
    ok $? "$scheme: tensors and config.json of compressed-tensors"
done

"$BIN/ckpt-merge" --check fp8_dynamic >log 2>err && holds log 'are stored quantized, and compared as they decode'
ok $? "--check of one says so: $(cat log)"

# ---- the same bytes, however they are made ---------------------------------------------------------

"$BIN/ckpt-reshard" tiny -o shards/tiny --world 3 >log 2>err && "$BIN/ckpt-reshard" tiny -o dcp/tiny --world 2 --format dcp >log 2>err
ok $? "shards of a model"
for scheme in fp8_dynamic fp8_tensor w8a16_channel w8a16_g64; do
    [ $scheme = w8a16_g64 ] && ignore=(--quantize-ignore '*.down_proj') || ignore=() # 176 are no groups of 64
    merge tiny -o want.$scheme --quantize $scheme "${ignore[@]}" --threads 1 &&
        merge tiny -o little.$scheme --quantize $scheme "${ignore[@]}" --mem 1M --threads 3 &&
        diff -r want.$scheme little.$scheme >log &&
        merge shards/tiny -o shards.$scheme --quantize $scheme "${ignore[@]}" --threads 8 &&
        diff -r want.$scheme shards.$scheme >log &&
        merge dcp/tiny -o dcp.$scheme --quantize $scheme "${ignore[@]}" --mem 1M && diff -r want.$scheme dcp.$scheme >log
    ok $? "$scheme: with 1 MiB of buffers, any number of threads, from three ranks' shards, from torch's files"
done
merge tiny -o narrow --dtype bfloat16 && merge narrow -o twice --quantize fp8_tensor &&
    merge tiny -o once --dtype bfloat16 --quantize fp8_tensor && diff -r twice once >log && holds once/config.json '"bfloat16"'
ok $? "--dtype casts first"
merge tiny -o fused --map fuse-qkv && merge fused -o after --quantize fp8_tensor &&
    merge tiny -o at-once --map fuse-qkv --quantize fp8_tensor && diff -r after at-once >log &&
    "$BIN/ckpt-info" at-once >log 2>err && holds log qkv_proj.weight_scale
ok $? "--map joins first"
echo 'weight -> model.layers.0.mlp.up_proj.weight' >names
mkdir -p nf4 decoded
cp "$TOP/tests/data/bnb-nf4/double-48x130-bf16/quantized.safetensors" nf4/model.safetensors
echo '{"model_type": "llama", "quantization_config": {"quant_method": "bitsandbytes"}}' >nf4/config.json
"$BIN/ckpt-info" nf4 >log 2>err
name=$(grep -o '[^ ]*\.absmax' log | head -n 1)
echo "${name%.absmax} -> model.layers.0.mlp.up_proj.weight" >names
merge nf4 -o decoded/whole && merge decoded/whole -o decoded/codes --map names --quantize w8a16_channel &&
    merge nf4 -o decoded/direct --map names --quantize w8a16_channel && diff -r decoded/codes decoded/direct >log &&
    holds decoded/direct/config.json '"compressed-tensors"' && ! holds decoded/direct/config.json bitsandbytes
ok $? "what bitsandbytes has quantized is decoded first; rows of 130, which are no words of four"

again() { merge shards/tiny -o out --quantize "$1" --max-shard-size 20K --mem 1M --threads 2 "${@:2}"; }
killed=0 whole=0
for scheme in fp8_tensor fp8_dynamic; do
    rm -rf out
    again $scheme && mv out undisturbed
    for at in 3 9 14 19 26 33 40 47 55 70; do
        rm -rf out out.tmp.*
        { CKPT_FAULT=kill:$at again $scheme && continue; } 2>noise
        killed=$((killed + 1))
        if [ -e out ]; then diff -r undisturbed out >log || continue; fi
        again $scheme --overwrite && diff -r undisturbed out >log && ! compgen -G 'out.tmp.*' >noise && whole=$((whole + 1))
    done
    rm -rf undisturbed
done
[ $killed -ge 10 ] && [ $killed = $whole ]
ok $? "after a kill at $killed moments the same command completes"

merge tiny -o some --quantize fp8_dynamic --quantize-ignore 'model.layers.0.*' --quantize-ignore '*.o_proj.weight' &&
    "$BIN/ckpt-info" some >log 2>err && ! holds log layers.0.mlp.up_proj.weight_scale && holds log layers.1.mlp.up_proj.weight_scale &&
    ! holds log o_proj.weight_scale && holds some/config.json '"model.layers.0.mlp.up_proj"' &&
    holds some/config.json '"model.layers.1.self_attn.o_proj"' && ! holds some/config.json '"model.layers.1.self_attn.q_proj"'
ok $? "layers that are ignored are listed"
merge tiny -o unfit --quantize fp8_dynamic --quantize-ignore '*.w1' && holds err "'*.w1' changes nothing"
ok $? "a pattern that fits no layer is a warning"
merge tiny -o never --quantize fp8_tensor --dry-run && [ ! -e never ]
ok $? "--dry-run writes nothing"

# ---- back ------------------------------------------------------------------------------------------

for scheme in fp8_tensor w8a16_g32; do
    merge "$samples/$scheme" -o back.$scheme --mem 1M && "$BIN/ckpt-diff" back.$scheme "$samples/$scheme.expected.safetensors" >log 2>err &&
        ! holds back.$scheme/config.json quantization_config && holds back.$scheme/config.json '"bfloat16"' &&
        merge "$samples/$scheme" -o wide.$scheme --dtype float32 && merge wide.$scheme -o narrow.$scheme --dtype bfloat16 &&
        "$BIN/ckpt-diff" back.$scheme narrow.$scheme >log 2>err
    ok $? "$scheme is decoded to the values of compressed-tensors"
done
merge want.w8a16_channel -o back --threads 3 && merge back -o twice.again --quantize w8a16_channel &&
    merge want.w8a16_channel -o once.again --quantize w8a16_channel && diff -r twice.again once.again >log
ok $? "and quantized once more"
"$BIN/ckpt-reshard" -q "$samples/fp8_tensor" -o kept --world 2 >log 2>err && "$BIN/ckpt-info" kept >log 2>err &&
    holds log up_proj.weight_scale
ok $? "ckpt-reshard keeps codes as they are"

# A folder whose file has one tensor of zeros.
single() { # folder, name, dtype, shape, bytes
    local header="{\"$2\":{\"dtype\":\"$3\",\"shape\":$4,\"data_offsets\":[0,$5]}}" n
    n=${#header}
    mkdir -p "$1"
    cp tiny/config.json "$1"
    { printf "\\x$(printf %02x "$n")\\0\\0\\0\\0\\0\\0\\0%s" "$header" && head -c "$5" /dev/zero; } >"$1/model.safetensors"
}
single zeros model.layers.0.mlp.up_proj.weight BF16 '[2,6]' 24
merge zeros -o zeros.fp8 --quantize fp8_channel && tail -c 16 zeros.fp8/model.safetensors | od -An -tx1 >log &&
    holds log ' 00 3c 00 3c 00 00 00 00 00 00 00 00 00 00 00 00'
ok $? "rows of zeros have the scale 2^-7, and codes 0"

# Another name in the header, which gets another length.
renamed() { # file, from, to
    local nbytes header
    nbytes=$(od -An -tu8 -N8 "$1" | tr -d ' ')
    header=$(head -c $((8 + nbytes)) "$1" | tail -c "$nbytes" | sed "s/$2/$3/g; s/ *\$//")
    { printf "%b" "$(printf '%016x' ${#header} | sed -E 's/(..)(..)(..)(..)(..)(..)(..)(..)/\\x\8\\x\7\\x\6\\x\5\\x\4\\x\3\\x\2\\x\1/')" &&
        printf %s "$header" && tail -c +$((9 + nbytes)) "$1"; } >renamed
    mv renamed "$1"
}

# ---- what is refused -------------------------------------------------------------------------------

refused() { # status, text, what, arguments of ckpt-merge...
    local want=$1 text=$2 what=$3
    shift 3
    merge -o refused --quantize fp8_dynamic "$@"
    [ $? = "$want" ] && holds err "$text" && ! compgen -G 'refused*' >noise
    ok $? "refused: $what"
}
refused 2 "'int3'" 'an unknown scheme' tiny --quantize int3
refused 2 'leave out --dcp, --torch and --all' '--dcp' tiny --dcp
refused 2 'leave out --dcp, --torch and --all' '--all' tiny --all
refused 2 'a GGUF file has --type' 'a GGUF file' tiny -o refused.gguf
refused 2 'name a folder as the output' 'one file' tiny -o refused.safetensors
merge tiny -o refused --quantize-ignore '*'
[ $? = 2 ] && holds err 'is of --quantize' && [ ! -e refused ]
ok $? "refused: --quantize-ignore alone"
mkdir bare && cp tiny/model.safetensors bare
refused 1 'has no config.json' 'no config.json' bare
cp -r tiny said && sed -i 's/{/{"quantization_config": {"quant_method": "fbgemm_fp8"},/' said/config.json
refused 1 'is quantized already (fbgemm_fp8)' 'a config.json that has a quantization' said
# Codes that are not decoded: of blocks, and with zero points.
for name in weight_scale_inv:weight_scale weight_zero_point:weight_shape; do
    scheme=$([ $name = weight_scale_inv:weight_scale ] && echo fp8_dynamic || echo w8a16_g32)
    rm -rf codes
    cp -r "$samples/$scheme" codes
    chmod -R u+w codes
    renamed codes/model.safetensors "${name#*:}" "${name%:*}"
    refused 1 "holds codes, which mean nothing without 'model.layers.0.mlp.down_proj.weight_scale" "codes with ${name%:*}" codes
    merge codes -o refused --dtype float32
    [ $? = 1 ] && holds err 'CompressedTensorsConfig(dequantize=True)' && [ ! -e refused ] &&
        { merge codes -o refused.gguf; [ $? = 1 ]; } && holds err 'holds codes' && [ ! -e refused.gguf ]
    ok $? "refused: they as weights of another type, as GGUF"
    merge codes -o same && "$BIN/ckpt-diff" same codes >log 2>err && cmp same/config.json codes/config.json >log
    ok $? "a merge that changes nothing copies them"
    merge codes -o same.pt && "$BIN/ckpt-diff" --model same.pt codes >log 2>err && merge codes -o same-torch --torch &&
        "$BIN/ckpt-diff" --model same-torch codes >log 2>err
    ok $? "to files of torch.save, too"
    for pair in 'codes codes' "same/ codes" "$samples/base codes --exclude *_s* --exclude *_zero* --exclude *_packed"; do
        merge --average $pair -o refused
        [ $? = 1 ] && holds err 'holds codes' && [ ! -e refused ]
        ok $? "refused: --average $(sed 's,/[^ ]*/,,' <<<"$pair")"
    done
    rm -rf same same.pt same-torch
done
cp -r "$samples/base" infinite && chmod -R u+w infinite
printf '\x80\x7f' | dd of=infinite/model.safetensors bs=1 seek=$((8 + 2104 + 8256 + 64)) conv=notrunc status=none
for scheme in fp8_dynamic fp8_tensor w8a16_g32; do
    refused 1 "tensor 'model.layers.0.mlp.down_proj.weight' holds values that are not finite" "$scheme of what is not finite" \
        infinite --quantize $scheme
done
merge infinite -o spared --quantize fp8_tensor --quantize-ignore 'model.layers.0.mlp.down_proj'
ok $? "unless that layer is left"
refused 1 "'model.layers.0.mlp.down_proj.weight' has rows of 176 elements, which w8a16 cannot cut into groups of 128" \
    'rows that are no groups' tiny --quantize w8a16
cp -r tiny odd && sed -i 's/mlp\.up_proj/mlp.up_abcd/g' odd/model.safetensors
refused 1 "'model.layers.0.mlp.up_abcd.weight' is a matrix, and its name is not known" 'a matrix of an unknown name' odd
echo 'model.layers.*.mlp.up_proj.weight -> model.layers.$1.mlp.experts.0.up_proj.weight' >experts
refused 1 "(--quantize-ignore '*.experts*')" 'experts' tiny --map experts
merge tiny -o mixture --quantize fp8_dynamic --map experts --quantize-ignore '*.experts*'
ok $? "unless they are left"
refused 1 'has no weight of a linear layer' 'nothing to quantize' tiny --include model.norm.weight
single long model.layers.0.mlp.up_proj.weight F32 '[1,20000]' 80000
refused 2 'at least' 'rows longer than buffers' long --mem 1M
merge long -o long.fp8 --quantize fp8_dynamic --mem 2M
ok $? "which larger buffers hold"
single longer model.layers.0.mlp.up_proj.weight F16 '[1,600000]' 1200000
refused 1 'has rows too long to quantize' 'rows longer than any buffer' longer
single wide model.layers.0.mlp.up_proj.weight F64 '[2,4]' 64
refused 1 'has another type' 'float64' wide
merge wide -o wide.fp8 --quantize fp8_dynamic --dtype float32
ok $? "which --dtype makes another"
single empty model.layers.0.mlp.up_proj.weight F32 '[0,4]' 0
refused 1 'has no elements' 'a weight without elements' empty
single bytes model.layers.0.mlp.up_proj.weight F8_E4M3 '[2,4]' 8
refused 1 'has 8 bits an element' 'a weight of 8 bits' bytes --dtype bfloat16
echo "1..$n"
exit $bad
