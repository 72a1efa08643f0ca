#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Flat parameters that torch's FSDP1 saved (LOCAL_STATE_DICT, gloo, 2 and 3 ranks) equal its FULL_STATE_DICT to the bit:
# all families, use_orig_params both ways, tied, biased, ignored and nested modules, compiled layers. --check knows each
# merge.
# run: long
# run: timeout=600
. "$TOP/tests/lib/python.sh"
need_python 'torch, transformers, safetensors'
cd "$TEST_TMP" || exit 1
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 PATH=$BIN:$PATH
. "$TOP/tests/lib/tap.sh"
script() { "$TORCH_PYTHON" -W ignore "$TOP/tests/interop/fsdp1.py" "$@"; }

# Do the names count as a proof where the files have them, and nowhere else?
proves() { # case, local|dcp
    local said=1
    grep -q 'the files have all names in this order' err && said=0
    case $2/$1 in
        local/*-orig | local/*/llama-biased | local/*/llama-bf16 | local/*/llama-compiled) [ $said = 0 ] ;;
        *) [ $said = 1 ] ;;
    esac
}
# Each tensor that torch gathered is there and equal, and none else.
same() { # case, local|dcp
    rm -rf merged
    ckpt-merge "$1/$2" -o merged --config "$1/hf" >out 2>err && proves "$1" "$2" && ckpt-diff -q merged "$1/hf/expected.safetensors" >diff 2>&1 &&
        [ "$(ckpt-info merged --json | grep -c '"dtype"')" -gt 10 ] && cmp -s merged/config.json "$1/hf/config.json" &&
        ckpt-merge --check merged >check 2>err
}
for world in 2 3; do
    mkdir "$world"
    script "$PWD/$world" "$world" >log 2>&1
    ok $? "torch saves with $world ranks: $(tail -n 1 log)"
    for name in $(<"$world/names"); do
        same "$world/$name" local && same "$world/$name" dcp
        ok $? "$name, $world ranks: $(tail -n 1 err)"
    done
done
echo "1..$n"
exit $bad
