#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs a command with llama.cpp, for the CPU: built once from the source package of llama-cpp-python (PyPI) into
# build/llama.cpp, or the folder in LLAMA_CPP that an earlier run has made. The command finds
#
#   LLAMA_CPP_LIB_PATH   the folder of libllama.so
#   LLAMA_PYTHONPATH     the bindings of llama-cpp-python, and gguf-py
#   LLAMA_CONVERTER      convert_hf_to_gguf.py
set -u
top=$(cd "$(dirname "$0")/.." && pwd)
folder=${LLAMA_CPP:-$top/build/llama.cpp}
log=$folder.log

build() {
    local source=$folder.tmp/source
    rm -rf "$folder.tmp"
    mkdir -p "$folder.tmp" && cd "$folder.tmp" || return 1
    # Not --no-binary :all:, which would build what the package is built with, too.
    python3 -m pip download --quiet --no-input --disable-pip-version-check --no-deps --no-binary llama-cpp-python \
        llama-cpp-python && mkdir source && tar -xf llama_cpp_python-*.tar.gz -C source --strip-components=1 &&
        rm llama_cpp_python-*.tar.gz || return 1
    local without=()
    for part in BUILD_COMMON BUILD_TESTS BUILD_TOOLS BUILD_EXAMPLES BUILD_SERVER BUILD_APP OPENSSL; do
        without+=(-DLLAMA_$part=OFF)
    done
    # NATIVE off means AVX2, FMA and F16C on x86-64.
    for part in NATIVE OPENMP LLAMAFILE CPU_REPACK CCACHE; do
        without+=(-DGGML_$part=OFF)
    done
    cmake -S source/vendor/llama.cpp -B objects -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON \
        -DCMAKE_C_FLAGS_RELEASE='-O2 -DNDEBUG' -DCMAKE_CXX_FLAGS_RELEASE='-O1 -DNDEBUG' "${without[@]}" &&
        nice cmake --build objects --target llama -j "${LLAMA_JOBS:-$(nproc)}" && mkdir lib && cp -a objects/bin/*.so* lib/ &&
        rm -r objects || return 1
    cd "$top" && mv "$folder.tmp" "$folder"
}

if [ ! -e "$folder/lib/libllama.so" ]; then
    echo "Building llama.cpp into $folder" >&2
    if ! (build) </dev/null >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        echo "could not build llama.cpp; the log is $log" >&2
        exit 1
    fi
    rm -f "$log"
fi
vendor=$folder/source/vendor/llama.cpp
export LLAMA_CPP_LIB_PATH=$folder/lib LLAMA_PYTHONPATH=$folder/source:$vendor/gguf-py
export LLAMA_CONVERTER=$vendor/convert_hf_to_gguf.py
# They were linked in another folder.
export LD_LIBRARY_PATH=$folder/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
exec "$@"
