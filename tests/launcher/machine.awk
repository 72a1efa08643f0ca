# SPDX-License-Identifier: Apache-2.0
# Prints a machine in hwloc's XML (awk -f machine.awk; HWLOC_XMLFILE takes it): 2 packages of 4 NUMA nodes
# of 8 cores of 2 threads (core c: 0-63, its threads c and c + 64), and 8 GPUs with a network card each.
# As on some real ones the bus's order is not the nodes': GPUs 0 and 1 (bus 0x07, 0x0f) are on NUMA node 3,
# 2 and 3 on 1, 4 and 5 on 7, 6 and 7 on 5. A GPU and mlx5_N are on one switch; eno1, for management, is
# on node 0. GPU and card of switch s: 0000:SS:00.0 and 0000:SS+1:00.0.

# Cores first..first + n - 1, both threads, as hwloc writes sets.
function cpuset(first, n, core, w, text) {
    for (w = 0; w < 4; w++) word[w] = 0
    for (core = first; core < first + n; core++) {
        word[int(core / 32)] += 2 ^ (core % 32)
        word[int(core / 32) + 2] += 2 ^ (core % 32)
    }
    for (w = 3; w >= 0; w--) text = text (w < 3 ? "," : "") sprintf("0x%08x", word[w])
    return text
}
function thread(pu, w, text) {
    for (w = int(pu / 32); w >= 0; w--)
        text = text (text ? "," : "") (w == int(pu / 32) ? sprintf("0x%08x", 2 ^ (pu % 32)) : "0x0")
    return text
}
function begin(type, more, set, nodes) {
    printf "<object type=\"%s\" %s cpuset=\"%s\" complete_cpuset=\"%s\" nodeset=\"%s\" complete_nodeset=\"%s\" gp_index=\"%d\">\n",
        type, more, set, set, nodes, nodes, ++gp
}
function index_of(i) { return sprintf("os_index=\"%d\"", i) }
function card(bus, class, osdev, name) {
    printf "<object type=\"PCIDev\" gp_index=\"%d\" pci_busid=\"0000:%02x:00.0\" pci_type=\"%s\" pci_link_speed=\"31.5\">\n", ++gp, bus, class
    if (name) printf "<object type=\"OSDev\" gp_index=\"%d\" name=\"%s\" osdev_type=\"%d\"/>\n", ++gp, name, osdev
    print "</object>"
}
# A bridge of the machine, below it a switch, below that GPU `gpu` and its card.
function gpu_switch(gpu, bus) {
    printf "<object type=\"Bridge\" gp_index=\"%d\" bridge_type=\"1-1\" depth=\"1\" bridge_pci=\"0000:[%02x-%02x]\" pci_busid=\"0000:%02x:01.0\" pci_type=\"0604 [1022:1483] [0000:0000] 00\" pci_link_speed=\"31.5\">\n",
        ++gp, bus, bus + 1, first_bus
    card(bus, "0302 [10de:20b0] [10de:134f] a1", 0, "")
    card(bus + 1, "0207 [15b3:101b] [15b3:0007] 00", 3, "mlx5_" gpu)
    print "</object>"
}
function host_bridge(first, last) {
    first_bus = first
    printf "<object type=\"Bridge\" gp_index=\"%d\" bridge_type=\"0-1\" depth=\"0\" bridge_pci=\"0000:[%02x-%02x]\">\n", ++gp, first, last
}
BEGIN {
    print "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n<topology version=\"2.0\">"
    all = cpuset(0, 64)
    begin("Machine", "os_index=\"0\" allowed_cpuset=\"" all "\" allowed_nodeset=\"0x000000ff\"", all, "0x000000ff")
    gpu_of[3] = 0; gpu_of[1] = 2; gpu_of[7] = 4; gpu_of[5] = 6
    bus_of[3] = 6; bus_of[1] = 70; bus_of[7] = 134; bus_of[5] = 198
    for (package = 0; package < 2; package++) {
        begin("Package", index_of(package), cpuset(package * 32, 32), package ? "0x000000f0" : "0x0000000f")
        for (node = package * 4; node < package * 4 + 4; node++) {
            set = cpuset(node * 8, 8)
            mask = sprintf("0x%08x", 2 ^ node)
            begin("L3Cache", "cache_size=\"33554432\" depth=\"3\" cache_linesize=\"64\" cache_associativity=\"16\" cache_type=\"0\"", set, mask)
            begin("NUMANode", index_of(node) " local_memory=\"68719476736\"", set, mask)
            print "</object>"
            for (core = node * 8; core < node * 8 + 8; core++) {
                begin("Core", index_of(core), cpuset(core, 1), mask)
                begin("PU", index_of(core), thread(core), mask)
                print "</object>"
                begin("PU", index_of(core + 64), thread(core + 64), mask)
                print "</object>\n</object>"
            }
            if (node in gpu_of) {
                host_bridge(bus_of[node], bus_of[node] + 30)
                gpu_switch(gpu_of[node], bus_of[node] + 1)
                gpu_switch(gpu_of[node] + 1, bus_of[node] + 9)
                print "</object>"
            } else if (node == 0) {
                host_bridge(1, 3)
                card(2, "0200 [8086:1563] [8086:0001] 01", 2, "eno1")
                print "</object>"
            }
            print "</object>"
        }
        print "</object>"
    }
    print "</object>\n</topology>"
}
