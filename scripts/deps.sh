#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The one list of packages, and what each is for.
#
#   scripts/deps.sh [--list|--dry-run|--missing] [LEVEL]      such as tools, build (the default), check
#
# Installs what a level needs and is not there yet: nothing when all is. Without root it prints the
# command that root would run, and fails. Each level includes `build`, and that includes `tools`, the
# checkpoint tools alone. --list shows all levels, --dry-run what is not there, and --missing fails if
# something is not there that the level cannot do without. In the environment, WITH_PMIX=0, WITH_HWLOC=0,
# WITH_ZSTD=0, WITH_DNNL=0, WITH_CURL=0, WITH_MPI=0, WITH_CAIRO=0 and CBLAS_LIBS=... mean what they mean
# to make: this part is left out, and the products come from another CBLAS than OpenBLAS.
set -u -o pipefail

# level    what proves it is there       apt (Debian 12)   dnf (untried)       what it is for
list() {
    cat <<'END'
tools    | cmd cc                        | gcc             | gcc               | C compiler
tools    | inc stdio.h                   | libc6-dev       | glibc-devel       | C library headers
tools    | cmd make                      | make            | make              | the build
tools    | cmd pkg-config                | pkgconf         | pkgconf-pkg-config | finds the libraries below
tools    | pkg libisal                   | libisal-dev     | isa-l-devel       | CRC-64 and CRC-32C of checkpoints
tools    | pkg jansson                   | libjansson-dev  | jansson-devel     | JSON: manifests, config.json
tools    | pkg libzstd                   | libzstd-dev     | libzstd-devel     | compressed checkpoints, data in .zst files (optional: WITH_ZSTD=0)
tools    | pkg libcrypto                 | libssl-dev      | openssl-devel     | signatures of requests to S3 (optional: WITH_CURL=0)
tools    | pkg libcurl                   | libcurl4-openssl-dev | libcurl-devel  | checkpoints on S3 (optional: WITH_CURL=0)
tools    | pkg expat                     | libexpat1-dev   | expat-devel       | the answers of S3 (optional: WITH_CURL=0)
build    | blas openblas                 | libopenblas-dev | openblas-devel    | matrix products of the models (any CBLAS will do)
build    | pkg yaml-0.1                  | libyaml-dev     | libyaml-devel     | YAML: the configuration file
build    | pkg libpcre2-8                | libpcre2-dev    | pcre2-devel       | the regular expressions of tokenizers
build    | pkg libutf8proc               | libutf8proc-dev | utf8proc-devel    | normal forms of Unicode, for tokenizers
build    | pkg zlib                      | zlib1g-dev      | zlib-devel        | data in .gz files
build    | pkg libcrypto                 | libssl-dev      | openssl-devel     | HMAC of the launcher's rendezvous
build    | pkg pmix                      | libpmix-dev     | pmix-devel        | starting under Slurm and mpirun (optional: WITH_PMIX=0)
build    | pkg hwloc                     | libhwloc-dev    | hwloc-devel       | binds ranks to cores (optional: WITH_HWLOC=0)
build    | inc oneapi/dnnl/dnnl.h        | libdnnl-dev     | oneDNN-devel      | products of fp32 and bf16 with AVX-512, AVX-512 BF16, AMX (optional: WITH_DNNL=0)
check    | cmd c++                       | g++             | gcc-c++           | the public headers are also C++
check    | cmd mpirun                    | openmpi-bin     | openmpi           | a PMIx server to start ranks under
check    | pkg ompi-c                    | libopenmpi-dev  | openmpi-devel     | MPI between the CPUs of a cluster (optional: WITH_MPI=0)
check    | cmd mount                     | mount           | util-linux        | tests mount small disks
check    | cmd unshare                   | util-linux      | util-linux        | those that only the test sees
check    | cmd ip                        | iproute2        | iproute           | nodes of a test's own network
check    | cmd mandoc                    | mandoc          | mandoc            | manual pages are looked over
check    | cmd zsh                       | zsh             | zsh               | completion is tried in each shell
check    | cmd fish                      | fish            | fish              | the same
check    | cmd ps                        | procps          | procps-ng         | tests look for processes left behind
check    | pkg cairo                     | libcairo2-dev   | cairo-devel       | PNG pictures of fsdp-plot (optional: WITH_CAIRO=0)
check    | file /usr/share/fonts/truetype/dejavu/DejaVuSans.ttf | fonts-dejavu-core | dejavu-sans-fonts | the texts of such pictures
slurm    | cmd slurmctld                 | slurm-wlm       | slurm-slurmctld   | a Slurm of several nodes on this machine
slurm    | cmd munged                    | munge           | munge             | its authentication
slurm    | pkg pmix                      | libpmix-dev     | pmix-devel        | its PMIx plugin opens libpmix.so
slurm    | cmd ip                        | iproute2        | iproute           | networks of its nodes that can be cut
slurm    | cmd shellcheck             | shellcheck      | ShellCheck        | looks over the scripts of slurm/
s3       | cmd ceph-mon                  | ceph-mon        | ceph-mon          | an S3 server of the tests' own: its monitor
s3       | cmd ceph-osd                  | ceph-osd        | ceph-osd          | its storage, in memory
s3       | cmd radosgw                   | radosgw         | ceph-radosgw      | its gateway
s3       | cmd ceph                      | ceph-common     | ceph-common       | sets it up
s3       | file /usr/lib/python3/dist-packages/swift | python3-swift | python3-swift    | another store, which refuses conditional PUTs
s3       | cmd curl                      | curl            | curl              | makes buckets; what transfers are compared with
s3       | cmd openssl                   | openssl         | openssl           | a certificate of the tests' own
s3       | cmd python3                   | python3         | python3           | runs the AWS CLI, which reads what we write
s3       | py ensurepip                  | python3-venv    | python3           | a place of its own for it
s3       | file /etc/ssl/certs/ca-certificates.crt | ca-certificates | ca-certificates | fetching it from PyPI
nfs      | cmd qemu-system-x86_64        | qemu-system-x86 | qemu-system-x86-core | a machine of the tests' own, with a kernel that knows NFS
nfs      | cmd mkfs.ext4                 | e2fsprogs       | e2fsprogs         | the disk that it exports
watch    | cmd prometheus                | prometheus      | -                 | scrapes what a run says of itself
watch    | cmd prometheus-node-exporter  | prometheus-node-exporter | node-exporter | reads the file that a run writes
watch    | cmd chromium                  | chromium        | chromium          | opens the report of a run
watch    | file /usr/share/fonts/truetype/dejavu/DejaVuSans.ttf | fonts-dejavu-core | dejavu-sans-fonts | the texts of its picture
watch    | cmd curl                      | curl            | curl              | asks Prometheus
watch    | cmd jq                        | jq              | jq                | reads its answers, and the dashboard
watch    | cmd python3                   | python3         | python3           | runs TensorBoard's reader and W&B's client
watch    | py ensurepip                  | python3-venv    | python3           | a place of its own for them
watch    | file /etc/ssl/certs/ca-certificates.crt | ca-certificates | ca-certificates | fetching them from PyPI
aarch64  | cmd aarch64-linux-gnu-gcc     | gcc-aarch64-linux-gnu | gcc-aarch64-linux-gnu | compiles for another processor
aarch64  | cmd qemu-aarch64-static       | qemu-user-static | qemu-user-static-aarch64 | and runs that
aarch64  | cmd unshare                   | util-linux      | util-linux        | namespaces where the kernel knows how
demo     | cmd bible                     | bible-kjv       | -                 | 4 MB of English prose to learn from
interop  | cmd bible                     | bible-kjv       | -                 | prose that tokenizers are compared on
interop  | cmd python3                   | python3         | python3           | runs PyTorch, which the results are compared with
interop  | py ensurepip                  | python3-venv    | python3           | a place of its own for PyTorch
interop  | file /etc/ssl/certs/ca-certificates.crt | ca-certificates | ca-certificates | fetching PyTorch from PyPI
gguf     | cmd cmake                   | cmake           | cmake             | builds llama.cpp, which loads GGUF files
gguf     | cmd g++                     | g++             | gcc-c++           | the same
bench    | file /usr/bin/time            | time            | time              | peak memory of a benchmark
bench    | cmd bible                     | bible-kjv       | -                 | prose that tokenizers are timed on
fuzz     | cmd clang                     | clang           | clang             | libFuzzer, for the fuzz targets
packages | cmd mmdebstrap                | mmdebstrap      | -                 | clean roots of Debian
packages | cmd dpkg-buildpackage         | dpkg-dev        | -                 | builds .deb files
packages | cmd dh                        | debhelper       | -                 | their parts
packages | cmd fakeroot                  | fakeroot        | -                 | builds them without root
packages | cmd lintian                   | lintian         | -                 | looks over them
packages | cmd rpmbuild                  | rpm             | rpm-build         | builds .rpm files
packages | cmd rpmlint                   | rpmlint         | rpmlint           | looks over them
packages | cmd buildah                   | buildah         | buildah           | builds the image
wheel    | cmd cmake                     | cmake           | cmake             | builds libraries of a wheel
wheel    | cmd nasm                      | nasm            | nasm              | ISA-L's checksums for it
wheel    | cmd perl                      | perl            | perl              | configures OpenSSL for it
wheel    | cmd dpkg-source               | dpkg-dev        | -                 | unpacks their sources
wheel    | cmd openssl                   | openssl         | openssl           | a certificate of the tests' own
wheel    | cmd mmdebstrap                | mmdebstrap      | -                 | a clean root of Debian 11, where it is tested (optional: for check-wheel alone)
wheel    | cmd python3                   | python3         | python3           | runs the compiler, and what it packs
wheel    | py ensurepip                  | python3-venv    | python3           | a place of its own for it
wheel    | file /etc/ssl/certs/ca-certificates.crt | ca-certificates | ca-certificates | fetching the compiler from PyPI
site     | cmd cmark-gfm                 | cmark-gfm       | cmark-gfm         | pages of the site from Markdown
site     | cmd mandoc                    | mandoc          | mandoc            | pages of the site from manual pages
site     | cmd chromium                  | chromium        | chromium          | the site is looked at in a browser
site     | cmd xmllint                   | libxml2-utils   | libxml2           | its pages are valid
ci       | cmd ccache                 | ccache          | ccache            | compiles once what builds with other options share
lint     | cmd clang-format              | clang-format    | clang-tools-extra | the layout of C files
END
}

