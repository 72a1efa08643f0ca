/* SPDX-License-Identifier: Apache-2.0 */
/*
 * library_ptx LIBRARY FOLDER: the PTX that nvcc put into a library, for GPUs newer than those it
 * was compiled for, as files FOLDER/NAME.ptx, one for each NAME.cu. Prints their paths. The
 * toolkit's cuobjdump -xptx does the same, but not every toolkit has it. The layout of fatbinary
 * containers is not documented; it was read from libraries of nvcc 13.0: what does not look like
 * that is an error.
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

enum { MAGIC = (int)0xba55ed50u, KIND_PTX = 1, COMPRESSED_BY_ZSTD = 0x8000 };

struct container {
    uint32_t magic;
    uint16_t version, header_nbytes;
    uint64_t nbytes; /* of the parts behind the header */
};

struct part {
    uint16_t kind, version;
    uint32_t header_nbytes;
    uint64_t nbytes;            /* with padding */
    uint32_t compressed_nbytes; /* without */
    uint32_t unknown[5], flags, unknown_too[3];
    uint64_t whole_nbytes; /* before compression */
    char source[];         /* path of the .cu file, and what nvcc was told */
};

static void die(const char *what, const char *name)
{
    fprintf(stderr, "library_ptx: %s: %s\n", name, what);
    exit(1);
}

static char *read_whole(const char *path, size_t *nbytes)
{
    FILE *file = fopen(path, "rb");
    long size;

    if (!file || fseek(file, 0, SEEK_END) || (size = ftell(file)) < 0 || fseek(file, 0, SEEK_SET))
        die(strerror(errno), path);
    char *bytes = malloc((size_t)size + 1);
    if (!bytes || fread(bytes, 1, (size_t)size, file) != (size_t)size)
        die("cannot read it", path);
    fclose(file);
    *nbytes = (size_t)size;
    return bytes;
}

static void write_ptx(const struct part *part, const char *folder)
{
    const char *slash = strrchr(part->source, '/'), *name = slash ? slash + 1 : part->source;
    const char *dot = strrchr(name, '.');
    char *text = malloc(part->whole_nbytes), path[4096];

    if (!(part->flags & COMPRESSED_BY_ZSTD) || !dot || !text ||
        ZSTD_decompress(text, part->whole_nbytes, (const char *)part + part->header_nbytes,
                        part->compressed_nbytes) != part->whole_nbytes)
        die("its PTX is not compressed as expected", part->source);
    snprintf(path, sizeof path, "%s/%.*s.ptx", folder, (int)(dot - name), name);
    FILE *file = fopen(path, "wb");
    const size_t nbytes = strnlen(text, part->whole_nbytes);
    if (!file || fwrite(text, 1, nbytes, file) != nbytes || fclose(file))
        die(strerror(errno), path);
    free(text);
    puts(path);
}

int main(int argc, char **argv)
{
    size_t nbytes;
    int nfound = 0;

    if (argc != 3)
        die("give a library and a folder", "usage");
    char *library = read_whole(argv[1], &nbytes);
    for (size_t at = 0; at + sizeof(struct container) < nbytes; at += 8) {
        const struct container *c = (const struct container *)(library + at);
        if (c->magic != (uint32_t)MAGIC || c->version != 1 ||
            c->header_nbytes != sizeof(struct container) || c->nbytes > nbytes - at - sizeof *c)
            continue;
        const char *next = (const char *)(c + 1), *end = next + c->nbytes;
        while (next < end) {
            const struct part *part = (const struct part *)next;
            if ((size_t)(end - next) < sizeof *part || part->header_nbytes <= sizeof *part ||
                part->header_nbytes > (size_t)(end - next) ||
                part->nbytes > (size_t)(end - next) - part->header_nbytes ||
                part->compressed_nbytes > part->nbytes)
                die("a fatbinary that is not understood", argv[1]);
            if (part->kind == KIND_PTX) {
                write_ptx(part, argv[2]);
                nfound++;
            }
            next += part->header_nbytes + part->nbytes;
        }
    }
    free(library);
    if (!nfound)
        die("no PTX in it", argv[1]);
    return 0;
}
