#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Directory edges are dependency edges. Every quoted include of the tree is an edge from a part to a
# part; one that is not in the table below fails. A new row is a decision about the architecture
# (docs/architecture.md), not a way to make this test pass.
#
# launcher, libfsdp and ckpt never include each other, beyond what all may use: fsdp/base.h, and of
# fsdp/comm.h the node map, which the launcher fills. Only models/train and models/tools join the three.
cd "$TOP" || exit 1

# A folder and what it may include.
allowed='
fsdp/comm.h            fsdp/base.h fsdp/device.h
fsdp/device.h          fsdp/base.h
fsdp/fsdp.h            fsdp/base.h fsdp/device.h fsdp/mesh.h fsdp/optim.h
fsdp/mesh.h            fsdp/comm.h
fsdp/optim.h           fsdp/device.h
libfsdp/base           fsdp/base.h
libfsdp/device         fsdp/base.h fsdp/device.h
libfsdp/device/common  fsdp/device.h
libfsdp/device/cpu     fsdp/base.h fsdp/device.h libfsdp/device/common
libfsdp/device/cuda    fsdp/device.h libfsdp/device/common
libfsdp/comm           fsdp/base.h fsdp/comm.h fsdp/device.h
libfsdp/comm/common    fsdp/base.h fsdp/comm.h
libfsdp/comm/host      libfsdp/comm/common
libfsdp/comm/mpi       fsdp/comm.h libfsdp/comm/common
libfsdp/comm/nccl      fsdp/comm.h libfsdp/comm/common
libfsdp/mesh           fsdp/mesh.h
libfsdp/optim          fsdp/optim.h
libfsdp/core           fsdp/fsdp.h libfsdp/core/sched libfsdp/core/units libfsdp/optim
libfsdp/core/between   libfsdp/core libfsdp/core/memory libfsdp/core/run libfsdp/core/state
libfsdp/core/create    libfsdp/core libfsdp/core/between libfsdp/core/memory libfsdp/core/run libfsdp/core/state libfsdp/core/trace
libfsdp/core/memory    fsdp/base.h fsdp/device.h libfsdp/core libfsdp/core/run libfsdp/core/state libfsdp/core/units
libfsdp/core/run       libfsdp/core libfsdp/core/between libfsdp/core/memory libfsdp/core/state libfsdp/core/trace libfsdp/core/units
libfsdp/core/sched     fsdp/fsdp.h
libfsdp/core/state     fsdp/base.h libfsdp/core libfsdp/core/memory libfsdp/core/run libfsdp/device/common
libfsdp/core/trace     fsdp/device.h libfsdp/core libfsdp/core/memory libfsdp/core/run libfsdp/core/units
libfsdp/core/units     fsdp/fsdp.h libfsdp/core
boot.h                 fsdp/base.h fsdp/comm.h
launcher/bind          boot.h fsdp/base.h
launcher/boot          boot.h fsdp/base.h fsdp/comm.h launcher/channel
launcher/channel       boot.h
launcher/rank          boot.h fsdp/base.h fsdp/comm.h launcher/boot
launcher/run           boot.h launcher/boot launcher/rank
ckpt.h                 fsdp/base.h
ckpt/copy              ckpt/file ckpt/format/hf ckpt/keep ckpt/source ckpt/util
ckpt/diff              ckpt/reshard ckpt/util
ckpt/file              ckpt.h ckpt/layout ckpt/store ckpt/util
ckpt/format/dcp        ckpt.h ckpt/format/hf ckpt/layout ckpt/source ckpt/util fsdp/base.h
ckpt/format/hf         ckpt/layout ckpt/source ckpt/util
ckpt/format/native     ckpt/file ckpt/layout ckpt/source ckpt/util
ckpt/keep              ckpt.h ckpt/file ckpt/format/dcp ckpt/format/hf ckpt/layout ckpt/source ckpt/store ckpt/util
ckpt/layout            ckpt.h ckpt/util fsdp/base.h
ckpt/open              ckpt/format/dcp ckpt/format/hf ckpt/source ckpt/util
ckpt/reshard           ckpt/file ckpt/format/dcp ckpt/format/hf ckpt/keep ckpt/layout ckpt/save ckpt/source ckpt/store ckpt/util fsdp/base.h
ckpt/save              ckpt.h ckpt/file ckpt/keep ckpt/layout ckpt/source ckpt/store ckpt/util
ckpt/source            ckpt/file ckpt/format/dcp ckpt/layout ckpt/util
ckpt/store             ckpt.h
ckpt/store/s3          ckpt.h ckpt/store ckpt/util fsdp/base.h
ckpt/tools             ckpt.h
ckpt/util              ckpt.h fsdp/base.h
models/check           fsdp/fsdp.h
models/config          fsdp/base.h models/data
models/data            fsdp/base.h
models/family          fsdp/base.h fsdp/fsdp.h models/nn
models/nn              fsdp/device.h
models/nn/cpu          fsdp/base.h models/nn
models/nn/cuda         fsdp/device.h models/nn
models/tools           boot.h ckpt.h models/check models/data models/family models/train
models/train           boot.h ckpt.h fsdp/base.h models/config models/data models/family models/nn models/train/node models/train/report models/train/save
models/train/node      boot.h ckpt.h fsdp/comm.h fsdp/device.h fsdp/fsdp.h models/config models/train models/train/report
models/train/report    boot.h fsdp/base.h fsdp/fsdp.h models/config models/train models/train/save
models/train/save      boot.h ckpt.h fsdp/base.h fsdp/fsdp.h models/config models/train
'

# Public headers stand for themselves: whoever includes one does not thereby know a folder.
part_of() { # path
    case $1 in
    libfsdp/include/fsdp/*)
        local h=${1#libfsdp/include/fsdp/}
        case ${h#sys/} in
        base.h | tunable.h | cpu.h | library.h) echo fsdp/base.h ;;
        device.h | device_ops.h | cuda.h | cuda_kernel.cuh) echo fsdp/device.h ;;
        comm.h | comm_ops.h | mpi.h) echo fsdp/comm.h ;;
        mesh.h) echo fsdp/mesh.h ;;
        optim.h) echo fsdp/optim.h ;;
        fsdp.h | module.h) echo fsdp/fsdp.h ;;
        *) echo "no-part:$1" ;;
        esac
        ;;
    launcher/include/*) echo boot.h ;;
    ckpt/include/*) echo ckpt.h ;;
    *) dirname "$1" ;;
    esac
}

resolve() { # including file, included name
    local dir
    for dir in "$(dirname "$1")" "${1%%/*}" libfsdp/include launcher/include ckpt/include; do
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
    "$(grep -E '^(fsdp/|libfsdp/|boot\.h|launcher/|ckpt)' <<<"$allowed" |
        grep -E '^(fsdp|libfsdp).* (launcher|boot\.h|ckpt|models)|^(boot\.h|launcher).* (ckpt|models|fsdp/(fsdp|mesh)\.h|libfsdp)|^ckpt.* (launcher|boot\.h|models|fsdp/[^b]|libfsdp)')"
check "a forbidden edge would be seen" "$(offends ckpt/store boot.h && offends libfsdp/core/run ckpt.h &&
    offends ckpt/store ckpt/save && offends ckpt/open fsdp/fsdp.h && ! offends models/train ckpt.h || echo "the table's look-up is broken")"
echo "1..$n"
exit $bad
