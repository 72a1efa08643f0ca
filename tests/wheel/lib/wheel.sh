# SPDX-License-Identifier: Apache-2.0
# wheel.sh: the wheel of this tree, in fresh environments; `.` it after tap.sh.

# $wheel is its file; without one the test is skipped.
need_wheel() {
    local version
    version=$(sed -n 's/^#define FSDP_VERSION_STRING "\(.*\)"/\1/p' "$TOP/libfsdp/include/fsdp/base.h")
    wheel=$TOP/build/dist/fsdp_ckpt-$version-py3-none-manylinux_2_28_x86_64.whl
    [ -f "$wheel" ] && return
    echo "1..0 # SKIP there is no wheel: make wheel"
    exit 0
}
need_torch() {
    "${TORCH_PYTHON:-python3}" -c 'import torch, numpy, safetensors' 2>/dev/null && return
    echo "1..0 # SKIP no PyTorch (set TORCH_PYTHON)"
    exit 0
}
# A fresh environment with the wheel alone, from its file: no network, nothing of this tree.
make_env() { # folder, the Python that it is of
    "$2" -m venv "$1" >log 2>&1 && "$1/bin/pip" install --quiet --no-index --disable-pip-version-check "$wheel" >log 2>&1
}
