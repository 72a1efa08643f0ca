#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Files of torch.save, as ckpt-merge writes them, read by this toolkit: every tensor, the order of the dict, tied
# tensors; the same bytes with little memory, from shards and after kills; and what is refused. tests/interop/torch_write.sh
# has torch load them.
# run: timeout=300
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
merge() { "$BIN/ckpt-merge" "$@" >log 2>err </dev/null; }
holds() { grep -q -F -- "$2" "$1"; }
same() { "$BIN/ckpt-diff" --model "$1" "$2" >log 2>err && holds log "$3 tensors are the same, 0 near, 0 different"; }
saved=$TOP/tests/data/torch-save z1=$TOP/tests/data/deepspeed-z1-2r/ckpt
names() { grep -a -o -E "$2" "$1"; }
install -D -m 644 -t tiny "$TOP/tests/data/llama-tiny"/{config.json,model.safetensors}
touch log err

# ---- what is in it -------------------------------------------------------------------------------

for form in zip.pt legacy.pt folder nested.pt; do
    merge "$saved/$form" -o "$form.pt" && same "$form.pt" "$saved/expected.safetensors" 20 &&
        "$BIN/ckpt-verify" "$form.pt" >log 2>err
    ok $? "$form: every dtype and shape is there again, and the checksums are right"
done
merge tiny -o tiny.pt && same tiny.pt tiny 21 && "$BIN/ckpt-verify" tiny.pt >log 2>err
ok $? "a model becomes one file"
merge tiny.pt -o again.pt && cmp tiny.pt again.pt >>log
ok $? "of which the same file is made"
for name in x.pth x.bin x.PT; do
    merge tiny -o $name && cmp $name tiny.pt >>log
    ok $? "$name is such a file, too, whatever its name"
done
names zip.pt.pt 'plain|view_rows|view_cols_strided|scalar' | head -n 4 >order && names "$saved/zip.pt" 'plain|view_rows|view_cols_strided|scalar' | head -n 4 | cmp - order
ok $? "the dict has the order of the input: $(tr '\n' ' ' <order)"
merge tiny -o half.pt --dtype bfloat16 && merge tiny -o half.safetensors --dtype bfloat16 && same half.pt half.safetensors 21
ok $? "--dtype casts"
merge tiny -o one.pt --include "model.norm.*" && "$BIN/ckpt-info" one.pt >log 2>err && holds log "model        1 tensor"
ok $? "--include selects"

# ---- tied tensors --------------------------------------------------------------------------------

# DeepSpeed's checkpoint knows that lm_head.weight is another name.
merge "$z1" -o tied.pt && holds tied.pt lm_head.weight && [ "$(names tied.pt 'archive/data/[0-9]+' | sort -u | wc -l)" = 28 ] &&
    same tied.pt "$TOP/tests/data/deepspeed-z1-2r/expected.safetensors" 29
ok $? "29 names, of which two share one of 28 storages"
merge tied.pt -o tied-again.pt && [ "$(names tied-again.pt 'archive/data/[0-9]+' | sort -u | wc -l)" = 28 ] &&
    same tied-again.pt tied.pt 29
ok $? "and do so again in a file that is made of that"
"$BIN/ckpt-reshard" tied.pt -o tied-dcp --format dcp --world 2 >log 2>err && merge tied-dcp -o untied.pt && same untied.pt tied.pt 29
ok $? "by way of torch.distributed.checkpoint"
merge "$z1" -o without.pt --exclude lm_head.weight && ! holds without.pt lm_head.weight && holds without.pt embed_tokens
ok $? "--exclude leaves a tied name out"

# Of an average they are one only if all checkpoints have them as one: here one has another head.
cp "$TOP/tests/data/deepspeed-z1-2r/expected.safetensors" other.safetensors
chmod u+w other.safetensors
[[ $(grep -a -o '"lm_head.weight":{[^}]*}' other.safetensors) =~ \[([0-9]+),[0-9]+\]} ]] &&
    printf '\0\0\200\77' | dd of=other.safetensors bs=1 seek=$((8 + $(od -A n -t u8 -N 8 other.safetensors) + BASH_REMATCH[1])) conv=notrunc status=none
