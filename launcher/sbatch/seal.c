/* SPDX-License-Identifier: Apache-2.0 */
/* A script says in its second line what its other lines were when it was written, so that one that
 * the user edited is known. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "sbatch.h"

static const char seal[] = "# checksum ";
/* With its digits and the end of the line. */
enum { SEAL_NBYTES = sizeof seal - 1 + 16 + 1, MOST_NBYTES = 1 << 20 };

/* Where the second line begins. */
static size_t second_line(const char *text, size_t nbytes)
{
    const char *end = memchr(text, '\n', nbytes);

    return end ? (size_t)(end + 1 - text) : nbytes;
}

static void seal_text(char out[SEAL_NBYTES + 1], const char *text, size_t first, size_t rest,
                      size_t nbytes)
{
    const uint64_t hash =
        fsdp_hash(fsdp_hash(FSDP_HASH_SEED, text, first), text + rest, nbytes - rest);

    snprintf(out, SEAL_NBYTES + 1, "%s%016" PRIx64 "\n", seal, hash);
}

void sbatch_sealed_write(FILE *to, const char *text, size_t nbytes)
{
    const size_t first = second_line(text, nbytes);
    char line[SEAL_NBYTES + 1];

    seal_text(line, text, first, first, nbytes);
    fwrite(text, 1, first, to);
    fputs(line, to);
    fwrite(text + first, 1, nbytes - first, to);
}

static bool is_unchanged(const char *text, size_t nbytes)
{
    const size_t first = second_line(text, nbytes);
    char line[SEAL_NBYTES + 1];

    if (nbytes - first < SEAL_NBYTES)
        return false;
    seal_text(line, text, first, first + SEAL_NBYTES, nbytes);
    return memcmp(text + first, line, SEAL_NBYTES) == 0;
}

/* One of the first lines begins with it. */
static bool has_mark(const char *text)
{
    for (int i = 0; i < 8 && text; i++) {
        if (strncmp(text, SBATCH_MARK, sizeof SBATCH_MARK - 1) == 0)
            return true;
        text = strchr(text, '\n');
        text = text ? text + 1 : NULL;
    }
    return false;
}

enum sbatch_owner sbatch_script_owner(const char *path)
{
    enum sbatch_owner owner = SBATCH_FOREIGN;
    struct stat st;
    size_t nbytes;
    char *text;

    if (stat(path, &st) != 0)
        return errno == ENOENT ? SBATCH_NONE : SBATCH_FOREIGN;
    if (fsdp_file_read(&text, &nbytes, path, MOST_NBYTES, NULL) != FSDP_OK)
        return SBATCH_FOREIGN; /* nor is a pipe or a device a script */
    if (has_mark(text))
        owner = is_unchanged(text, nbytes) ? SBATCH_OURS : SBATCH_EDITED;
    fsdp_free(text);
    return owner;
}
