// SPDX-License-Identifier: Apache-2.0
// Runs the blocks of a kernel one after another, the threads of a block as contexts of their own
// that give way to each other at barriers. Which thread goes first is drawn anew after each of its
// turns, so that a missing barrier shows. A barrier that not all threads come to ends the program.
//
// A context is entered once (ucontext), and left and resumed by _setjmp and _longjmp, because
// swapcontext asks the kernel for the mask of signals each time, which took half of the time.
#undef _FORTIFY_SOURCE // which takes a jump to another stack for a fault
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <ucontext.h>
#include <vector>

#include "simt.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace
{

enum { STACK_NBYTES = 128 << 10, WARP = 32 };

struct thread {
    jmp_buf context;
    std::unique_ptr<char[]> stack; // null: not entered yet
    uint3 index;
    bool done, waiting; // waiting: at a barrier, which opens when all of its threads are
    bool in_warp;       // of which kind
    unsigned mask;
    uint64_t value;
};

std::vector<thread> threads;
std::vector<std::vector<uint64_t>> shared; // of warps: what their lanes gave
std::vector<char> dynamic;
jmp_buf scheduler;
size_t running, nthreads;
const std::function<void()> *kernel;
const char *kernel_name;
uint64_t random_state;

uint64_t draw()
{
    uint64_t z = random_state += 0x9E3779B97F4A7C15u; // splitmix64
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

void die(const char *what)
{
    fprintf(stderr, "simt: kernel %s, block %u,%u,%u, thread %u,%u,%u: %s\n", kernel_name,
            blockIdx.x, blockIdx.y, blockIdx.z, threads[running].index.x, threads[running].index.y,
            threads[running].index.z, what);
    abort();
}

// Until the scheduler resumes the running thread.
__attribute__((noinline)) void leave()
{
    if (!_setjmp(threads[running].context))
        _longjmp(scheduler, 1);
}

void thread_main()
{
    for (;;) { // once for each block
        (*kernel)();
        threads[running].done = true;
        leave();
    }
}

void give_way()
{
    threads[running].waiting = true;
    leave();
    threadIdx = threads[running].index;
}

// Until the thread, which is the running one, leaves.
__attribute__((noinline)) void resume(thread &t)
{
    static ucontext_t entry;

    if (_setjmp(scheduler))
        return;
    if (t.stack)
        _longjmp(t.context, 1);
    t.stack.reset(new char[STACK_NBYTES]);
    getcontext(&entry);
    entry.uc_stack.ss_sp = t.stack.get();
    entry.uc_stack.ss_size = STACK_NBYTES;
    entry.uc_link = nullptr;
    makecontext(&entry, thread_main, 0);
    setcontext(&entry);
}

void start(size_t i)
{
    thread &t = threads[i];
    t.index = {(unsigned)(i % blockDim.x), (unsigned)(i / blockDim.x % blockDim.y),
               (unsigned)(i / blockDim.x / blockDim.y)};
    t.done = t.waiting = t.in_warp = false;
}

// Opens what all have come to. False if nothing opened.
bool open_barriers()
{
    bool opened = false, whole = true;
    for (size_t i = 0; i < nthreads; i++)
        whole = whole && threads[i].waiting && !threads[i].in_warp;
    for (size_t i = 0; whole && i < nthreads; i++)
        threads[i].waiting = false;
    opened = whole;
    for (size_t first = 0; first < nthreads; first += WARP) {
        for (size_t i = first; i < first + WARP && i < nthreads; i++) {
            const unsigned mask = threads[i].mask;
            bool all = threads[i].waiting && threads[i].in_warp;
            for (size_t k = 0; all && k < WARP; k++)
                if (mask >> k & 1)
                    all = first + k < nthreads && threads[first + k].waiting &&
                          threads[first + k].in_warp && threads[first + k].mask == mask;
            for (size_t k = 0; all && k < WARP; k++)
                if (mask >> k & 1) {
                    threads[first + k].waiting = false;
                    shared[first / WARP][k] = threads[first + k].value;
                }
            opened = opened || all;
        }
    }
    return opened;
}

// From a thread drawn at random around, in one direction or the other.
size_t run_round()
{
    size_t nleft = 0, at = draw() % nthreads, step = draw() & 1 ? 1 : nthreads - 1;
    for (size_t n = 0; n < nthreads; n++, at = (at + step) % nthreads) {
        thread &t = threads[at];
        if (t.done)
            continue;
        nleft++;
        if (t.waiting)
            continue;
        running = at;
        threadIdx = t.index;
        resume(t);
    }
    return nleft;
}

bool any_can_run()
{
    for (size_t i = 0; i < nthreads; i++)
        if (!threads[i].done && !threads[i].waiting)
            return true;
    return false;
}

void run_block()
{
    for (size_t i = 0; i < nthreads; i++)
        start(i);
    while (run_round())
        while (!any_can_run()) {
            bool left = false;
            for (size_t i = 0; i < nthreads; i++)
                left = left || !threads[i].done;
            if (!left)
                return;
            if (!open_barriers())
                die("threads wait at barriers that others do not come to");
        }
}

} // namespace

void simt_barrier(void)
{
    threads[running].in_warp = false;
    give_way();
}

const uint64_t *simt_warp_exchange(unsigned mask, uint64_t mine)
{
    thread &t = threads[running];
    if (!(mask >> simt_lane() & 1))
        die("a lane calls with a mask that leaves it out");
    t.in_warp = true;
    t.mask = mask;
    t.value = mine;
    give_way();
    return shared[running / WARP].data();
}

void simt_warp_barrier(unsigned mask)
{
    simt_warp_exchange(mask, 0);
}

unsigned simt_lane(void)
{
    return (unsigned)(running % WARP);
}

void *simt_dynamic_shared(void)
{
    return dynamic.data();
}

void simt_run_kernel(dim3 grid, dim3 block, size_t nbytes, const char *name,
                     const std::function<void()> &body)
{
    static uint64_t nlaunches;
    const char *seed = getenv("SIMT_SEED");
    random_state = (seed ? strtoull(seed, nullptr, 10) : 0) + ++nlaunches * 1000003;
    kernel = &body;
    kernel_name = name;
    gridDim = grid;
    blockDim = block;
    nthreads = (size_t)block.x * block.y * block.z;
    if (threads.size() < nthreads)
        threads.resize(nthreads);
    shared.assign((nthreads + WARP - 1) / WARP, std::vector<uint64_t>(WARP));
    dynamic.assign(nbytes, (char)0xee); // not zeros
    for (blockIdx.z = 0; blockIdx.z < grid.z; blockIdx.z++)
        for (blockIdx.y = 0; blockIdx.y < grid.y; blockIdx.y++)
            for (blockIdx.x = 0; blockIdx.x < grid.x; blockIdx.x++)
                run_block();
}
