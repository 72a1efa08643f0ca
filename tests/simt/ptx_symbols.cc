// SPDX-License-Identifier: Apache-2.0
// Names of the program's functions, from the symbol table of its ELF file: a kernel's is its
// entry's.
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ptx.h"

namespace
{

void read_symbols(std::map<uint64_t, std::string> &symbols)
{
    const int fd = open("/proc/self/exe", O_RDONLY);
    struct stat st;
    if (fd < 0 || fstat(fd, &st))
        return;
    const char *file =
        (const char *)mmap(nullptr, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (file == MAP_FAILED)
        return;
    uint64_t base = 0;
    dl_iterate_phdr(
        [](struct dl_phdr_info *info, size_t, void *to) {
            *(uint64_t *)to = info->dlpi_addr;
            return 1; // the program is the first
        },
        &base);
    const Elf64_Ehdr *head = (const Elf64_Ehdr *)file;
    const Elf64_Shdr *section = (const Elf64_Shdr *)(file + head->e_shoff);
    for (int s = 0; s < head->e_shnum; s++) {
        if (section[s].sh_type != SHT_SYMTAB)
            continue;
        const Elf64_Sym *symbol = (const Elf64_Sym *)(file + section[s].sh_offset);
        const char *names = file + section[section[s].sh_link].sh_offset;
        for (size_t n = 0; n < section[s].sh_size / sizeof *symbol; n++)
            if (ELF64_ST_TYPE(symbol[n].st_info) == STT_FUNC && symbol[n].st_value)
                symbols[base + symbol[n].st_value] = names + symbol[n].st_name;
    }
    munmap((void *)file, (size_t)st.st_size);
}

} // namespace

std::string ptx::symbol_of(const void *function)
{
    static std::map<uint64_t, std::string> symbols; // by address
    if (symbols.empty())
        read_symbols(symbols);
    std::string name = symbols[(uint64_t)function];
    if (!name.compare(0, 3, "_ZL")) // of a static function; nvcc's names do not say so
        name.erase(2, 1);
    return name;
}
