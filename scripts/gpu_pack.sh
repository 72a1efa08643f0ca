#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Packs this tree (what is committed) with the Debian packages that building it needs, for a GPU
# machine without network:
#
#   scripts/gpu_pack.sh [FILE]        (default build/gpu-pack.tar.gz)
#
# There:  tar xf gpu-pack.tar.gz && cd fsdp && make check-gpu       (without make: scripts/check_gpu.sh)
#
# The packages are unpacked below build/ and not installed. That machine needs a C and C++ compiler,
# CUDA's toolkit, and a C library not older than this one's. PMIx, oneDNN and libcurl are left out:
# ranks are started there by fsdp-launch itself.
set -u -o pipefail
cd "$(dirname "$0")/.." || exit 1
file=$(realpath -m "${1:-build/gpu-pack.tar.gz}")
work=$(mktemp -d "${TMPDIR:-/tmp}/fsdp-pack.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
die() { echo "gpu_pack.sh: $*" >&2 && exit 1; }

packages=(make pkgconf-bin libpkgconf3
    libopenblas-pthread-dev libopenblas0-pthread libgfortran5 libquadmath0
    libisal-dev libisal2 libjansson-dev libjansson4 libyaml-dev libyaml-0-2
    libpcre2-dev libpcre2-8-0 libpcre2-posix3 libpcre2-16-0 libpcre2-32-0 libutf8proc-dev libutf8proc2
    zlib1g-dev zlib1g libssl-dev libssl3 libzstd-dev libzstd1)

command -v apt-get >/dev/null || die "the packages are Debian's: run this on Debian or Ubuntu"
[ -z "$(git status --porcelain)" ] || echo "gpu_pack.sh: what is not committed stays behind" >&2
mkdir -p "$work/fsdp/gpu-deps" "$work/partial" "$(dirname "$file")"
git archive HEAD | tar -x -C "$work/fsdp" || die "git archive failed"
mkdir -p "$work/fsdp/build" && git rev-parse --short HEAD >"$work/fsdp/build/gpu-commit"
(cd "$work/fsdp/gpu-deps" && apt-get -qq -o APT::Sandbox::User=root download "${packages[@]}") ||
    die "cannot fetch the packages (apt-get update?)"
tar -czf "$file" -C "$work" fsdp || die "cannot write $file"
echo "$file: $(du -h "$file" | cut -f1), ${#packages[@]} packages of $(. /etc/os-release && echo "$PRETTY_NAME")"
