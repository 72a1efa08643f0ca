#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Benchmarks of checkpoints, as ratios of two things that take turns in one run, with a cold cache
# and everything on the disk at the end. Nothing here is a test.
#
#   scripts/bench_ckpt.sh [-g GB] [-n ROUNDS] [ROW...]
#
#   info          ckpt-info on 10,000 tensors: one file, native, torch's .metadata; seconds
#   merge         ckpt-merge against a loop that copies the same bytes past the cache
#   reshard       ckpt-reshard from 8 to 6 ranks, with the optimizer, against the same and against such
#                 copies of all files at once, which show what the disk gives
#   checksums     ckpt-reshard with checksums against one whose checksums are free
#   torch-save    ckpt-merge against torch's dcp_to_torch_save
#   consolidate   ckpt-merge against torch's consolidation of safetensors, with fsync
#   codec         what one core compresses and decompresses
#   deepspeed     ckpt-merge of DeepSpeed's ZeRO 2 and 3 against its zero_to_fp32.py, with peak memory
#   gguf          ckpt-merge to GGUF against llama.cpp's convert_hf_to_gguf.py, with peak memory
#
# All but the last two, which fetch their peers first, unless some are named. The model has GB (0.5)
# gigabytes, thrice that with the optimizer's state; the disk under TMPDIR (/var/tmp) needs eight
# times that. Both of a pair run in each of ROUNDS (3) rounds, the first of them first in every other
# one; medians are printed, of the ratio that of the rounds' own, which other work on the machine
# changes less. torch-save, consolidate, deepspeed and gguf need TORCH_PYTHON, a Python with PyTorch,
# whose start is not counted; checksums needs a C compiler.
set -u
TOP=$(cd "$(dirname "$0")/.." && pwd)
BIN=${BIN:-$TOP/build/bin}
gb=0.5 rounds=3

die() {
    echo "bench: $*" >&2
    exit 1
}
usage() { sed -n '/^#   scripts/,/^set/p' "$TOP/scripts/bench_ckpt.sh" | sed -n 's/^# \{0,1\}//p'; }

while getopts g:n:h option; do
    case $option in
    g) gb=$OPTARG ;;
    n) rounds=$OPTARG ;;
    h) usage && exit 0 ;;
    *) usage >&2 && exit 2 ;;
    esac
done
shift $((OPTIND - 1))
rows=${*:-info merge reshard checksums torch-save consolidate codec}
for row in $rows; do
    case $row in
    info | merge | reshard | checksums | torch-save | consolidate | codec | deepspeed | gguf) ;;
    *) die "no such row: $row (scripts/bench_ckpt.sh -h)" ;;
    esac
done

