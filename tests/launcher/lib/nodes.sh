# SPDX-License-Identifier: Apache-2.0
# nodes.sh: machines of a test's own: a network, a host name and a /dev/shm each; `.` it in the
# scratch folder. Root only.
#
#   nodes_up N        n0 ... with addresses ${addr[i]} and ${addr6[i]}; fails where that cannot be
#   nodes_down        ends what runs on them, and takes them away
#   at I COMMAND...   starts it on node I: ${pids[I]}, output in out.I and err.I; with as=J, in those of J
#   on I PROG ARGS    the same for fsdp-launch: of $nnodes nodes it is node I; ${where[@]} says where node 0 is
#   finish            waits for all: $rcs has their exit statuses, in the order of the nodes
#   unplug I, plug I  pulls the node's cable, puts it back
pids=() addr=() addr6=() where=()

nodes_up() { # how many
    local i
    [ "$(id -u)" = 0 ] || return 1
    nnodes=$1 nhosts=$1 tag=fh$((RANDOM % 9000 + 1000)) net=10.$((128 + RANDOM % 64)).$((RANDOM % 256))
    net6=fd00:$((RANDOM % 9000)):$((RANDOM % 9000)):
    port=$((20000 + RANDOM % 10000))
    where=(--master-addr n0 --master-port $port)
    ip link add "$tag-br" type bridge 2>/dev/null && ip link set "$tag-br" up || return 1
    printf '127.0.0.1 localhost\n' >hosts
    for i in $(seq 0 $((nhosts - 1))); do
        addr[i]=$net.$((10 + i)) addr6[i]=$net6:$((10 + i))
        echo "${addr[i]} n$i" >>hosts
        ip netns add "$tag-n$i" && ip link add "$tag-v$i" type veth peer name eth0 netns "$tag-n$i" &&
            ip link set "$tag-v$i" master "$tag-br" up &&
            ip -n "$tag-n$i" addr add "${addr[i]}/24" dev eth0 &&
            ip -n "$tag-n$i" addr add "${addr6[i]}/64" dev eth0 nodad &&
            ip -n "$tag-n$i" link set eth0 up && ip -n "$tag-n$i" link set lo up || { nodes_down; return 1; }
    done
}

nodes_down() {
    local i
    for i in "${!pids[@]}"; do kill -KILL "${pids[i]}"; done 2>/dev/null
    wait
    for i in $(seq 0 $((nhosts - 1))); do
        ip link del "$tag-v$i"
        ip netns del "$tag-n$i"
    done 2>/dev/null
    ip link del "$tag-br" 2>/dev/null
}

at() { # node, command...
    local i=$1 j=${as:-$1}
    shift
    # The name of the node is in $0. Each step executes the next: the process stays the same.
    # shellcheck disable=SC2016
    ip netns exec "$tag-n$i" unshare -m -u sh -c \
        'hostname "$0" && "$TOP/tests/lib/mount_hosts" hosts && mount -t tmpfs -o size=256m tmpfs /dev/shm && exec "$@"' \
        "n$i" "$@" >"out.$j" 2>"err.$j" &
    pids[j]=$!
}

on() { # node, program, arguments...
    local i=$1 program=$2
    shift 2
    case " $* " in
    *" --master-addr "*) at "$i" "$program" --nnodes "$nnodes" --node-rank "$i" --master-port "$port" "$@" ;;
    *) at "$i" "$program" --nnodes "$nnodes" --node-rank "$i" "${where[@]}" "$@" ;;
    esac
}

finish() {
    local i
    rcs=
    for i in "${!pids[@]}"; do
        wait "${pids[i]}"
        rcs="$rcs $?"
    done
    rcs=${rcs# } pids=()
    cat out.* >log
    tail -n 5 err.* >err 2>/dev/null
}

# Connections of a node to the port where the nodes meet.
meetings() { # node
    ip netns exec "$tag-n$1" awk -v port=":$(printf %04X $port)" '$3 ~ port "$" && $4 == "01" { n++ } END { print n + 0 }' /proc/net/tcp
}
listens() { ip netns exec "$tag-n0" bash -c "exec 3<>/dev/tcp/127.0.0.1/$port" 2>/dev/null; }

unplug() { ip link set "$tag-v$1" down; }
plug() { ip link set "$tag-v$1" up; }

wait_until() { # condition
    for _ in $(seq 600); do
        eval "$1" && return 0
        sleep 0.05
    done
    return 1
}
