/* SPDX-License-Identifier: Apache-2.0 */
#include <endian.h>
#include <string.h>

#include <isa-l/crc64.h>

#include "format.h"

enum { VERSION = 1, MAX_SPECIAL = 2 };
static const char magic[8] = {'f', 's', 'd', 'p', 't', 'o', 'k', 's'};

const char *const tokens_ends[TOKENS_NPARTS] = {"", ".learned", ".index"};

/* Where the fields of the header are. */
enum {
    AT_VERSION = 8,
    AT_TOKEN_NBYTES = 12,
    AT_VOCAB = 16,
    AT_SPECIAL = 20,
    AT_LEARNED = 24,
    AT_ZERO = 28,
    AT_TOKENIZER = 32,
    AT_SOURCE = 40,
    AT_NDOCUMENTS = 48,
    AT_NTOKENS = 56,
    AT_NBYTES = 64,
    AT_NBAD = 72,
    AT_CRCS = 80,
    AT_CRC = 104,
    AT_REST = 112
};

uint64_t tokens_crc(uint64_t crc, const void *data, size_t nbytes)
{
    return nbytes ? crc64_ecma_refl(crc, data, nbytes) : crc;
}

uint64_t tokens_part_nbytes(const struct tokens_header *h, enum tokens_part part)
{
    switch (part) {
    case TOKENS_IDS:
        return h->info.ntokens * (uint64_t)h->info.token_nbytes;
    case TOKENS_LEARNED:
        return h->info.has_learned ? h->info.ntokens / 8 + (h->info.ntokens % 8 != 0) : 0;
    default:
        return TOKENS_HEADER_NBYTES + h->info.ndocuments * TOKENS_END_NBYTES;
    }
}

static void put32(unsigned char *to, uint32_t value)
{
    value = htole32(value);
    memcpy(to, &value, sizeof value);
}

static void put64(unsigned char *to, uint64_t value)
{
    value = htole64(value);
    memcpy(to, &value, sizeof value);
}

static uint32_t get32(const unsigned char *from)
{
    uint32_t value;
    memcpy(&value, from, sizeof value);
    return le32toh(value);
}

static uint64_t get64(const unsigned char *from)
{
    uint64_t value;
    memcpy(&value, from, sizeof value);
    return le64toh(value);
}

void tokens_header_put(unsigned char out[TOKENS_HEADER_NBYTES], const struct tokens_header *h)
{
    memset(out, 0, TOKENS_HEADER_NBYTES);
    memcpy(out, magic, sizeof magic);
    put32(out + AT_VERSION, VERSION);
    put32(out + AT_TOKEN_NBYTES, (uint32_t)h->info.token_nbytes);
    put32(out + AT_VOCAB, (uint32_t)h->info.vocab_size);
    put32(out + AT_SPECIAL, (uint32_t)h->info.special);
    put32(out + AT_LEARNED, h->info.has_learned);
    put64(out + AT_TOKENIZER, h->info.tokenizer_hash);
    put64(out + AT_SOURCE, h->info.source_hash);
    put64(out + AT_NDOCUMENTS, h->info.ndocuments);
    put64(out + AT_NTOKENS, h->info.ntokens);
    put64(out + AT_NBYTES, h->info.nbytes);
    put64(out + AT_NBAD, h->info.nbad);
    for (int i = 0; i < TOKENS_NPARTS; i++)
        put64(out + AT_CRCS + 8 * i, h->crc[i]);
    put64(out + AT_CRC, tokens_crc(0, out, AT_CRC));
}

static bool is_sane(const unsigned char *in)
{
    static const unsigned char zeros[TOKENS_HEADER_NBYTES - AT_REST];
    const uint32_t nbytes = get32(in + AT_TOKEN_NBYTES);

    /* No size that is computed of the counts overflows. */
    return (nbytes == 2 || nbytes == 4) && get32(in + AT_VOCAB) <= INT32_MAX &&
           get32(in + AT_SPECIAL) <= MAX_SPECIAL && get32(in + AT_LEARNED) <= 1 &&
           get64(in + AT_NTOKENS) <= INT64_MAX / 4 && get64(in + AT_NDOCUMENTS) <= INT64_MAX / 16 &&
           !get32(in + AT_ZERO) && !memcmp(in + AT_REST, zeros, sizeof zeros);
}

int tokens_header_get(struct tokens_header *out, const unsigned char in[TOKENS_HEADER_NBYTES],
                      const char *path, struct fsdp_err *err)
{
    if (memcmp(in, magic, sizeof magic) != 0)
        return fsdp_err_set(err, FSDP_ECORRUPT, "'%s' is no index of a token file", path);
    if (get32(in + AT_VERSION) != VERSION)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                            "'%s' has version %u of the format, and this program reads version %d",
                            path, get32(in + AT_VERSION), VERSION);
    if (get64(in + AT_CRC) != tokens_crc(0, in, AT_CRC) || !is_sane(in))
        return fsdp_err_set(err, FSDP_ECORRUPT,
                            "'%s' is damaged: its header does not have its checksum", path);
    *out = (struct tokens_header){
        .info = {.token_nbytes = (int)get32(in + AT_TOKEN_NBYTES),
                 .vocab_size = (int)get32(in + AT_VOCAB),
                 .special = (int)get32(in + AT_SPECIAL),
                 .has_learned = get32(in + AT_LEARNED) != 0,
                 .tokenizer_hash = get64(in + AT_TOKENIZER),
                 .source_hash = get64(in + AT_SOURCE),
                 .ndocuments = get64(in + AT_NDOCUMENTS),
                 .ntokens = get64(in + AT_NTOKENS),
                 .nbytes = get64(in + AT_NBYTES),
                 .nbad = get64(in + AT_NBAD)},
    };
    for (int i = 0; i < TOKENS_NPARTS; i++)
        out->crc[i] = get64(in + AT_CRCS + 8 * i);
    return FSDP_OK;
}
