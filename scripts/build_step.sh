#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# One step of the build, quietly: a compiler's command goes to BUILD/log with what it says. The terminal
# gets a line for each folder, warnings, and of what failed everything.
#
#   scripts/build_step.sh BUILD KIND FILE OBJECTS [SOURCES...] -- COMMAND...
#
# SOURCES are the folder's files whose objects lie below OBJECTS: those that are not up to date are
# counted once, before the first. BUILD_SESSION names the run of make, whose log begins empty.
build=$1 kind=$2 file=$3 objects=$4
shift 4

# Prints how many of the sources have no object that is as new as all that it was made from.
count_outdated() { # sources..., --, ...
    n=0
    while [ "$1" != -- ]; do
        made=$objects/$1.o
        [ -e "$made" ] || made=$objects/${1%.*}.o
        if [ ! -e "$made" ]; then
            n=$((n + 1))
        else
            inputs=$(sed -n '1,/[^\\]$/{s/^[^:]*\.o://;s/\\$//;p;}' "${made%.o}.d" 2>/dev/null)
            # shellcheck disable=SC2086 # names without blanks
            [ -z "$(find $inputs -prune -newer "$made" 2>&1 | head -n 1)" ] || n=$((n + 1))
        fi
        shift
    done
    [ $n -lt 1 ] || printf ' (%d file%s)' $n "$([ $n = 1 ] || echo s)"
}

steps=$build/.steps
session=$steps/${BUILD_SESSION:-0}
if [ ! -d "$session" ]; then
    mkdir -p "$steps"
    if mkdir "$session.first" 2>/dev/null; then
        find "$steps" -mindepth 1 -maxdepth 1 -type d -mmin +60 -exec rm -rf {} + # those of earlier runs
        : >"$build/log"
        mkdir "$session"
    fi
    # Else another step of this run is about to begin the log.
    tries=0
    while [ ! -d "$session" ] && [ $tries -lt 50 ]; do
        sleep 0.1
        tries=$((tries + 1))
    done
fi
folder=$(dirname "$file")
if mkdir "$session/$kind-$(echo "$folder" | tr / +)" 2>/dev/null; then
    printf '  %-4s %s%s\n' "$kind" "$folder" "$(count_outdated "$@")"
fi
while [ "$1" != -- ]; do
    shift
done
shift

said=$steps/said.$$
"$@" 2>"$said"
rc=$?
{
    printf '# %s %s\n' "$kind" "$file"
    printf '%s\n' "$*"
    cat "$said"
    [ $rc = 0 ] || printf '# failed with status %d\n' $rc
} >"$said.log"
cat "$said.log" >>"$build/log" # at once, so that steps do not mix
[ $rc = 0 ] || printf '  %-4s %s failed; the command is in %s/log\n' "$kind" "$file" "$build" >&2
cat "$said" >&2
rm -f "$said" "$said.log"
exit $rc