work=$(mktemp -d "${TMPDIR:-/var/tmp}/fsdp-bench.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1

# ---- measuring ----------------------------------------------------------------------------------

cache=cold
drop() {
    sync
    { echo 3 >/proc/sys/vm/drop_caches; } 2>/dev/null || cache='warm: not root'
}

# Seconds of a command, cold. What prints a line "seconds S" has measured itself.
seconds() {
    local began ended
    rm -rf out out.*
    drop
    began=$(date +%s.%N)
    "$@" >log 2>&1 || die "$* failed: $(tail -n 3 log)"
    ended=$(date +%s.%N)
    awk -v a="$began" -v b="$ended" '$1 == "seconds" {own = $2} END {printf "%.3f\n", own ? own : b - a}' log
}

median() { sort -n | awk '{t[NR] = $1} END {printf "%.3f", t[int((NR + 1) / 2)]}'; }

line() { printf '| %s | %s | %s | %s |\n' "$1" "$2" "$3" "$4"; }

# pair TEXT OURS TEXT THEIRS: two functions take turns; a row with both medians and how many times as
# fast the first is
pair() {
    local i a b ours='' theirs='' ratios=''
    for ((i = 0; i < rounds; i++)); do
        ((i % 2)) && b=$(seconds "$4")
        a=$(seconds "$2")
        ((i % 2)) || b=$(seconds "$4")
        ours+=$a$'\n' theirs+=$b$'\n'
        ratios+=$(awk -v a="$a" -v b="$b" 'BEGIN {print b / a}')$'\n'
    done
    rm -rf out out.*
    ours=$(printf '%s' "$ours" | median) theirs=$(printf '%s' "$theirs" | median)
    line "$1$(peak_of "$2")" "$ours" "$3: $theirs$(peak_of "$4")" "$(printf '%s' "$ratios" | median | awk '{printf "%.2f", $1}')"
}

# A command, its peak memory kept for the line of function NAME.
measured() { # NAME COMMAND...
    /usr/bin/time -o "peak.$1" -f %M "${@:2}"
}
peak_of() { [ ! -f "peak.$1" ] || awk 'END {printf " (peak %d MiB)", $1 / 1024}' "peak.$1"; }

# ---- what is measured on ------------------------------------------------------------------------

# The state that 8 ranks save before the first step, as fsdp-launch does.
src=checkpoints/step-00000000
make_source() {
    [ ! -d $src ] || return 0
    local layers
    layers=$(awk -v gb="$gb" 'BEGIN {n = int((gb * 2.5e8 - 6.5e7) / 4.9e7) + 1; print n < 1 ? 1 : n}')
    mkdir model
    cat >model/config.json <<END
{"model_type": "llama", "vocab_size": 16000, "hidden_size": 2048, "intermediate_size": 5632,
 "num_hidden_layers": $layers, "num_attention_heads": 16, "num_key_value_heads": 16,
 "hidden_act": "silu", "max_position_embeddings": 64, "initializer_range": 0.02,
 "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false}
END
    cat >run.yaml <<END
model: {path: model, init: random}
data: {seq_len: 16}
train: {steps: 0, global_batch_size: 8, micro_batch_size: 1}
checkpoint: {path: checkpoints, fsync: false}
END
    "$BIN/fsdp-launch" -n 8 run.yaml >log 2>&1 || die "$(tail -n 5 log)"
}

# A safetensors file of 10,000 matrices of 8 x 4: 8 bytes of length, the header, zeros.
make_many() { # file
    local nbytes i
    awk 'BEGIN {
        for (i = 0; i < 10000; i++)
            printf "%s\"model.layers.%d.mlp.experts.%d.weight\":{\"dtype\":\"F32\",\"shape\":[8,4]," \
                "\"data_offsets\":[%d,%d]}", i ? "," : "{", i / 100, i % 100, i * 128, (i + 1) * 128
        print "}"
    }' >header || return 1
    nbytes=$(stat -c %s header)
    for i in 0 8 16 24 32 40 48 56; do
        printf "\\x$(printf %02x $((nbytes >> i & 255)))"
    done >"$1"
    cat header >>"$1"
    head -c 1280000 /dev/zero >>"$1"
}

# ---- rows ---------------------------------------------------------------------------------------

# The fastest of many: what the program takes when nothing else runs. Warm; output to a file.
info_row() { # text checkpoint
    local i began ended best
    best=$(for i in {1..20}; do
        began=$(date +%s%N)
        "$BIN/ckpt-info" "$2" >log 2>&1 || die "$(tail -n 3 log)"
        ended=$(date +%s%N)
        echo $((ended - began))
    done | sort -n | head -n 1)
    line "ckpt-info of 10,000 tensors, $1" "$(awk -v t="$best" 'BEGIN {printf "%.3f", t / 1e9}')" 'goal: 0.050' \
        "$(awk -v t="$best" 'BEGIN {printf "%.2f", 5e7 / t}')"
}
row_info() {
    make_many many.safetensors || die 'cannot write'
    "$BIN/ckpt-reshard" many.safetensors -o many-native --world 4 --quiet || die 'ckpt-reshard failed'
    "$BIN/ckpt-reshard" many.safetensors -o many-dcp --world 4 --format dcp --quiet || die 'ckpt-reshard failed'
    info_row 'one safetensors file' many.safetensors
    info_row 'native, 40,000 boxes in 4 files' many-native
    info_row "torch's .metadata of 40,000 boxes" many-dcp
    rm -rf many*
}

copy_direct() { # as fast as a plain loop past the cache copies files, one after the other
    local file
    mkdir out
    for file; do
        dd if="$file" of="out/${file//\//-}" bs=8M iflag=direct oflag=direct conv=fsync status=none || return 1
    done
}
copy_at_once() { # what the disk gives
    local file
    mkdir out
    for file in $src/model/* $src/optim/*; do
        dd if="$file" of="out/${file//\//-}" bs=8M iflag=direct oflag=direct conv=fsync status=none &
    done
    wait
}
copy_model() { copy_direct $src/model/*; }
copy_all() { copy_direct $src/model/* $src/optim/*; }
merge() { "$BIN/ckpt-merge" $src -o out.safetensors --quiet; }
reshard() { "$BIN/ckpt-reshard" $src -o out --world 6 --quiet; }

row_merge() {
    make_source
    pair ckpt-merge merge 'copy loop past the cache' copy_model
}
row_reshard() {
    make_source
    pair 'ckpt-reshard 8 to 6, with optimizer' reshard 'copy loop past the cache' copy_all
    pair 'ckpt-reshard 8 to 6, with optimizer' reshard 'the same copies all at once' copy_at_once
}

# A library that takes the place of the one that computes checksums, and computes none. The source
# has none that could then be wrong.
row_checksums() {
    make_source
    cat >free.c <<'END'
#include <stdint.h>
uint64_t crc64_ecma_refl(uint64_t crc, const unsigned char *p, uint64_t n) { (void)p; (void)n; return crc; }
uint32_t crc32_iscsi(unsigned char *p, int n, uint32_t crc) { (void)p; (void)n; return crc; }
uint32_t crc32_gzip_refl(uint32_t crc, const unsigned char *p, uint64_t n) { (void)p; (void)n; return crc; }
END
    ${CC:-cc} -O2 -shared -fPIC -o free.so free.c || die 'no C compiler'
    "$BIN/ckpt-reshard" $src -o bare --world 8 --format hf-dcp --quiet || die 'ckpt-reshard failed'
    pair 'ckpt-reshard 8 to 6, all checksums made' with_sums 'no checksums' without_sums
    rm -rf bare
}
with_sums() { "$BIN/ckpt-reshard" bare -o out --world 6 --quiet; }
without_sums() { LD_PRELOAD=$work/free.so "$BIN/ckpt-reshard" bare -o out --world 6 --quiet; }

has_torch() {
    [ -n "${TORCH_PYTHON:-}" ] && return 0
    line "$1" - 'TORCH_PYTHON is not set' -
    return 1
}
row_torch-save() {
    has_torch "ckpt-merge of torch's .distcp" || return 0
    make_source
    "$BIN/ckpt-reshard" $src -o dcp --world 8 --format dcp --include 'model.*' --include lm_head.weight --quiet ||
        die 'ckpt-reshard failed'
    pair "ckpt-merge of torch's .distcp" merge_dcp "torch's dcp_to_torch_save, with fsync" torch_save
    rm -rf dcp
}
merge_dcp() { "$BIN/ckpt-merge" dcp -o out.safetensors --quiet; }
torch_save() {
    "$TORCH_PYTHON" -W ignore - <<'END'
import os, time
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
began = time.perf_counter()
dcp_to_torch_save("dcp", "out")
os.fsync(os.open("out", os.O_RDWR))
print("seconds", time.perf_counter() - began)
END
}

row_consolidate() {
    has_torch 'ckpt-merge' || return 0
    make_source
    pair ckpt-merge merge "torch's consolidate_safetensors_files, as many threads, with fsync" consolidate
}
consolidate() {
    "$TORCH_PYTHON" -W ignore - $src/model "$(nproc)" <<'END'
import glob, json, os, struct, sys, time
from torch.distributed.checkpoint._consolidate_hf_safetensors import consolidate_safetensors_files
names = set()
for path in glob.glob(sys.argv[1] + "/*"):
    with open(path, "rb") as f:
        names |= set(json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))) - {"__metadata__"}
os.makedirs("out")
began = time.perf_counter()
consolidate_safetensors_files(sys.argv[1], "out", dict.fromkeys(names, 1), num_threads=int(sys.argv[2]))
for path in glob.glob("out/*"):
    os.fsync(os.open(path, os.O_RDWR))
print("seconds", time.perf_counter() - began)
END
}

# A model after steps of DeepSpeed on two CPU ranks. Its converter reads lazily; loading first and torch.save is what
# its documentation shows for small models.
row_deepspeed() {
    local stage
    has_torch "ckpt-merge of DeepSpeed's ZeRO" || return 0
    eval "$("$TOP/scripts/with_deepspeed.sh" sh -c 'export -p' | grep -e DEEPSPEED_PYTHON -e DS_ACCELERATOR)"
    [ -n "${DEEPSPEED_PYTHON:-}" ] || die 'no DeepSpeed'
    for stage in 2 3; do
        zero=zero/$stage-bf16-large-2r
        "$DEEPSPEED_PYTHON" -W ignore "$TOP/tests/deepspeed/make.py" zero 2 $stage-bf16-large >log 2>&1 || die "$(tail -n 3 log)"
        pair "ckpt-merge of DeepSpeed's ZeRO-$stage" merge_zero 'zero_to_fp32.py, with fsync' zero_to_fp32
        pair "ckpt-merge of DeepSpeed's ZeRO-$stage" merge_zero 'loaded at once, and torch.save' zero_at_once
        rm -rf zero
    done
}
merge_zero() { measured merge_zero "$BIN/ckpt-merge" "$zero" -o out.safetensors --quiet; }
zero_to_fp32() {
    measured zero_to_fp32 "$DEEPSPEED_PYTHON" -W ignore - "$zero" <<'END'
import glob, os, sys, time
from deepspeed.utils.zero_to_fp32 import convert_zero_checkpoint_to_fp32_state_dict
began = time.perf_counter()
convert_zero_checkpoint_to_fp32_state_dict(sys.argv[1], "out", safe_serialization=True)
for path in glob.glob("out/*"):
    os.fsync(os.open(path, os.O_RDWR))
print("\nseconds", time.perf_counter() - began)
END
}
zero_at_once() {
    measured zero_at_once "$DEEPSPEED_PYTHON" -W ignore - "$zero" <<'END'
import os, sys, time
import torch
from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
began = time.perf_counter()
torch.save(get_fp32_state_dict_from_zero_checkpoint(sys.argv[1]), "out.pt")
os.fsync(os.open("out.pt", os.O_RDWR))
print("\nseconds", time.perf_counter() - began)
END
}

# The model in bf16, as a Hugging Face folder with a tokenizer of 302 tokens.
row_gguf() {
    local type
    has_torch 'ckpt-merge to GGUF' || return 0
    eval "$("$TOP/scripts/with_llama.sh" sh -c 'export -p' | grep -e LLAMA_)"
    [ -n "${LLAMA_CONVERTER:-}" ] || die 'no llama.cpp'
    make_source
    "$BIN/ckpt-merge" $src -o hf --dtype bfloat16 --quiet && cp model/config.json hf/ || die 'no folder'
    sed -i 's/"model_type"/"architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16", "model_type"/' hf/config.json
    PYTHONPATH=$TOP/tests/gguf "$TORCH_PYTHON" -W ignore -c 'import models; models.make_bpe("digits", "hf")' || die 'no tokenizer'
    for type in f16 q8_0; do
        pair "ckpt-merge to GGUF, $type" to_gguf 'convert_hf_to_gguf.py, with fsync' convert_to_gguf
    done
    pair 'ckpt-merge to GGUF, q8_0' to_gguf 'copy loop past the cache, of the bf16 folder' copy_folder
    rm -rf hf
}
to_gguf() { measured to_gguf "$BIN/ckpt-merge" hf -o out.gguf --type "$type" --quiet; }
copy_folder() { copy_direct hf/*.safetensors; }
convert_to_gguf() {
    PYTHONPATH=$LLAMA_PYTHONPATH measured convert_to_gguf "$TORCH_PYTHON" -W ignore - "$LLAMA_CONVERTER" "$type" <<'END'
import os, runpy, sys, time
sys.path.insert(0, os.path.dirname(sys.argv[1]))
import torch, transformers
import conversion.base as base
base.TextModel.get_vocab_base_pre = lambda self, tokenizer: "smollm"  # it knows published tokenizers alone
converter, kind = sys.argv[1:]
sys.argv = ["convert", "hf", "--outfile", "out.gguf", "--outtype", kind]
began = time.perf_counter()
try:
    runpy.run_path(converter, run_name="__main__")
except SystemExit:
    pass
os.fsync(os.open("out.gguf", os.O_RDWR))
print("\nseconds", time.perf_counter() - began)
END
}

drop
case " $rows " in
*' merge '* | *' reshard '* | *' checksums '* | *-save* | *' consolidate '* | *' gguf '*)
    make_source
    bytes=$(du -bc $src/model | tail -n 1 | cut -f1)
    echo "model of $((bytes / 1000000)) MB in 8 shards, medians of $rounds, $(nproc) processors, cache $cache,"
    echo "load $(cut -d' ' -f1 /proc/loadavg)"
    echo
    ;;
esac
case $rows in
codec) ;;
*)
    line what seconds 'against, seconds' 'times as fast'
    line --- --- --- ---
    ;;
esac
for row in $rows; do
    [ "$row" = codec ] || "row_$row"
done
case " $rows " in
*' codec '*)
    echo
    "$BIN/tests/ckpt/bench_codec"
    ;;
esac
