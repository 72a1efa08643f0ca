/* SPDX-License-Identifier: Apache-2.0 */
/* The opcodes of pickle protocols 2 to 5 that torch's checkpoints need, by the names that Python's
 * pickletools has for them. */
#ifndef CKPT_PICKLE_OP_H
#define CKPT_PICKLE_OP_H

enum ckpt_pickle_op {
    PK_PROTO = 0x80,
    PK_FRAME = 0x95, /* only a hint for readers of streams */
    PK_STOP = '.',
    PK_MARK = '(',

    PK_NONE = 'N',
    PK_NEWTRUE = 0x88,
    PK_NEWFALSE = 0x89,
    PK_BININT1 = 'K', /* 1 byte, 2 bytes, 4 bytes (signed) */
    PK_BININT2 = 'M',
    PK_BININT = 'J',
    PK_LONG1 = 0x8a, /* 1, 4 bytes of length; two's complement */
    PK_LONG4 = 0x8b,
    PK_BINFLOAT = 'G',
    PK_SHORT_BINUNICODE = 0x8c, /* 1, 4, 8 bytes of length */
    PK_BINUNICODE = 'X',
    PK_BINUNICODE8 = 0x8d,
    PK_SHORT_BINBYTES = 'C',
    PK_BINBYTES = 'B',
    PK_BINBYTES8 = 0x8e,
    PK_BYTEARRAY8 = 0x96,

    PK_EMPTY_DICT = '}',
    PK_SETITEM = 's',
    PK_SETITEMS = 'u',
    PK_EMPTY_LIST = ']',
    PK_APPEND = 'a',
    PK_APPENDS = 'e',
    PK_EMPTY_SET = 0x8f,
    PK_ADDITEMS = 0x90,
    PK_FROZENSET = 0x91,
    PK_EMPTY_TUPLE = ')',
    PK_TUPLE = 't',
    PK_TUPLE1 = 0x85,
    PK_TUPLE2 = 0x86,
    PK_TUPLE3 = 0x87,

    PK_MEMOIZE = 0x94,
    PK_BINPUT = 'q',
    PK_LONG_BINPUT = 'r',
    PK_BINGET = 'h',
    PK_LONG_BINGET = 'j',

    PK_GLOBAL = 'c',
    PK_STACK_GLOBAL = 0x93,
    PK_REDUCE = 'R',
    PK_NEWOBJ = 0x81,
    PK_BUILD = 'b',
    PK_BINPERSID = 'Q',
};

#endif
