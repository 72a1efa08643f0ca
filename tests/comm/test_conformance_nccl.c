/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run: timeout=300
 *
 * The suite of test_conformance.c on NCCL: the stand-in of tests/simt/nccl, or on a GPU
 * (FSDP_TEST_GPU=1) the real one.
 */
#define CONFORMANCE_OF_NCCL
#include "test_conformance.c"
