#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# docs/tutorials/cluster.md on a Slurm of several nodes: every command, as it stands there, and what it prints.
# run: long
# run: timeout=900
NODES=4 CPUS=4
. "$TOP/tests/slurm/lib/cluster.sh"
. "$TOP/tests/lib/tutorial.sh"
unset BOOT_KEY_FILE FSDP_ENV FSDP_BIN FSDP_MPI FSDP_SRUN_ARGS FSDP_RUN
PATH=${PATH#"$BIN":} # the page installs the programs
mkdir home
export HOME=$PWD/home XDG_CACHE_HOME=$PWD/home/.cache
tutorial_tree
# Installed from the tree that was built. The nodes claim more cores than this machine has to bind to.
export SLURM_CPU_BIND=none
cat >setup.sh <<MAKE
make() {
    case \$1 in
    install | deps-list) command make -s -C "$TOP" "\$@" ;;
    esac
}
MAKE
tutorial_run "$TOP/docs/tutorials/cluster.md"
ok "$([ "$n" -ge 14 ]; echo $?)" "the page has its commands"
echo "1..$n"
exit $bad
