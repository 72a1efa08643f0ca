#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Directory edges are dependency edges. Every quoted include of the tree is an edge from a part to a
# part; one that is not in the table below fails. A new row is a decision about the architecture
# (docs/architecture.md), not a way to make this test pass.
#
# A public header belongs to the part that implements it. launcher, libfsdp and ckpt never include
# each other, beyond what all may use: libfsdp/base, and of libfsdp/comm the node map, which the
# launcher fills. Only models/train*.c join the three.
cd "$TOP" || exit 1

allowed='
libfsdp/device  libfsdp/base
libfsdp/comm    libfsdp/base libfsdp/device
libfsdp/mesh    libfsdp/base libfsdp/device libfsdp/comm
libfsdp/optim   libfsdp/base libfsdp/device
libfsdp/core    libfsdp/base libfsdp/device libfsdp/comm libfsdp/mesh libfsdp/optim
launcher        libfsdp/base libfsdp/comm
ckpt            libfsdp/base
ckpt/tools      libfsdp/base ckpt
models/nn       libfsdp/base libfsdp/device
models/nn/cuda  libfsdp/base libfsdp/device models/nn
models          libfsdp/base libfsdp/device libfsdp/core models/nn
models/train    libfsdp/base libfsdp/device libfsdp/comm libfsdp/mesh libfsdp/optim libfsdp/core launcher ckpt models models/nn
models/tools    libfsdp/base libfsdp/device libfsdp/comm libfsdp/mesh libfsdp/optim libfsdp/core launcher ckpt models models/train
'

part_of() { # path
    case $1 in
    libfsdp/include/fsdp/*)
        local h=${1#libfsdp/include/fsdp/}
        case ${h#sys/} in
        base.h | tunable.h | cpu.h | library.h) echo libfsdp/base ;;
        device.h | device_ops.h | cuda.h | cuda_kernel.cuh) echo libfsdp/device ;;
        comm.h | comm_ops.h | mpi.h) echo libfsdp/comm ;;
        mesh.h) echo libfsdp/mesh ;;
        optim.h) echo libfsdp/optim ;;
        fsdp.h | module.h) echo libfsdp/core ;;
        *) echo "no-part:$1" ;;
        esac
        ;;
    libfsdp/*/*) cut -d/ -f1-2 <<<"$1" ;;
    launcher/*) echo launcher ;;
    ckpt/tools/*) echo ckpt/tools ;;
    ckpt/*) echo ckpt ;;
    models/tools/*) echo models/tools ;;
    models/nn/cuda/*) echo models/nn/cuda ;;
    models/nn/*) echo models/nn ;;
    models/train*) echo models/train ;;
    models/*) echo models ;;
    esac
}

resolve() { # including file, included name
    local dir
    for dir in "$(dirname "$1")" libfsdp/include launcher/include ckpt/include models; do
        [ -f "$dir/$2" ] && realpath --relative-to=. "$dir/$2" && return
    done
    echo "unresolved:$2"
}

edges= private= unresolved= nread=0
while IFS=: read -r file name; do
    nread=$((nread + 1))
    target=$(resolve "$file" "$name")
    if [[ $target == unresolved:* ]]; then
        unresolved+="$file: $name"$'\n'
        continue
    fi
    from=$(part_of "$file") to=$(part_of "$target")
    [ "$from" = "$to" ] && continue
    edges+="$from $to $file: $name"$'\n'
    # Between top-level folders, public headers only.
    [ "${from%%/*}" = "${to%%/*}" ] || [[ $target == */include/* ]] || private+="$file: $name"$'\n'
done < <(find libfsdp launcher ckpt models \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \) -print0 | sort -z |
    xargs -0 grep -E -H -o '^ *# *include +["<][^">]+[">]' |
    sed -n -e 's/: *# *include *"\(.*\)"$/:\1/p' -e 's/: *# *include *<\(fsdp\/.*\|ckpt\/.*\)>$/:\1/p')

n=0 bad=0
check() { # text, offenders
    n=$((n + 1))
    if [ -z "$2" ]; then
        echo "ok $n - $1"
    else
        echo "not ok $n - $1"
        sed '/^$/d; s/^/# /' <<<"$2"
        bad=1
    fi
}

offends() { # from, to: an edge that the table lacks
    ! grep -q -E "^$1 .* ?$2( |\$)|^$1 +$2( |\$)" <<<"$allowed"
}
new=
while read -r from to where; do
    [ -z "$from" ] || ! offends "$from" "$to" || new+="$from -> $to: $where"$'\n'
done <<<"$edges"

check "the includes were read" "$([ $nread -ge 40 ] || echo "only $nread")"
check "no include that leads nowhere" "$unresolved"
check "no edge beyond the table" "$new"
check "only public headers cross top-level folders" "$private"
# The table's own promise, whoever extends it.
check "launcher, libfsdp and ckpt are not joined" \
    "$(grep -E '^(libfsdp/[a-z]+|launcher|ckpt|ckpt/tools) ' <<<"$allowed" |
        grep -E '^libfsdp.* (launcher|ckpt|models)|^launcher.* (ckpt|models|libfsdp/(core|mesh))|^ckpt.* (launcher|models|libfsdp/[^b])')"
check "a forbidden edge would be seen" "$(offends ckpt launcher && offends libfsdp/core ckpt && offends ckpt libfsdp/core && ! offends models/train ckpt || echo "the table's look-up is broken")"
echo "1..$n"
exit $bad
