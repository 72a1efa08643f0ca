/* SPDX-License-Identifier: Apache-2.0 */
/* Conversions between floating types: known codes, ties to even, ranges, there and back. */
#include <math.h>
#include <string.h>

#include "../../ckpt/util/convert.h"
#include "tap.h"

struct code {
    float value;
    uint8_t e4m3, e5m2;
};
/* From the OCP 8-bit floating point specification; overflow as PyTorch has it. */
static const struct code codes[] = {
    {0.0f, 0x00, 0x00},     {-0.0f, 0x80, 0x80},      {1.0f, 0x38, 0x3c},
    {-1.5f, 0xbc, 0xbe},    {448.0f, 0x7e, 0x5f},     {464.0f, 0x7e, 0x5f},
    {1e30f, 0x7e, 0x7c},    {57344.0f, 0x7e, 0x7b},   {61439.0f, 0x7e, 0x7b},
    {61440.0f, 0x7e, 0x7c}, {0x1p-6f, 0x08, 0x24},    {0x1p-9f, 0x01, 0x18},
    {0x1p-10f, 0x00, 0x14}, {0x1.8p-10f, 0x01, 0x16}, {0x1p-16f, 0x00, 0x01},
    {0x1p-17f, 0x00, 0x00}, {1.0625f, 0x38, 0x3c},    {1.1875f, 0x3a, 0x3d},
    {17.0f, 0x58, 0x4c},    {INFINITY, 0x7e, 0x7c},
};

static void test_f8(void)
{
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++) {
        uint8_t a, b;
        ckpt_convert(&a, FSDP_F8_E4M3, &codes[i].value, FSDP_F32, 1);
        ckpt_convert(&b, FSDP_F8_E5M2, &codes[i].value, FSDP_F32, 1);
        ok(a == codes[i].e4m3 && b == codes[i].e5m2, "%g is %02x and %02x", (double)codes[i].value,
           a, b);
    }
}

/* Every code of a small type survives the way through F32 (NaNs stay NaNs). */
static void test_back(enum fsdp_dtype dtype)
{
    size_t nbytes = fsdp_dtype_nbytes(dtype);
    bool same = true;
    for (uint32_t code = 0; code < UINT32_C(1) << (8 * nbytes); code++) {
        float wide;
        uint32_t back = 0;
        ckpt_convert(&wide, FSDP_F32, &code, dtype, 1);
        ckpt_convert(&back, dtype, &wide, FSDP_F32, 1);
        float again;
        ckpt_convert(&again, FSDP_F32, &back, dtype, 1);
        same &= back == code || (isnan(wide) && isnan(again));
    }
    ok(same, "every %s survives", fsdp_dtype_name(dtype));
}

int main(void)
{
    test_f8();
    test_back(FSDP_F8_E4M3);
    test_back(FSDP_F8_E5M2);
    test_back(FSDP_F16);
    test_back(FSDP_BF16);
    double x = 0.1;
    float y;
    ckpt_convert(&y, FSDP_F32, &x, FSDP_F64, 1);
    ok(y == 0.1f, "F64 to F32");
    float many[3000], back[3000];
    double wide[3000];
    for (int i = 0; i < 3000; i++)
        many[i] = (float)i * 0.37f;
    ckpt_convert(wide, FSDP_F64, many, FSDP_F32, 3000);
    ckpt_convert(back, FSDP_F32, wide, FSDP_F64, 3000);
    ok(!memcmp(many, back, sizeof many), "many at a time");
    ok(ckpt_convert_can(FSDP_BF16, FSDP_F32) && ckpt_convert_can(FSDP_I8, FSDP_I8) &&
           !ckpt_convert_can(FSDP_I8, FSDP_F32) && !ckpt_convert_can(FSDP_F32, FSDP_U8),
       "floats among themselves, others only to themselves");
    return tap_done();
}
