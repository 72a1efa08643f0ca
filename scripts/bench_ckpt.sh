#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Benchmarks of checkpoints, as ratios measured in one run, with a cold cache and everything on the
# disk at the end. Nothing here is a test.
#
#   scripts/bench_ckpt.sh [GB]     a model of GB (1), thrice that with its optimizer's state; needs
#                                  ten times that on the disk under TMPDIR; TORCH_PYTHON: a Python
#                                  with PyTorch, for the comparison with its own tools
set -u
TOP=$(cd "$(dirname "$0")/.." && pwd)
BIN=${BIN:-$TOP/build/bin}
gb=${1:-1}
work=$(mktemp -d "${TMPDIR:-/var/tmp}/fsdp-bench.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1

die() {
    echo "bench: $*" >&2
    exit 1
}
drop() {
    sync
    { echo 3 >/proc/sys/vm/drop_caches; } 2>/dev/null || warm=' (warm: not root)'
}
# seconds NAME COMMAND...: runs it cold, remembers its time
declare -A took
seconds() {
    local name=$1 began
    shift
    drop
    began=$(date +%s.%N)
    "$@" >log 2>&1 || die "$* failed: $(tail -n 3 log)"
    took[$name]=$(awk -v a="$began" -v b="$(date +%s.%N)" 'BEGIN {printf "%.2f", b - a}')
}
ratio() { awk -v a="${took[$1]}" -v b="${took[$2]}" 'BEGIN {printf "%.2f", a / b}'; }
row() { printf '| %s | %s | %s |\n' "$1" "$2" "$3"; }
copy_direct() { # files: as fast as a plain loop past the cache copies them, one after the other
    local file
    mkdir copy
    for file; do
        dd if="$file" of="copy/${file//\//-}" bs=8M iflag=direct oflag=direct conv=fsync status=none || return 1
    done
}

warm=
layers=$(awk -v gb="$gb" 'BEGIN {n = int((gb * 2.5e8 - 2.62e8) / 4.9e7) + 1; print n < 1 ? 1 : n}')
mkdir model
cat >model/config.json <<END
{"model_type": "llama", "vocab_size": 64000, "hidden_size": 2048, "intermediate_size": 5632,
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
src=checkpoints/step-00000000
bytes=$(du -bc $src/model | tail -n 1 | cut -f1)

echo "model of $((bytes / 1000000)) MB in 8 shards, median of 3, $(nproc) processors$warm"
echo
row what "this, s" "against, s: times as fast"
row --- --- ---
median() { # name of many runs
    local name=$1 i all=
    shift
    for i in 1 2 3; do
        rm -rf out out.safetensors copy
        seconds "$name" "$@"
        all+="${took[$name]}"$'\n'
    done
    took[$name]=$(printf '%s' "$all" | sort -n | sed -n 2p)
}
median copy copy_direct $src/model/*
median merge "$BIN/ckpt-merge" $src -o out.safetensors --quiet
row ckpt-merge "${took[merge]}" "copy loop past the cache ${took[copy]}: $(ratio copy merge)"
median copy copy_direct $src/model/* $src/optim/*
median reshard "$BIN/ckpt-reshard" $src -o out --world 6 --quiet
row 'ckpt-reshard 8 to 6, with optimizer' "${took[reshard]}" \
    "copy loop past the cache ${took[copy]}: $(ratio copy reshard)"
rm -rf out copy

if [ -n "${TORCH_PYTHON:-}" ]; then
    "$TORCH_PYTHON" - "$src/model" <<'END' >log 2>&1 || die "$(tail -n 3 log)"
import sys, torch.distributed.checkpoint as dcp
from safetensors import safe_open
import glob, torch
whole = {}
for path in sorted(glob.glob(sys.argv[1] + "/*.safetensors")):
    with safe_open(path, "pt") as f:
        for name in f.keys():
            whole.setdefault(name, []).append(f.get_tensor(name))
dcp.save({name: torch.cat(parts) for name, parts in whole.items()}, checkpoint_id="dcp")
END
    torch_save='import os, sys; from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
dcp_to_torch_save("dcp", "out"); f = os.open("out", os.O_RDWR); os.fsync(f)'
    median torch "$TORCH_PYTHON" -c "$torch_save"
    median merge "$BIN/ckpt-merge" dcp -o out.safetensors --quiet
    row 'ckpt-merge of .distcp' "${took[merge]}" "torch's dcp_to_torch_save ${took[torch]}: $(ratio torch merge)"
    rm -rf dcp
    consolidate='import os, glob; from torch.distributed.checkpoint._consolidate_hf_safetensors import consolidate_safetensors_files
os.makedirs("out"); consolidate_safetensors_files("'$src/model'", "out")
for p in glob.glob("out/*"): f = os.open(p, os.O_RDWR); os.fsync(f)'
    median torch "$TORCH_PYTHON" -c "$consolidate"
    median merge "$BIN/ckpt-merge" $src -o out.safetensors --quiet
    row 'ckpt-merge' "${took[merge]}" "torch's consolidation, with fsync ${took[torch]}: $(ratio torch merge)"
fi
echo
[ ! -x "$BIN/tests/ckpt/bench_codec" ] || "$BIN/tests/ckpt/bench_codec"