# What make was told to do without, or to take from elsewhere.
unwanted() { # kind, what, level
    case $2 in
    pmix) [ "${WITH_PMIX:-}" = 0 ] ;;
    hwloc) [ "${WITH_HWLOC:-}" = 0 ] ;;
    ompi-c) [ "${WITH_MPI:-}" = 0 ] ;;
    libzstd) [ "${WITH_ZSTD:-}" = 0 ] ;;
    oneapi/dnnl/dnnl.h) [ "${WITH_DNNL:-}" = 0 ] ;;
    cairo) [ "${WITH_CAIRO:-}" = 0 ] ;;
    libcurl | expat) [ "${WITH_CURL:-}" = 0 ] ;;
    libcrypto) [ "${WITH_CURL:-}" = 0 ] && [ "$3" = tools ] ;;
    openblas) [ -n "${CBLAS_LIBS:-}" ] ;;
    *) false ;;
    esac
}

has_header() { echo "#include <$1>" | ${CC:-cc} -E -x c -; }
present() { # kind, what
    case $1$2 in
    cmdcc) ${CC:-cc} --version ;;
    cmd*) command -v "$2" ;;
    inc*) has_header "$2" ;;
    pkg*) pkg-config --exists "$2" ;;
    # A cblas.h alone may be the reference BLAS's, which the build does not link.
    blas*) pkg-config --exists "$2" || { echo 'int main(void) { return 0; }' | ${CC:-cc} -xc - -lopenblas -o /dev/null; } 2>/dev/null ;;
    py*) python3 -c "import $2" ;;
    file*) test -e "$2" ;;
    esac >/dev/null 2>&1
}

