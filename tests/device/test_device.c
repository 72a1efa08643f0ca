/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU device. */
#include "device_suite.h"

static void on_cpu(const char *mode, unsigned flags)
{
    struct fsdp_device *device;
    if (fsdp_device_open(&device, "cpu", flags, NULL))
        exit(1);
    test_lanes(mode, device, flags != 0);
    fsdp_device_close(device);
}

/* The CPU's events belong to one lane; a record on another leaves them as they were. */
static void test_owner(const char *mode, unsigned flags)
{
    struct fsdp_device *device;
    struct fsdp_lane *a, *b;
    struct fsdp_event *event;
    struct fsdp_err err = FSDP_ERR_INIT;

    if (fsdp_device_open(&device, "cpu", flags, NULL) || fsdp_lane_create(&a, device, "a", NULL) ||
        fsdp_lane_create(&b, device, "b", NULL) || fsdp_event_create(&event, device, NULL))
        exit(1);
    int rc = fsdp_event_record(event, a, NULL);
    ok(rc == FSDP_OK && fsdp_event_record(event, b, &err) == FSDP_EINVAL, "%s: %s", mode, err.text);
    ok(fsdp_event_wait(event, b, NULL) == FSDP_OK && fsdp_event_record(event, a, NULL) == FSDP_OK &&
           fsdp_lane_sync(b, NULL) == FSDP_OK && fsdp_lane_sync(a, NULL) == FSDP_OK,
       "%s: and the event is as it was", mode);
    fsdp_lane_destroy(a);
    fsdp_lane_destroy(b);
    fsdp_event_destroy(event);
    fsdp_device_close(device);
}

static void test_grow(void)
{
    enum { COUNT = 1000 };
    struct fsdp_err err = FSDP_ERR_INIT;
    uint64_t before = fsdp_alloc_count();
    size_t max = 0, nequal = 0;
    int *array = NULL;

    for (size_t i = 0; i < COUNT; i++) {
        int *grown = fsdp_alloc_grow(array, i, &max, sizeof *array, "probe", &err);
        if (!grown || max <= i)
            abort();
        array = grown;
        array[i] = (int)i;
    }
    for (size_t i = 0; i < COUNT; i++)
        nequal += array[i] == (int)i;
    ok(nequal == COUNT && fsdp_alloc_count() - before <= 8,
       "an array grows to %d elements in %d allocations", COUNT,
       (int)(fsdp_alloc_count() - before));
    fsdp_alloc_fail_at(1);
    size_t full = max;
    ok(!fsdp_alloc_grow(array, full, &max, sizeof *array, "probe", &err) && max == full &&
           err.status == FSDP_ENOMEM && array[COUNT - 1] == COUNT - 1,
       "one that cannot grow stays: %s", err.text);
    fsdp_free(array);
}

int main(void)
{
    struct fsdp_device *device;
    struct fsdp_lane *lane;
    struct fsdp_err err = FSDP_ERR_INIT;
    ok(fsdp_device_open(&device, "tpu", 0, &err) == FSDP_EUNSUPPORTED, "unknown device: %s",
       err.text);
    if (fsdp_device_open(&device, "cpu", 0, &err) || fsdp_lane_create(&lane, device, "test", &err))
        return 1;
    struct fsdp_device_look look;
    ok(fsdp_device_look(device, &look, &err) == FSDP_OK && !look.model[0] && !look.used_nbytes,
       "the CPU's memory is not the device's");
    run_arithmetic(lane);
    fsdp_lane_destroy(lane);
    fsdp_device_close(device);
    on_cpu("inline", 0);
    on_cpu("threaded", FSDP_DEVICE_THREADED);
    on_cpu("shuffled", FSDP_DEVICE_SHUFFLED | 5 << FSDP_DEVICE_SEED_SHIFT);
    test_owner("threaded", FSDP_DEVICE_THREADED);
    test_owner("shuffled", FSDP_DEVICE_SHUFFLED | 5 << FSDP_DEVICE_SEED_SHIFT);
    fsdp_alloc_fail_at(1);
    ok(!fsdp_alloc(10, 1, "probe", &err) && err.status == FSDP_ENOMEM,
       "allocation failure on request: %s", err.text);
    void *p = fsdp_alloc(10, 1, "probe", &err);
    ok(p != NULL, "only that one fails");
    fsdp_free(p);
    ok(!fsdp_alloc(SIZE_MAX / 2, 4, "probe", &err), "overflow: %s", err.text);
    test_grow();
    return tap_done();
}
