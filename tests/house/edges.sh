#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Directory edges are dependency edges. Every quoted include of the tree is an edge from a folder to
# a folder, and so is every symbol that an object needs of another folder: a call, a table, a weak
# extern. One that is not in the table below fails. A new row is a decision about the architecture
# (docs/architecture.md), not a way to make this test pass. Nor may files need each other in a
# circle, nor folders.
#
# launcher, libfsdp and ckpt never use each other, beyond what all may use: fsdp/base.h, and of
# fsdp/comm.h the node map, which the launcher fills. Only models/train, models/generate, models/remote, models/tools and models/weights join them.
scratch=$PWD
cd "$TOP" || exit 1

# A folder and what it may include.
allowed='
fsdp/comm.h            fsdp/base.h fsdp/device.h
fsdp/device.h          fsdp/base.h
fsdp/clock.h           fsdp/base.h
fsdp/fsdp.h            fsdp/base.h fsdp/clock.h fsdp/device.h fsdp/mesh.h fsdp/optim.h
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
libfsdp/plan           fsdp/base.h fsdp/clock.h
libfsdp/optim          fsdp/base.h fsdp/optim.h
libfsdp/core           fsdp/fsdp.h libfsdp/core/sched libfsdp/core/units libfsdp/optim
libfsdp/core/between   libfsdp/core libfsdp/core/state
libfsdp/core/create    fsdp/fsdp.h libfsdp/core libfsdp/core/between libfsdp/core/run libfsdp/core/sched libfsdp/core/state libfsdp/core/trace libfsdp/core/units
libfsdp/core/run       libfsdp/core libfsdp/core/sched libfsdp/core/state libfsdp/core/trace libfsdp/core/units libfsdp/optim
libfsdp/core/sched     fsdp/fsdp.h
libfsdp/core/state     fsdp/base.h fsdp/device.h libfsdp/core libfsdp/device/common
libfsdp/core/trace     fsdp/clock.h fsdp/device.h libfsdp/core libfsdp/core/sched libfsdp/core/state libfsdp/core/units
libfsdp/core/units     fsdp/fsdp.h
boot.h                 fsdp/base.h fsdp/comm.h
launcher/bind          boot.h fsdp/base.h
launcher/boot          boot.h fsdp/base.h fsdp/comm.h launcher/channel
launcher/channel       boot.h fsdp/base.h
launcher/rank          boot.h fsdp/base.h launcher/boot
launcher/run           boot.h fsdp/base.h launcher/boot launcher/channel launcher/rank launcher/sbatch
launcher/sbatch        fsdp/base.h
ckpt.h                 fsdp/base.h
ckpt/adapter           ckpt.h ckpt/file ckpt/source ckpt/util
ckpt/average           ckpt.h ckpt/layout ckpt/source ckpt/util
ckpt/check             ckpt/format/hf ckpt/format/torch ckpt/layout ckpt/source ckpt/store ckpt/util fsdp/base.h
ckpt/copy              ckpt/file ckpt/format/hf ckpt/format/native ckpt/keep ckpt/layout ckpt/source ckpt/store ckpt/util
ckpt/diff              ckpt/layout ckpt/reshard ckpt/source ckpt/util
ckpt/file              ckpt.h ckpt/layout ckpt/store ckpt/util
ckpt/format            ckpt/source ckpt/store
ckpt/format/archive    ckpt/format/pickle ckpt/layout ckpt/source ckpt/util fsdp/base.h
ckpt/format/ctensors   ckpt/util fsdp/base.h
ckpt/format/dcp        ckpt.h ckpt/format/archive ckpt/format/hf ckpt/format/pickle ckpt/layout ckpt/source ckpt/store ckpt/util fsdp/base.h
ckpt/format/deepspeed  ckpt.h ckpt/format/archive ckpt/format/dcp ckpt/format/hf ckpt/format/pickle ckpt/format/torch ckpt/layout ckpt/source ckpt/store ckpt/util
ckpt/format/fsdp1      ckpt.h ckpt/format/archive ckpt/format/dcp ckpt/format/hf ckpt/format/pickle ckpt/format/torch ckpt/layout ckpt/source ckpt/store ckpt/util
ckpt/format/gguf       ckpt/layout ckpt/source ckpt/store ckpt/util fsdp/base.h
ckpt/format/hf         ckpt/file ckpt/layout ckpt/source ckpt/store ckpt/util fsdp/base.h
ckpt/format/megatron   ckpt/format/archive ckpt/format/dcp ckpt/format/hf ckpt/format/pickle ckpt/format/torch ckpt/layout ckpt/source ckpt/store ckpt/util
ckpt/format/native     ckpt/file ckpt/layout ckpt/source ckpt/store ckpt/util
ckpt/format/pickle     ckpt/util fsdp/base.h
ckpt/format/torch      ckpt/format/archive ckpt/format/dcp ckpt/format/hf ckpt/format/pickle ckpt/layout ckpt/source ckpt/store ckpt/util fsdp/base.h
ckpt/keep              ckpt.h ckpt/file ckpt/format/dcp ckpt/format/hf ckpt/format/native ckpt/format/pickle ckpt/format/torch ckpt/layout ckpt/source ckpt/store ckpt/util
ckpt/layout            ckpt.h ckpt/util fsdp/base.h
ckpt/open              ckpt/file ckpt/layout ckpt/source ckpt/store ckpt/util
ckpt/reshard           ckpt.h ckpt/average ckpt/file ckpt/format/ctensors ckpt/format/dcp ckpt/format/gguf ckpt/format/hf ckpt/format/native ckpt/format/torch ckpt/keep ckpt/layout ckpt/save ckpt/source ckpt/store ckpt/util fsdp/base.h
ckpt/save              ckpt.h ckpt/file ckpt/format/native ckpt/keep ckpt/layout ckpt/source ckpt/store ckpt/util fsdp/base.h
ckpt/source            ckpt/file ckpt/layout ckpt/store ckpt/util
ckpt/store             ckpt.h
ckpt/store/s3          ckpt.h ckpt/store ckpt/util fsdp/base.h
ckpt/tools             ckpt.h fsdp/base.h
ckpt/util              ckpt.h fsdp/base.h
models/chart           fsdp/base.h
models/check           fsdp/fsdp.h
models/config          fsdp/base.h fsdp/comm.h fsdp/fsdp.h models/data models/yaml
models/curves          fsdp/base.h models/chart
models/data            fsdp/base.h models/data/line models/data/source models/data/tokens
models/data/cache      fsdp/base.h models/data/line models/data/source models/data/tokens models/text/tokenizer
models/data/line       fsdp/base.h models/text/chat models/text/tokenizer
models/data/source     fsdp/base.h
models/data/tokens     fsdp/base.h models/data/line models/data/source models/text/tokenizer models/text/train
models/family          fsdp/base.h fsdp/device.h fsdp/fsdp.h models/nn models/plan
models/from            fsdp/base.h
models/generate        ckpt.h fsdp/base.h fsdp/device.h models/family models/text/chat models/text/tokenizer models/weights
models/nn              fsdp/device.h
models/nn/cpu          fsdp/base.h models/nn
models/nn/cuda         fsdp/comm.h fsdp/device.h models/nn
models/plan            fsdp/base.h fsdp/clock.h fsdp/mesh.h models/nn
models/plan/answer     fsdp/base.h fsdp/clock.h fsdp/fsdp.h models/config models/family models/plan models/plan/cluster models/train/setup
models/plan/search     fsdp/base.h models/config models/plan/answer models/plan/cluster
models/plan/scale      fsdp/base.h models/chart models/config models/plan/answer models/plan/cluster
models/plan/cluster    fsdp/base.h fsdp/clock.h models/plan models/yaml
models/plan/measure    fsdp/clock.h fsdp/fsdp.h fsdp/mesh.h models/nn models/plan/cluster
models/text/regex      fsdp/base.h models/text/unicode
models/text/tokenizer  fsdp/base.h models/text/regex models/text/unicode
models/text/unicode    fsdp/base.h
models/text/train      fsdp/base.h models/text/tokenizer
models/text/chat       fsdp/base.h models/text/chat/builtin models/text/chat/filter models/text/chat/syntax models/text/chat/value
models/text/chat/builtin fsdp/base.h models/text/chat/syntax models/text/chat/value
models/text/chat/filter fsdp/base.h models/text/chat/builtin models/text/chat/value
models/text/chat/syntax fsdp/base.h models/text/chat/value
models/text/chat/value fsdp/base.h
models/remote           ckpt.h fsdp/base.h models/data/source
models/tools           boot.h ckpt.h fsdp/base.h models/chart models/check models/config models/curves models/data/line models/data/tokens models/family models/from models/generate models/nn models/plan models/plan/answer models/plan/cluster models/plan/measure models/plan/scale models/plan/search models/remote models/text/chat models/text/tokenizer models/text/train models/top models/train models/train/node models/train/setup
models/top             fsdp/base.h models/train/report
models/train           boot.h ckpt.h fsdp/base.h fsdp/fsdp.h models/config models/data models/family models/nn models/plan models/plan/answer models/plan/cluster models/plan/search models/train/node models/train/report models/train/save models/train/setup models/weights
models/train/node      boot.h ckpt.h fsdp/base.h fsdp/comm.h fsdp/device.h fsdp/fsdp.h models/config models/train/report
models/train/report    fsdp/base.h fsdp/fsdp.h models/chart models/config models/curves
models/train/save      boot.h ckpt.h fsdp/base.h models/config models/train/report models/train/setup
models/weights          ckpt.h fsdp/fsdp.h
models/yaml            fsdp/base.h
models/train/setup     ckpt.h fsdp/clock.h fsdp/fsdp.h models/config models/data models/data/cache models/data/line models/data/source models/family models/nn models/plan models/remote models/text/chat models/text/tokenizer models/train/node
'