! same other.safetensors tied.pt 29
ok $? "a model with another head"
merge --average tied.pt other.safetensors -o both.pt && merge --average tied.pt other.safetensors -o both.safetensors &&
    [ "$(names both.pt 'archive/data/[0-9]+' | sort -u | wc -l)" = 29 ] && same both.pt both.safetensors 29
ok $? "an average with it has two storages"
merge --average other.safetensors tied.pt -o swapped.pt && same swapped.pt both.safetensors 29
ok $? "in the other order, too"
merge --average tied.pt tied-again.pt -o still.pt && [ "$(names still.pt 'archive/data/[0-9]+' | sort -u | wc -l)" = 28 ] && same still.pt tied.pt 29
ok $? "one of two that share it has one"
merge --average "$z1" other.safetensors -o never.pt
[ $? = 1 ] && holds err "tensor 'lm_head.weight' differs from 'model.embed_tokens.weight'" && holds err "give 'other.safetensors' first" && [ ! -e never.pt ]
ok $? "refused: the first has it only as another name: $(cat err)"
merge --average other.safetensors "$z1" -o named.pt && same named.pt both.safetensors 29
ok $? "which the second may have"
merge --average "$z1" tied.pt -o named-tied.pt && same named-tied.pt tied.pt 29
ok $? "and so may the first, if the values are the same"

# ---- a folder ------------------------------------------------------------------------------------

merge tiny -o folder --torch && [ "$(cd folder && echo *)" = 'README.md config.json pytorch_model.bin' ] && cmp folder/pytorch_model.bin tiny.pt >>log
ok $? "--torch: a folder with pytorch_model.bin"
merge "$z1" -o split --torch --max-shard-size 20K && [ -e split/pytorch_model-00001-of-0000*.bin ] && same split tied.pt 29
ok $? "--max-shard-size splits it"
holds split/pytorch_model.bin.index.json '"lm_head.weight": "pytorch_model-0000'
ok $? "the index places a tied name in the file of its tensor"
merge split -o joined.pt && same joined.pt tied.pt 29 && merge split -o hf && same hf split 29
ok $? "which is joined again, and becomes safetensors"

# ---- the same bytes, however they are made -------------------------------------------------------

merge tiny -o little.pt --mem 1M --threads 3 && cmp little.pt tiny.pt >>log && merge tiny -o single.pt --threads 1 && cmp single.pt tiny.pt >>log
ok $? "with 1 MiB of buffers, and by one thread"
"$BIN/ckpt-reshard" tiny -o shards/tiny --world 3 >log 2>err && merge shards/tiny -o shards.pt && same shards.pt tiny 21
ok $? "from three ranks' shards"
killed=0 whole=0
for at in 3 7 12 16 19 22 25 28 31 40 52 60 75; do
    rm -rf out out.tmp.*
    { CKPT_FAULT=kill:$at merge "$z1" -o out --torch --max-shard-size 20K --mem 1M --threads 2 && continue; } 2>noise
    killed=$((killed + 1))
    [ ! -e out ] || diff -r out split >>log || continue
    [ -e out ] || merge "$z1" -o out --torch --max-shard-size 20K --mem 1M --threads 2
    diff -r out split >>log && whole=$((whole + 1))
done
[ $killed -ge 8 ] && [ $killed = $whole ]
ok $? "after a kill at $killed moments the same command completes, with the same bytes ($whole)"
killed=0 whole=0
for at in 4 9 14 20 27 33; do
    rm -rf out.pt out.pt.tmp.*
    { CKPT_FAULT=kill:$at merge tiny -o out.pt --mem 1M --threads 2 && continue; } 2>noise
    killed=$((killed + 1))
    [ -e out.pt ] || merge tiny -o out.pt --mem 1M --threads 2
    cmp out.pt tiny.pt >>log && whole=$((whole + 1))
done
[ $killed -ge 4 ] && [ $killed = $whole ]
ok $? "and so of one file ($killed)"

# ---- many tensors --------------------------------------------------------------------------------

# More files in the archive than its 16-bit numbers count: 70,000 tensors of one element.
header=$(mktemp -p .)
awk 'BEGIN {
    printf "{"
    for (i = 0; i < 70000; i++) printf "%s\"t%05d\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[%d,%d]}", i ? "," : "", i, 4 * i, 4 * i + 4
    printf "}"
}' >"$header"
nbytes=$(stat -c %s "$header")
{
    for shift in 0 8 16 24 32 40 48 56; do printf '%b' "\\x$(printf %02x $((nbytes >> shift & 255)))"; done
    cat "$header"
    head -c 280000 "$BIN/ckpt-merge"
} >many.safetensors
merge many.safetensors -o many.pt --quiet && same many.pt many.safetensors 70000
ok $? "70,000 tensors"

