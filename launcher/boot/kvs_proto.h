/* SPDX-License-Identifier: Apache-2.0 */
/* kvs_proto.h: frame types of the rendezvous. A reply's rank field is its status. */
#ifndef BOOT_KVS_PROTO_H
#define BOOT_KVS_PROTO_H

#include "kvs.h"
#include "channel/link.h"

enum {
    KVS_PUT = 1,     /* key, zero byte, value */
    KVS_GET = 2,     /* key */
    KVS_FENCE = 3,   /* seq: milliseconds until the rank's deadline */
    KVS_WORDS = 4,   /* text */
    KVS_REPLY = 5,   /* value, or the text of a failure */
    KVS_GET_ALL = 6, /* key: what all ranks have put under it, in rank order */
};

#endif
