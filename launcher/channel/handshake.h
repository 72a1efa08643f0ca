/* SPDX-License-Identifier: Apache-2.0 */
/* handshake.h: the messages drawn in wire.h, shared by its two sides. */
#ifndef BOOT_HANDSHAKE_H
#define BOOT_HANDSHAKE_H

#include "wire.h"

enum { BOOT_MAGIC = 0x31425346, BOOT_NONCE_NBYTES = 32, BOOT_MAC_NBYTES = 32 }; /* "FSB1" */

/* Little-endian. */
struct boot_hello_msg {
    uint32_t magic, purpose, rank, to;
    unsigned char nonce[BOOT_NONCE_NBYTES];
};

struct boot_answer_msg {
    unsigned char nonce[BOOT_NONCE_NBYTES];
    unsigned char mac[BOOT_MAC_NBYTES];
};

/* MAC of one side ("acceptor" or "dialler") over the whole hello and the acceptor's nonce. */
bool boot_handshake_mac(unsigned char out[BOOT_MAC_NBYTES], const struct boot_secret *secret,
                        const char *side, const struct boot_hello_msg *hello,
                        const unsigned char nonce[BOOT_NONCE_NBYTES]);
/* Compares in constant time. */
bool boot_handshake_check(const unsigned char mac[BOOT_MAC_NBYTES],
                          const struct boot_secret *secret, const char *side,
                          const struct boot_hello_msg *hello,
                          const unsigned char nonce[BOOT_NONCE_NBYTES]);
enum { BOOT_HANDSHAKE_NMESSAGES = 4 };
/* Options of every socket of the job. */
void boot_socket_tune(int fd);

#endif
