# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Read by check_gpu.sh and bench_gpu.sh, in the source tree: what a bare GPU machine lacks is taken
# from gpu-deps (scripts/gpu_pack.sh), what it has in odd places is found, and results are written.

say() { printf '%s\n' "$*"; }
die() { printf '%s: %s\n' "${0##*/}" "$*" >&2 && exit 1; }

# ---- what building needs ----------------------------------------------------------------------------

unpack() { # deb, folder
    if command -v dpkg-deb >/dev/null; then
        dpkg-deb -x "$1" "$2"
    else
        local data
        data=$(ar t "$1" | grep '^data\.tar') || return 1
        case $data in
        *.xz) ar p "$1" "$data" | tar -xJ -C "$2" ;;
        *.zst) ar p "$1" "$data" | zstd -dc | tar -x -C "$2" ;;
        *) ar p "$1" "$data" | tar -xz -C "$2" ;;
        esac
    fi
}

have_all() {
    command -v make >/dev/null && command -v pkg-config >/dev/null &&
        pkg-config --exists libcrypto libisal jansson yaml-0.1 libpcre2-8 libutf8proc zlib openblas 2>/dev/null
}

use_pack() {
    local root=$PWD/build/gpu-deps lib deb
    [ -d gpu-deps ] || die "pkg-config, libcrypto, libisal, jansson, yaml-0.1, libpcre2-8, libutf8proc, zlib or openblas is missing, and there is
no folder gpu-deps: run scripts/gpu_pack.sh on a machine with network, and unpack its file here"
    if [ ! -e "$root/.done" ]; then
        mkdir -p "$root"
        for deb in gpu-deps/*.deb; do
            unpack "$deb" "$root" || die "cannot unpack $deb"
        done
        touch "$root/.done"
    fi
    lib=$root/usr/lib/x86_64-linux-gnu
    [ -e "$root/usr/bin/pkg-config" ] || ln -s pkgconf "$root/usr/bin/pkg-config"
    export PATH=$root/usr/bin:$PATH PKG_CONFIG_PATH=$lib/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
    export CPATH=$root/usr/include:$root/usr/include/x86_64-linux-gnu${CPATH:+:$CPATH}
    export LIBRARY_PATH=$lib${LIBRARY_PATH:+:$LIBRARY_PATH}
    export LD_LIBRARY_PATH=$lib:$lib/openblas-pthread${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    # Debian finds it by way of its alternatives, which nobody has set here.
    export CBLAS_CFLAGS=-I$root/usr/include/x86_64-linux-gnu/openblas-pthread
    export CBLAS_LIBS="-L$lib/openblas-pthread -lopenblas"
}

python_of() {
    for PYTHON in "${TORCH_PYTHON:-}" "$(command -v python3)"; do
        [ -n "$PYTHON" ] && "$PYTHON" -c 'import torch' 2>/dev/null && return
    done
    PYTHON=
}

# NCCL and cuDNN, and NVRTC, which cuDNN compiles its attention with, may have come with PyTorch alone: a
# toolkit's folder of links is made that has all.
use_cuda() {
    local home=${CUDA_HOME:-} packages name d
    [ -n "$home" ] || home=$(dirname "$(dirname "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)")")
    [ -x "$home/bin/nvcc" ] || die "there is no nvcc in PATH, \$CUDA_HOME/bin or /usr/local/cuda/bin"
    export CUDA_HOME=$home
    python_of
    [ -n "$PYTHON" ] || return 0
    [ ! -e "$home/include/nccl.h" ] || [ ! -e "$home/include/cudnn.h" ] || [ ! -e "$home/include/cublasLt.h" ] ||
        return 0
    packages=$("$PYTHON" -c 'import os, nvidia; print(list(nvidia.__path__)[0])' 2>/dev/null) || return 0
    d=$PWD/build/gpu-cuda
    export CUDA_HOME=$d CUDA_LIB=$d/lib64
    [ "$(cat "$d/.of" 2>/dev/null)" != "$home $packages" ] || return 0
    rm -rf "$d" && mkdir -p "$d/include" "$d/lib64"
    ln -s "$home"/{bin,nvvm} "$d"
    ln -s "$home"/include/* "$d/include"
    for name in "$home"/lib64/* "$home"/targets/x86_64-linux/lib/*; do
        ln -sf "$name" "$d/lib64" 2>/dev/null
    done
    for name in nccl cudnn; do
        [ -e "$d/include/$name.h" ] && continue
        ln -sf "$packages/$name"/include/* "$d/include"
        for lib in "$packages/$name"/lib/lib*.so.*; do
            ln -sf "$lib" "$d/lib64"
            ln -sf "$lib" "$d/lib64/$(basename "${lib%%.so.*}").so"
        done
    done
    # What the toolkit lacks of its own parts: no link of its takes the place of another.
    for name in "$packages"/{cu13,cublas,cuda_nvrtc,nvjitlink}; do
        ln -s "$name"/include/* "$d/include" 2>/dev/null
        for lib in "$name"/lib/lib*.so.*; do
            [ -e "$lib" ] || continue
            ln -s "$lib" "$d/lib64" 2>/dev/null
            ln -s "$lib" "$d/lib64/$(basename "${lib%%.so.*}").so" 2>/dev/null
        done
    done
    say "$home $packages" >"$d/.of"
}

# Programs deeper in build/bin than those of users do not find it by themselves.
export FSDP_CUDA_LIBRARY=${FSDP_CUDA_LIBRARY:-$PWD/build/lib/libfsdp-cuda.so}

# ---- results ----------------------------------------------------------------------------------------

# One line of text for people and one of JSON for programs, in $RESULTS; both grow while parts run
# alone.
result_open() { # name
    day=$(date -u +%F)
    mkdir -p "${RESULTS:=docs/results}"
    table=$RESULTS/$day-$1.txt json=$RESULTS/$day-$1.json
    [ -e "$table" ] || versions >"$table"
    [ -e "$json" ] || : >"$json"
}

versions() {
    say "$(date -u '+%F'), $(git rev-parse --short HEAD 2>/dev/null || cat build/gpu-commit 2>/dev/null || echo unknown commit)"
    say "GPU: $(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null | sort | uniq -c | sed 's/^ *//' || :)"
    say "CUDA: $("${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" --version 2>/dev/null | sed -n 's/.*release //p')"
    [ -z "${PYTHON:-}" ] || "$PYTHON" -c 'import torch
print("PyTorch:", torch.__version__, "cuDNN", torch.backends.cudnn.version(),
      "NCCL", ".".join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else "?")' 2>/dev/null
    say
}

# $(quote text): a JSON string
quote() {
    local text=${1//\\/\\\\}
    text=${text//\"/\\\"}
    text=${text//$'\n'/\\n}
    printf '"%s"' "${text//$'\t'/ }"
}

result() { # part, what, verdict, figures
    printf '%-11s %-46s %-7s %s\n' "$@" | sed 's/ *$//' | tee -a "$table"
    printf '{"part": %s, "what": %s, "verdict": %s, "figures": %s}\n' "$(quote "$1")" "$(quote "$2")" \
        "$(quote "$3")" "$(quote "$4")" >>"$json"
}