usage() {
    sed -n '3,13s/^# \{0,1\}//p' "$0"
    exit "$1"
}

# Which levels a level includes.
levels_of() {
    case $1 in
    tools) echo tools ;;
    build) echo tools build ;;
    *) echo "tools build $1" ;;
    esac
}
is_optional() { [[ $1 == *'(optional: '* ]]; }

show_level() { # level, heading: its packages by distribution
    local lv probe apt dnf purpose
    printf '\n%s\n' "$2"
    while IFS='|' read -r lv probe apt dnf purpose; do
        [ "${lv// /}" = "$1" ] || continue
        printf '  %-22s %-22s %s\n' "${apt// /}" "${dnf// /}" "${purpose# }"
    done <<<"$(list)"
}
show_list() {
    printf '  %-22s %-22s %s\n' 'Debian, Ubuntu' 'Fedora (untried)' 'what for'
    show_level tools 'make tools: the checkpoint tools alone'
    show_level build 'make: these too'
    cat <<'END'

  A GPU needs CUDA's nvcc, and for more than one NCCL; MPI is listed under make check. Libraries
  need not be packages of the system: modules, Spack and conda have them, and PKG_CONFIG_PATH
  names the folders with their .pc files.
END
    show_level check 'make check'
    show_level demo 'make demo'
    for level in slurm s3 nfs interop gguf watch site aarch64 packages wheel; do
        show_level $level "make check-$level"
    done
    show_level bench 'make bench'
    show_level fuzz 'make fuzz-NAME'
    show_level lint 'make format'
    show_level ci '.ci/run'
}

