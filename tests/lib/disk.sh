# SPDX-License-Identifier: Apache-2.0
# disk.sh: may a test mount a small file system? `.` it in the scratch folder.

# Prints why not, and nothing where it may. Of its own: in a mount namespace of its own.
why_no_disk() { # [own]
    local said rc own=()
    command -v mount >/dev/null || { echo "no mount(8) is here (Debian: mount)"; return; }
    [ -z "${1:-}" ] || own=(unshare -m)
    mkdir -p disk.try
    said=$("${own[@]}" mount -t tmpfs tmpfs disk.try 2>&1)
    rc=$? said=${said%%$'\n'*}
    [ $rc != 0 ] || [ -n "${1:-}" ] || umount disk.try
    rmdir disk.try
    case $rc,$said in
    0,*) ;;
    *"not found"*) echo "no unshare(1) is here (Debian: util-linux)" ;;
    *propagation*) echo "no mount namespace in a chroot, whose root is no mount point" ;;
    *) echo "no tmpfs can be mounted here: ${said##*: }" ;;
    esac
}
