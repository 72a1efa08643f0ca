#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs a command with S3_PYTHON set to a Python that has the AWS CLI and botocore: the one in
# S3_PYTHON, python3, or a virtual environment in build/venv-aws, made on first use from PyPI.
set -u
top=$(cd "$(dirname "$0")/.." && pwd)
venv=$top/build/venv-aws

has_aws() {
    "$1" -c 'import awscli, botocore' >/dev/null 2>&1
}

if [ -n "${S3_PYTHON:-}" ] && ! has_aws "$S3_PYTHON"; then
    echo "S3_PYTHON=$S3_PYTHON cannot import awscli and botocore" >&2
    exit 1
fi
for python in "${S3_PYTHON:-}" "$venv/bin/python" "$(command -v python3)"; do
    [ -n "$python" ] && has_aws "$python" && break
    python=
done
if [ -z "$python" ]; then
    python=$venv/bin/python
    echo "Fetching the AWS CLI from PyPI into $venv" >&2
    log=$venv.log
    mkdir -p "$top/build"
    rm -rf "$venv"
    if ! { python3 -m venv "$venv" && "$python" -m pip install --quiet --no-input \
        --disable-pip-version-check awscli; } </dev/null >"$log" 2>&1 || ! has_aws "$python"; then
        tail -n 20 "$log" >&2
        echo "could not make $venv; set S3_PYTHON to a Python that has awscli" >&2
        exit 1
    fi
    rm -f "$log"
fi
export S3_PYTHON=$python
"$python" -c 'import awscli, botocore; print("AWS CLI", awscli.__version__ + ", botocore", botocore.__version__)'
exec "$@"
