#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs a command with a Python that has what it is for, whose path is put into a variable:
#
#   scripts/with_python.sh torch COMMAND...   TORCH_PYTHON: PyTorch, safetensors, transformers, numpy, pyarrow,
#                                             jinja2, tiktoken, sentencepiece, mistral-common,
#                                             lion-pytorch, schedulefree, bitsandbytes, peft; TRL
#                                             and compressed-tensors, which tests can do without
#   scripts/with_python.sh aws COMMAND...     S3_PYTHON: the AWS CLI and botocore
#   scripts/with_python.sh watch COMMAND...   WATCH_PYTHON: TensorBoard and W&B's client
#   scripts/with_python.sh eb COMMAND...      EB_PYTHON: EasyBuild's framework, which parses recipes
#   scripts/with_python.sh wheel COMMAND...   WHEEL_PYTHON: a compiler for old C libraries (ziglang), wheel,
#                                             auditwheel
#   scripts/with_python.sh sass COMMAND...    SASS_PYTHON: cuobjdump and nvdisasm, which show machine code of GPUs
#
# The Python is the one in that variable, python3, or a virtual environment below build/, made on
# first use from PyPI (for PyTorch a download of a few GB).
set -u
top=$(cd "$(dirname "$0")/.." && pwd)

case ${1:-} in
torch)
    variable=TORCH_PYTHON venv=$top/build/venv what=PyTorch
    imports='torch, safetensors.torch, transformers, numpy, pyarrow, jinja2, tiktoken, sentencepiece, mistral_common, lion_pytorch, schedulefree, bitsandbytes, peft'
    packages=(torch safetensors transformers numpy pyarrow jinja2 tiktoken sentencepiece mistral-common accelerate lion-pytorch
        schedulefree bitsandbytes peft trl compressed-tensors==0.20.0)
    versions='import torch, transformers as t; print("PyTorch", torch.__version__ + ", transformers", t.__version__)'
    ;;
aws)
    variable=S3_PYTHON venv=$top/build/venv-aws what='the AWS CLI'
    imports='awscli, botocore'
    packages=(awscli)
    versions='import awscli, botocore; print("AWS CLI", awscli.__version__ + ", botocore", botocore.__version__)'
    ;;
watch)
    variable=WATCH_PYTHON venv=$top/build/venv-watch what='TensorBoard and W&B'
    imports='tensorboard, wandb'
    packages=(tensorboard wandb)
    versions='import tensorboard.version as t, wandb; print("TensorBoard", t.VERSION + ", W&B", wandb.__version__)'
    ;;
eb)
    variable=EB_PYTHON venv=$top/build/venv-eb what="EasyBuild's framework"
    imports='easybuild.framework.easyconfig.parser'
    packages=(easybuild-framework)
    versions='from easybuild.tools.version import VERSION; print("EasyBuild", VERSION)'
    ;;
wheel)
    variable=WHEEL_PYTHON venv=$top/build/venv-wheel what='what builds wheels'
    imports='ziglang, wheel, auditwheel'
    packages=(ziglang wheel auditwheel)
    versions='from importlib.metadata import version as v; print("ziglang", v("ziglang") + ", wheel", v("wheel") + ", auditwheel", v("auditwheel"))'
    ;;
sass)
    variable=SASS_PYTHON venv=$top/build/venv-sass what='cuobjdump and nvdisasm'
    imports='importlib.metadata as m; m.version("nvidia-cuda-cuobjdump"), m.version("nvidia-cuda-nvdisasm")'
    packages=(nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm)
    versions='from importlib.metadata import version as v; print("cuobjdump", v("nvidia-cuda-cuobjdump") + ", nvdisasm", v("nvidia-cuda-nvdisasm"))'
    ;;
*)
    sed -n '3,17s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
shift

# Leaves what it has in $has: in one Python, for to import torch and the others takes seconds.
serves() {
    has=$("$1" -c "import $imports
$versions" 2>/dev/null)
}

python=${!variable:-}
if [ -n "$python" ]; then
    serves "$python" || {
        echo "$variable=$python cannot import $imports" >&2
        exit 1
    }
else
    for python in "$venv/bin/python" "$(command -v python3)"; do
        [ -n "$python" ] && serves "$python" && break
        python=
    done
fi
if [ -z "$python" ]; then
    python=$venv/bin/python
    echo "Fetching $what from PyPI into $venv" >&2
    log=$venv.log
    mkdir -p "$top/build"
    rm -rf "$venv"
    if ! { python3 -m venv "$venv" && "$python" -m pip install --quiet --no-input \
        --disable-pip-version-check "${packages[@]}"; } </dev/null >"$log" 2>&1 || ! serves "$python"; then
        tail -n 20 "$log" >&2
        echo "could not make $venv; set $variable to a Python that has $what" >&2
        exit 1
    fi
    rm -f "$log"
fi
export "$variable=$python"
echo "$has"
exec "$@"