mode=install level=build
for arg; do
    case $arg in
    --list) mode=list ;;
    --dry-run) mode=dry-run ;;
    --missing) mode=missing ;;
    -h | --help) usage 0 ;;
    *)
        [[ $'\n'$(list) == *$'\n'"$arg "* ]] || usage 2 >&2
        level=$arg
        ;;
    esac
done
if [ $mode = list ]; then
    show_list
    exit
fi

manager=
for m in apt-get dnf; do
    command -v $m >/dev/null && { manager=$m; break; }
done

missing=() # packages
why=()     # what for
while IFS='|' read -r lv probe apt dnf purpose; do
    lv=${lv// /} package=${apt// /}
    [[ " $(levels_of $level) " == *" $lv "* ]] || continue
    [ $mode != missing ] || ! is_optional "$purpose" || continue
    # shellcheck disable=SC2086
    unwanted $probe $lv || present $probe && continue
    [ "$manager" = dnf ] && package=${dnf// /}
    if [ "$package" = - ] && [ $mode != missing ]; then
        echo "deps: no $manager package is known for '${probe# }' (${purpose# }); install it by hand" >&2
        exit 1
    fi
    [[ " ${missing[*]-} " != *" $package "* ]] || continue
    missing+=("$package")
    why+=("$(printf '%-20s %s' "$package" "${purpose# }")")
done <<<"$(list)"

[ ${#missing[@]} -gt 0 ] || exit 0

if [ $mode = missing ]; then
    echo "missing: ${missing[*]}" >&2
    printf '  %s\n' "${why[@]}" >&2
    echo "Install them with: make deps (as root; or scripts/deps.sh $level). Without root: docs/install.md" >&2
    exit 1
fi

case $manager in
apt-get) install=(apt-get install -y --no-install-recommends "${missing[@]}") ;;
dnf) install=(dnf install -y "${missing[@]}") ;;
*)
    echo "deps: neither apt-get nor dnf is here; missing, by the names that Debian has:" >&2
    printf '  %s\n' "${why[@]}" >&2
    exit 1
    ;;
esac

echo "Missing packages:" >&2
printf '  %s\n' "${why[@]}" >&2
if [ $mode = dry-run ] || [ "$(id -u)" != 0 ]; then
    update=
    [ $manager = apt-get ] && update="apt-get update && "
    echo "Root installs them with:" >&2
    echo "  $update${install[*]}"
    if [ $mode = install ]; then
        echo "Nothing was installed: you are not root. Without root, libraries may come from modules, Spack or" >&2
        echo "conda: docs/install.md says how." >&2
    fi
    [ $mode = dry-run ]
    exit
fi

# Reads apt's status lines: a line that is rewritten on a terminal, else one for each tenth.
show_progress() {
    local line share shown=0 what
    while IFS= read -r line; do
        [[ $line =~ ^(dl|pm)status:(.*):([0-9]+)[.0-9]*:(.*)$ ]] || continue
        share=$((BASH_REMATCH[3] / 2)) what=${BASH_REMATCH[4]}
        if [ "${BASH_REMATCH[1]}" = pm ]; then share=$((share + 50)); fi
        if [ -t 2 ]; then
            printf '\r  %3d %%  %-70.70s' $share "$what" >&2
        elif [ $share -ge $((shown + 10)) ]; then
            shown=$((share / 10 * 10))
            printf '  %3d %%  %.70s\n' $shown "$what" >&2
        fi
    done
    [ ! -t 2 ] || printf '\r%79s\r' '' >&2
}

export DEBIAN_FRONTEND=noninteractive
[ $manager != apt-get ] || install+=(-o DPkg::Lock::Timeout=300) # somebody else may be installing
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT
s=s; [ ${#missing[@]} != 1 ] || s=
echo "Installing ${#missing[@]} package$s with $manager (a minute or two) ..." >&2
[ $manager != apt-get ] || install+=(-o APT::Status-Fd=3)
[ $manager != apt-get ] || echo "  refreshing the package lists" >&2
if [ $manager = apt-get ] && ! apt-get update >"$log" 2>&1; then
    tail -n 3 "$log" >&2
    echo "deps: the package lists could not be refreshed; trying with the ones here" >&2
fi
if ! "${install[@]}" </dev/null 3>&1 >"$log" 2>&1 | show_progress; then
    tail -n 20 "$log" >&2
    echo "deps: installing failed; the command was: ${install[*]}" >&2
    exit 1
fi