# ---- what is refused -----------------------------------------------------------------------------

merge "$z1" -o tiny.pt
[ $? = 1 ] && holds err 'already exists' && cmp tiny.pt again.pt >>log
ok $? "a file that is there is not replaced"
merge "$z1" -o again.pt --overwrite && cmp again.pt tied.pt >>log
ok $? "with --overwrite it is"
echo 'my notes' >notes.pt
merge tiny -o notes.pt --overwrite
[ $? = 1 ] && holds err 'it is no model of torch.save' && [ "$(cat notes.pt)" = 'my notes' ]
ok $? "but not what is none"
python3 - <<'END' # as torch.save writes values; and as it writes {}
import pickle, zipfile
for name, value in ("values.pt", {"epoch": 3, "note": "mine"}), ("empty.pt", {}):
    with zipfile.ZipFile(name, "w") as file:
        file.writestr("archive/data.pkl", pickle.dumps(value, protocol=2))
        file.writestr("archive/byteorder", "little")
        file.writestr("archive/version", "3\n")
with zipfile.ZipFile("script.pt", "w") as file:  # as torch.jit.save writes programs
    file.writestr("archive/data.pkl", pickle.dumps({}, protocol=2))
    file.writestr("archive/constants.pkl", pickle.dumps((), protocol=2))
END
cp "$saved"/{refuse-module,nested,legacy,odd}.pt . && chmod u+w {refuse-module,nested,legacy,odd}.pt && head -c 20000 tiny.pt >cut.pt
for file in 'values.pt holds more than tensors' 'empty.pt holds no dict of tensors' 'refuse-module.pt torch.nn.modules.linear.Linear' \
    "nested.pt holds more than tensors: '" 'legacy.pt holds no dict of tensors' 'odd.pt holds more than tensors' 'cut.pt cut.pt' \
    'script.pt is a program of TorchScript'; do
    name=${file%% *}
    cp $name before && merge tiny -o $name --overwrite
    [ $? = 1 ] && holds err 'it is no model of torch.save' && holds err "${file#* }" && cmp $name before
    ok $? "nor $name: $(cat err)"
done
cp "$saved/zip.pt" zip-again.pt && chmod u+w zip-again.pt && merge tiny -o zip-again.pt --overwrite && cmp zip-again.pt tiny.pt
ok $? "a state dict of torch's own is replaced"
echo x >folder/optimizer.bin
merge tiny -o folder --torch --overwrite
[ $? = 1 ] && holds err optimizer.bin && [ -e folder/optimizer.bin ]
ok $? "nor a folder with another file"
rm folder/optimizer.bin
merge tiny -o folder --torch --overwrite --max-shard-size 100K && [ ! -e folder/pytorch_model.bin ] && same folder tiny 21
ok $? "a folder of such files is replaced"
cp -r folder kept && cp values.pt kept/pytorch_model-00002-of-*.bin && cp -r kept before-kept && merge tiny -o kept --torch --overwrite
[ $? = 1 ] && holds err 'pytorch_model-00002-of-' && holds err 'holds more than tensors' && diff -r kept before-kept >>log
ok $? "unless a file that its index names holds more than tensors: $(tail -n 1 err)"
merge tiny -o folder --overwrite
[ $? = 1 ] && holds err 'it is no safetensors model'
ok $? "not by one of safetensors"
merge tiny -o x.safetensors --torch
[ $? = 1 ] && holds err "name a file that ends in .pt, .pth or .bin" && [ ! -e x.safetensors ]
ok $? "--torch with the name of a safetensors file: $(tail -n 1 err)"
merge tiny -o x --torch --dcp
[ $? = 2 ] && holds err 'one form' && [ ! -e x ]
ok $? "--torch with --dcp"
timeout 60 "$BIN/ckpt-merge" "$TOP/tests/data/llama-tiny" -o .pt --quiet >log 2>err && [ -f .pt ] && ! compgen -G '.pt.*' >>log
ok $? "a name that begins with a dot"
echo "1..$n"
exit $bad
