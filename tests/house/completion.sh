#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# PROGRAM --completion: the scripts are valid, and bash, zsh and fish offer options, words, files and the
# configuration's keys by them.
mkdir -p "$TEST_TMP/work" && cd "$TEST_TMP/work" || exit 1

n=0 bad=0
ok() { # status, text, what was seen
    n=$((n + 1))
    if [ "$1" = 0 ]; then
        echo "ok $n - $2"
    else
        echo "not ok $n - $2"
        sed 's/^/# /' <<<"$3"
        bad=1
    fi
}
skip() { # text, why
    n=$((n + 1))
    echo "ok $n # SKIP $1: $2"
}

mkdir scripts
touch weights.safetensors 'a name.yaml'
programs=
for program in "$BIN"/*; do
    [ -f "$program" ] || continue
    programs+=" $(basename "$program")"
    for shell in bash zsh fish; do
        file=scripts/$(basename "$program").$shell
        "$program" --completion $shell >"$file" 2>err
        ok $? "$(basename "$program") --completion $shell" "$(cat err)"
        command -v $shell >/dev/null || { skip "$shell -n" "no $shell"; continue; }
        said=$($shell -n "$file" 2>&1)
        ok "$([ -z "$said" ]; echo $?)" "$shell -n $(basename "$file")" "$said"
    done
done
ok "$([ "$(wc -w <<<"$programs")" -ge 10 ]; echo $?)" "all programs" "$programs"
"$BIN/ckpt-info" --completion tcsh >out 2>err
ok "$([ $? = 2 ] && grep -q 'tcsh: expected bash, zsh or fish' err && [ ! -s out ]; echo $?)" "another shell is refused" "$(cat out err)"

# What is offered for a line, a word each; the last argument is what is being typed.
offer_bash() { # words of the line
    bash --norc -c '
        source "scripts/$1.bash"
        COMP_WORDS=("$@")
        COMP_CWORD=$(($# - 1))
        "_${1//-/_}" "$1" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        printf "%s\n" "${COMPREPLY[@]}"' bash "$@" 2>&1
}
offer_fish() { # words of the line
    local command=$1
    HOME=$PWD fish --no-config -c "source scripts/$command.fish; complete -C '$*'" 2>&1 | cut -f1
}
# zsh completes on a terminal alone: zpty is one.
offer_zsh() { # words of the line
    HOME=$PWD TYPED="$*" PROGRAM=$1 zsh -f -c '
        zmodload zsh/zpty
        zpty z "TERM=dumb zsh -f -i"
        zpty -w z "PS1= PS2=; stty columns 300 -echo; autoload -Uz compinit; compinit -u -D; source scripts/$PROGRAM.zsh"
        zpty -w z "bindkey \"^I\" list-choices; zstyle \":completion:*\" list-packed no; print -r -- ready"
        zpty -r -m z line "*ready*"
        zpty -w -n z "$TYPED"$'"'\\t'"'
        for ((i = 0; i < 50; i++)); do
            sleep 0.1
            zpty -r -t z line && { print -r -- "$line"; ((i < 40)) && i=40; }
        done
        zpty -d z' 2>&1 | sed -e 's/\x1b\[[0-9;?]*[a-zA-Z]//g' | tr ' \r' '\n\n'
}

offers() { # shell, what must be offered, what must not, words of the line
    local shell=$1 want=$2 unwanted=$3 got
    shift 3
    command -v "$shell" >/dev/null || { skip "$shell: $*" "no $shell"; return; }
    got=$("offer_$shell" "$@")
    ok "$(grep -q -x -F -e "$want" <<<"$got" && ! grep -q -x -F -e "$unwanted" <<<"$got"; echo $?)" "$shell: $*" "$got"
}
for shell in bash zsh fish; do
    offers $shell --overwrite --quiet ckpt-merge --ov
    offers $shell bfloat16 float32 ckpt-merge --dtype b
    offers $shell weights.safetensors --all ckpt-merge w
    offers $shell weights.safetensors --all ckpt-merge -o w
    offers $shell --ranks-per-gpu --nodes fsdp-launch --ranks-per-
    offers $shell fsdp.backend= --nodes fsdp-launch run.yaml fsdp.back
done
offers bash bfloat16 float32 ckpt-merge --dtype = b
offers fish --dtype=bfloat16 --dtype=float32 ckpt-merge --dtype=b
offers bash nccl host fsdp-launch run.yaml fsdp.backend = n
offers zsh nccl host fsdp-launch run.yaml fsdp.backend=n
offers fish fsdp.backend=nccl fsdp.backend=host fsdp-launch run.yaml fsdp.backend=n
offers bash true false fsdp-launch run.yaml optim.nesterov = t
offers bash 'a name.yaml' --all fsdp-launch a
echo "1..$n"
exit $bad