# Public headers stand for themselves: whoever includes one does not thereby know a folder. Here and below an answer is
# in $part or $target: a subshell for each of thousands of includes takes most of a minute.
part_of() { # path
    case $1 in
    libfsdp/include/fsdp/*)
        local h=${1#libfsdp/include/fsdp/}
        case ${h#sys/} in
        base.h | tunable.h | cli.h | cpu.h | library.h | thread.h) part=fsdp/base.h ;;
        device.h | device_ops.h | cuda.h | cuda_kernel.cuh) part=fsdp/device.h ;;
        clock.h) part=fsdp/clock.h ;;
        comm.h | comm_ops.h | mpi.h) part=fsdp/comm.h ;;
        mesh.h) part=fsdp/mesh.h ;;
        optim.h) part=fsdp/optim.h ;;
        fsdp.h | module.h | settings.h) part=fsdp/fsdp.h ;;
        *) part="no-part:$1" ;;
        esac
        ;;
    launcher/include/*) part=boot.h ;;
    ckpt/include/*) part=ckpt.h ;;
    *) part=${1%/*} ;;
    esac
}

resolve() { # including file, included name
    local dir
    for dir in "${1%/*}" "${1%%/*}" libfsdp/include launcher/include ckpt/include; do
        target=$dir/$2
        [ -f "$target" ] || continue
        [[ $target != */./* && $target != */../* ]] || target=$(realpath --relative-to=. "$target")
        return
    done
    target="unresolved:$2"
}

edges= private= unresolved= nread=0
while IFS=: read -r file name; do
    nread=$((nread + 1))
    resolve "$file" "$name"
    if [[ $target == unresolved:* ]]; then
        unresolved+="$file: $name"$'\n'
        continue
    fi
    part_of "$file" && from=$part
    part_of "$target" && to=$part
    [ "$from" = "$to" ] && continue
    edges+="$from $to $file: $name"$'\n'
    # Between top-level folders, public headers only.
    [ "${from%%/*}" = "${to%%/*}" ] || [[ $target == */include/* ]] || private+="$file: $name"$'\n'
done < <(find libfsdp launcher ckpt models \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \) -print0 | sort -z |
    xargs -0 grep -E -H -o '^ *# *include +["<][^">]+[">]' |
    sed -n -e 's/: *# *include *"\(.*\)"$/:\1/p' -e 's/: *# *include *<\(fsdp\/.*\|ckpt\/.*\)>$/:\1/p')

# ---- symbols -------------------------------------------------------------------------------------
# A symbol belongs to the folder of the header that declares it, or of the file that defines it.

objects=() # of the sources that there are
while IFS= read -r source; do
    for o in "${OBJ:-none}/${source%.c}.o" "${OBJ:-none}/simt/$source.o"; do
        [ -f "$o" ] && objects+=("$o") && break
    done
done < <(find libfsdp launcher ckpt models \( -name '*.c' -o -name '*.cu' \))
printf '%s\0' "${objects[@]}" | xargs -0r nm -A -P | awk -v top="$OBJ/" '
    {   # OBJ/simt/FILE.cu.o: symbol...; a .c of the library lacks the suffix
        at = index($0, ": ")
        source = substr($0, length(top) + 1, at - length(top) - 1)
        sub(/^simt\//, "", source)
        sub(/\.o$/, "", source)
        print source (source ~ /\.cu?$/ ? "" : ".c"), substr($0, at + 2)
    }' >"$TEST_TMP/symbols"
find libfsdp launcher ckpt models -name '*.h' | sort >"$TEST_TMP/headers"
# from file, to file, node of the symbol's home (a header, or the file that defines it), symbol
awk '
    FILENAME ~ /symbols$/ && $3 ~ /^[TDBRCVW]$/ { defined[$2] = $1 }
    FILENAME ~ /symbols$/ && $3 ~ /^[Uwv]$/ { uses[++nuses] = $1 SUBSEP $2 }
    FILENAME ~ /headers$/ {
        header = $1; text = ""
        while ((getline line < header) > 0) text = text line "\n"
        close(header)
        while (match(text, /\/\*([^*]|\*+[^*\/])*\*+\//)) text = substr(text, 1, RSTART - 1) " " substr(text, RSTART + RLENGTH)
        n = split(text, word, /[^A-Za-z0-9_]+/)
        for (i = 1; i <= n; i++)
            if (word[i] in defined) {
                dir = defined[word[i]]; sub(/\/[^\/]*$/, "", dir)
                mine = header; sub(/\/[^\/]*$/, "", mine)
                rank = header ~ /\/include\// ? 3 : mine == dir ? 2 : 1
                if (rank > best[word[i]]) { best[word[i]] = rank; home[word[i]] = header }
            }
    }
    END {
        for (i = 1; i <= nuses; i++) {
            split(uses[i], u, SUBSEP)
            if (u[2] in defined && defined[u[2]] != u[1])
                print u[1], defined[u[2]], (u[2] in home ? home[u[2]] : defined[u[2]]), u[2]
        }
    }' "$TEST_TMP/symbols" "$TEST_TMP/headers" >"$TEST_TMP/used"
symbol_edges= nused=0
while read -r file definer home symbol; do
    nused=$((nused + 1))
    part_of "$file" && from=$part
    part_of "$home" && to=$part
    [ "$from" = "$to" ] || symbol_edges+="$from $to $file: $symbol of $definer"$'\n'
done <"$TEST_TMP/used"

# What a folder reaches through the table: what is public there may be called.
reached=$(awk 'NF { for (i = 2; i <= NF; i++) to[$1, ++n[$1]] = $i; row[$1] }
    function walk(at, from,   i) {
        for (i = 1; i <= n[at]; i++)
            if (!((from, to[at, i]) in seen)) { seen[from, to[at, i]]; print from, to[at, i]; walk(to[at, i], from) }
    }
    END { for (r in row) walk(r, r) }' <<<"$allowed")

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

declare -A verdict
offends() { # from, to: an edge that the table lacks
    [ "${verdict[$1 $2]:-}" ] || { ! grep -q -E "^$1 .* ?$2( |\$)|^$1 +$2( |\$)" <<<"$allowed"; verdict[$1 $2]=$?; }
    return "${verdict[$1 $2]}"
}
reaches() { # from, to: a public header that the table leads to
    [[ $2 == *.h ]] && grep -q -x "$1 $2" <<<"$reached"
}
new=
while read -r from to where; do
    [ -z "$from" ] || ! offends "$from" "$to" || new+="$from -> $to: $where"$'\n'
done <<<"$edges"
new_symbols=
while read -r from to where; do
    [ -z "$from" ] || reaches "$from" "$to" || ! offends "$from" "$to" || new_symbols+="$from -> $to: $where"$'\n'
done < <(sort -u -k1,2 <<<"$symbol_edges")
circle() { # pairs on standard input: the members of circles
    tsort 2>&1 >/dev/null | sed -n 's/^tsort: \([^-].*\)$/\1/p' | sort -u
}

check "the includes were read" "$([ $nread -ge 40 ] || echo "only $nread")"
check "no include that leads nowhere" "$unresolved"
check "no include beyond the table" "$new"
check "the symbols were read" "$([ $nused -ge 1000 ] || echo "only $nused, of ${#objects[@]} objects in '$OBJ'")"
check "no symbol beyond the table" "$new_symbols"
check "each folder has a README.md, whose last line is its row" "$(find libfsdp launcher ckpt models \( -name '*.c' -o -name '*.cu' \) \
    -exec dirname {} + | sort -u | while read -r folder; do
    row=$(grep -E "^$folder " <<<"$allowed")
    [ "$(tail -n 1 "$folder/README.md" 2>&1 | tr -d '\`')" = "Uses: $(echo ${row#"$folder"})" ] || echo "$folder: Uses: $(echo ${row#"$folder"})"
done)"
check "no circle of files" "$(awk '{ print $1, $2 }' "$TEST_TMP/used" | circle)"
check "no circle of folders" "$(awk 'NF { for (i = 2; i <= NF; i++) print $1, $i }' <<<"$allowed" | circle)"
check "a circle would be seen" "$(printf 'a b\nb c\nc a\n' | circle | grep -q a || echo "tsort sees none")"
check "only public headers cross top-level folders" "$private"
check "only ckpt/format and the writers know which format a checkpoint has" \
    "$(grep -rnE '(->|\.)(format|output) [!=]=' ckpt --include='*.[ch]' | grep -v '^ckpt/format/')"
# Who asks what a store can do (ckpt/store/can.c) need not know what it is.
asks_which_store() { # a tree
    grep -rnE '(->|\.)object_store\>' "$1/ckpt" --include='*.[ch]' | grep -v "^$1/ckpt/store/"
}
mkdir -p "$TEST_TMP/planted/ckpt/store" "$TEST_TMP/planted/ckpt/save"
echo 'if (ops->object_store)' | tee "$TEST_TMP/planted/ckpt/store/can.c" >"$TEST_TMP/planted/ckpt/save/finish.c"
check "only ckpt/store asks whether a store is an object store" "$(asks_which_store .)"
check "another that asks would be seen" "$(asks_which_store "$TEST_TMP/planted" | grep -c 'ckpt/save/finish.c' | grep -qx 1 || echo "it is not")"
# The table's own promise, whoever extends it.
check "launcher, libfsdp and ckpt are not joined" \
    "$(grep -E '^(fsdp/|libfsdp/|boot\.h|launcher/|ckpt)' <<<"$allowed" |
        grep -E '^(fsdp|libfsdp).* (launcher|boot\.h|ckpt|models)|^(boot\.h|launcher).* (ckpt|models|fsdp/(fsdp|mesh)\.h|libfsdp)|^ckpt.* (launcher|boot\.h|models|fsdp/[^b]|libfsdp)')"
check "a forbidden edge would be seen" "$(offends ckpt/store boot.h && offends libfsdp/core/run ckpt.h &&
    offends ckpt/store ckpt/save && offends ckpt/open fsdp/fsdp.h && ! offends models/train ckpt.h &&
    offends libfsdp/device/cuda fsdp/comm.h && ! reaches libfsdp/device/cuda fsdp/comm.h && reaches ckpt/save fsdp/base.h || echo "the table's look-up is broken")"
echo "1..$n"
exit $bad
