// SPDX-License-Identifier: Apache-2.0
// CUDA's runtime on the CPU: streams are lists of work that is done when somebody waits for it, and
// device memory is closed to the host while no work runs.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <sys/mman.h>
#include <vector>

#include "simt.h"

struct CUevent_st {
    uint64_t recorded, reached, nasked;
    bool timed;
    std::chrono::steady_clock::time_point time; // of the latest record that was reached
};

struct CUstream_st {
    struct work {
        std::function<void()> run;
        bool opens;        // device memory, while it runs
        cudaEvent_t until; // waits for this event's number
        uint64_t number;
    };
    std::deque<work> queue;
    bool busy;
    CUgraph_st *captured; // what is enqueued goes there instead; NULL: no capture
    bool captured_lost;   // it had something that a graph has not
};

struct CUgraph_st {
    std::vector<CUstream_st::work> all;
};

struct CUgraphExec_st {
    std::vector<CUstream_st::work> all;
};

namespace
{

const size_t PAGE = 4096, ARENA_NBYTES = (size_t)1 << 36;

std::recursive_mutex lock;
std::vector<cudaStream_t> streams;
struct CUstream_st default_stream;
cudaError_t device_error, launch_error, graph_error, lost;
simt_graph_counts graph_counts;
thread_local cudaError_t last_error;
thread_local cudaStream_t capturing; // which this thread captures
thread_local bool has_device;        // it chose one, or a call made the runtime choose the first
int nunchosen, capability = 90;      // 90: 9.0
std::chrono::duration<double> spent; // by work, next to what it took
int driver_version = CUDART_VERSION, nopen;
char *arena;
size_t arena_used;
std::map<char *, size_t> blocks;
std::map<char *, size_t> asked; // bytes of what cudaMalloc returned
std::multimap<size_t, char *> free_blocks;
std::map<char *, size_t> locked_blocks; // of the host

cudaError_t fail(cudaError_t error)
{
    last_error = error;
    return error;
}

// Of calls that make a context where the thread has none. After an error of the GPU all report it.
cudaError_t enter()
{
    nunchosen += !has_device;
    has_device = true;
    return lost ? fail(lost) : cudaSuccess;
}

// What the thread that captures may not do, by which its capture is lost.
cudaError_t refuse(cudaError_t error = cudaErrorStreamCaptureUnsupported)
{
    if (!capturing)
        return cudaSuccess;
    capturing->captured_lost = true;
    return fail(error);
}

void protect(int how)
{
    if (arena_used && mprotect(arena, arena_used, how)) {
        perror("simt: mprotect");
        abort();
    }
}

struct open_memory {
    open_memory()
    {
        if (nopen++ == 0)
            protect(PROT_READ | PROT_WRITE);
    }
    ~open_memory()
    {
        if (--nopen == 0)
            protect(PROT_NONE);
    }
};

// Its next work is there and waits for nothing.
bool can_run(cudaStream_t s)
{
    if (s->busy || s->queue.empty())
        return false;
    const CUstream_st::work &w = s->queue.front();
    return !w.until || w.until->reached >= w.number;
}

void run_one(cudaStream_t s)
{
    CUstream_st::work w = std::move(s->queue.front());
    s->queue.pop_front();
    s->busy = true;
    if (w.run && w.opens) {
        open_memory open;
        w.run();
    } else if (w.run) {
        w.run();
    }
    s->busy = false;
}

// The work that the event marks, wherever it is, and what it waits for.
void reach(cudaEvent_t event, uint64_t number)
{
    while (event->reached < number) {
        bool moved = false;
        for (size_t i = 0; i < streams.size() && event->reached < number; i++)
            if (can_run(streams[i])) {
                run_one(streams[i]);
                moved = true;
            }
        if (!moved) {
            fprintf(stderr, "simt: all streams wait for each other\n");
            abort();
        }
    }
}

// Its next work, after what that waits for.
void step(cudaStream_t s)
{
    const CUstream_st::work &w = s->queue.front();
    if (w.until)
        reach(w.until, w.number);
    run_one(s);
}

void drain(cudaStream_t s)
{
    while (!s->queue.empty()) {
        if (s->queue.front().until || !s->queue.front().opens) {
            step(s);
            continue;
        }
        open_memory open; // once for all that follow each other
        while (!s->queue.empty() && s->queue.front().opens && !s->queue.front().until)
            run_one(s);
    }
}

cudaStream_t of(cudaStream_t s)
{
    return s ? s : &default_stream;
}

void enqueue(cudaStream_t s, bool opens, std::function<void()> run)
{
    std::lock_guard<std::recursive_mutex> guard(lock);
    CUgraph_st *captured = of(s)->captured;
    if (!s && refuse())
        return;
    if (!captured)
        of(s)->queue.push_back({std::move(run), opens, nullptr, 0});
    else if (of(s)->captured_lost)
        fail(cudaErrorStreamCaptureInvalidated);
    else
        captured->all.push_back({std::move(run), opens, nullptr, 0});
}

bool on_device(const void *ptr)
{
    return arena && (const char *)ptr >= arena && (const char *)ptr < arena + ARENA_NBYTES;
}

} // namespace

extern "C" {

const char *cudaGetErrorName(cudaError_t error)
{
    switch (error) {
    case cudaSuccess:
        return "cudaSuccess";
    case cudaErrorMemoryAllocation:
        return "cudaErrorMemoryAllocation";
    case cudaErrorIllegalAddress:
        return "cudaErrorIllegalAddress";
    case cudaErrorLaunchFailure:
        return "cudaErrorLaunchFailure";
    default:
        return "cudaError";
    }
}

const char *cudaGetErrorString(cudaError_t error)
{
    switch (error) {
    case cudaSuccess:
        return "no error";
    case cudaErrorMemoryAllocation:
        return "out of memory";
    case cudaErrorIllegalAddress:
        return "an illegal memory access was encountered";
    case cudaErrorLaunchFailure:
        return "unspecified launch failure";
    default:
        return "an error";
    }
}

cudaError_t cudaPeekAtLastError(void)
{
    return last_error;
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = driver_version;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *ndevices)
{
    *ndevices = device_error ? 0 : 1;
    return device_error;
}

cudaError_t cudaSetDevice(int device)
{
    has_device = true;
    return device == 0 ? cudaSuccess : fail(cudaErrorInvalidDevice);
}

cudaError_t cudaGetDevice(int *device)
{
    *device = 0;
    return cudaSuccess;
}

void simt_set_capability(int value)
{
    capability = value;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int device)
{
    (void)device;
    *value = attr == cudaDevAttrComputeCapabilityMajor   ? capability / 10
             : attr == cudaDevAttrComputeCapabilityMinor ? capability % 10
             : attr == cudaDevAttrMultiProcessorCount    ? 4
                                                         : 0;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *props, int device)
{
    (void)device;
    *props = {};
    snprintf(props->name, sizeof props->name, "emulated");
    props->multiProcessorCount = 4;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *nfree, size_t *total)
{
    *nfree = 3;
    *total = 10;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

/* ---- memory ---------------------------------------------------------------------------------- */

cudaError_t cudaMalloc(void **ptr, size_t nbytes)
{
    if (refuse())
        return last_error;
    std::lock_guard<std::recursive_mutex> guard(lock);
    const size_t rounded = (nbytes + PAGE - 1) / PAGE * PAGE + PAGE; // a closed page behind it
    if (!arena) {
        void *all = mmap(nullptr, ARENA_NBYTES, PROT_NONE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (all == MAP_FAILED)
            return fail(cudaErrorMemoryAllocation);
        arena = (char *)all;
        // All of it is opened and closed for each launch: that takes as long as it has pages.
        madvise(all, ARENA_NBYTES, MADV_HUGEPAGE);
    }
    auto reuse = free_blocks.lower_bound(rounded);
    char *block = arena + arena_used;
    size_t size = rounded;
    if (reuse != free_blocks.end()) {
        block = reuse->second;
        size = reuse->first;
        free_blocks.erase(reuse);
    } else if (rounded > ARENA_NBYTES - arena_used) {
        return fail(cudaErrorMemoryAllocation);
    } else {
        arena_used += rounded;
    }
    blocks[block] = size;
    // Off by less than a page, as CUDA's alignment is 256 bytes.
    *ptr = block + 256;
    asked[block + 256] = nbytes;
    open_memory open;
    memset(block, 0xcd, size);
    return cudaSuccess;
}

cudaError_t cudaFree(void *ptr)
{
    if (refuse())
        return last_error;
    std::lock_guard<std::recursive_mutex> guard(lock);
    if (!ptr)
        return cudaSuccess;
    auto at = blocks.find((char *)ptr - 256);
    if (at == blocks.end())
        return fail(cudaErrorInvalidValue);
    cudaDeviceSynchronize();
    free_blocks.insert({at->second, at->first});
    blocks.erase(at);
    asked.erase((char *)ptr);
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **ptr, size_t nbytes, unsigned flags)
{
    if (refuse())
        return last_error;
    (void)flags;
    std::lock_guard<std::recursive_mutex> guard(lock);
    const size_t rounded = (nbytes + PAGE - 1) / PAGE * PAGE;
    *ptr = aligned_alloc(PAGE, rounded);
    if (!*ptr)
        return fail(cudaErrorMemoryAllocation);
    locked_blocks[(char *)*ptr] = rounded;
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *ptr)
{
    if (refuse())
        return last_error;
    std::lock_guard<std::recursive_mutex> guard(lock);
    cudaDeviceSynchronize();
    locked_blocks.erase((char *)ptr);
    free(ptr);
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *ptr, int value, size_t nbytes, cudaStream_t stream)
{
    enqueue(stream, true, [=]() { memset(ptr, value, nbytes); });
    return cudaSuccess;
}

cudaError_t cudaMemset(void *ptr, int value, size_t nbytes)
{
    if (refuse())
        return last_error;
    return cudaMemsetAsync(ptr, value, nbytes, nullptr);
}

// From memory that is not page-locked CUDA copies before it returns; here all host memory is taken
// for page-locked, which must stay as it is until the copy ran: the stricter of the two.
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t nbytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    (void)kind;
    enqueue(stream, on_device(dst) || on_device(src), [=]() { memmove(dst, src, nbytes); });
    return cudaSuccess;
}

cudaError_t cudaMemcpy2DAsync(void *dst, size_t dst_pitch, const void *src, size_t src_pitch,
                              size_t width, size_t height, enum cudaMemcpyKind kind,
                              cudaStream_t stream)
{
    (void)kind;
    if (dst_pitch < width || src_pitch < width || dst_pitch > INT32_MAX || src_pitch > INT32_MAX)
        return cudaErrorInvalidValue;
    enqueue(stream, on_device(dst) || on_device(src), [=]() {
        for (size_t i = 0; i < height; i++)
            memcpy((char *)dst + i * dst_pitch, (const char *)src + i * src_pitch, width);
    });
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *dst, const void *src, size_t nbytes, enum cudaMemcpyKind kind)
{
    if (refuse())
        return last_error;
    cudaMemcpyAsync(dst, src, nbytes, kind, nullptr);
    return cudaStreamSynchronize(nullptr);
}

/* ---- streams and events ---------------------------------------------------------------------- */

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority)
{
    std::lock_guard<std::recursive_mutex> guard(lock);
    (void)flags;
    (void)priority;
    if (streams.empty())
        streams.push_back(&default_stream);
    *stream = new CUstream_st();
    streams.push_back(*stream);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    if (refuse())
        return last_error;
    std::lock_guard<std::recursive_mutex> guard(lock);
    if (enter())
        return lost;
    drain(of(stream));
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    std::lock_guard<std::recursive_mutex> guard(lock);
    drain(stream);
    for (size_t i = 0; i < streams.size(); i++)
        if (streams[i] == stream)
            streams.erase(streams.begin() + (long)i);
    delete stream;
    return cudaSuccess;
}

// Asking moves it on by one.
cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    if (refuse())
        return last_error;
    std::lock_guard<std::recursive_mutex> guard(lock);
    if (enter())
        return lost;
    cudaStream_t s = of(stream);
    if (s->queue.empty())
        return cudaSuccess;
    if (!s->busy)
        step(s);
    return fail(cudaErrorNotReady);
}

cudaError_t cudaDeviceSynchronize(void)
{
    if (refuse())
        return last_error;
    std::lock_guard<std::recursive_mutex> guard(lock);
    drain(&default_stream);
    for (size_t i = 0; i < streams.size(); i++)
        drain(streams[i]);
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    *event = new CUevent_st();
    (*event)->timed = !(flags & cudaEventDisableTiming);
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    std::lock_guard<std::recursive_mutex> guard(lock);
    cudaDeviceSynchronize();
    delete event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    std::lock_guard<std::recursive_mutex> guard(lock);
    if (of(stream)->captured && refuse())
        return last_error;
    if (enter())
        return lost;
    const uint64_t number = ++event->recorded;
    enqueue(stream, false, [=]() {
        event->reached = number;
        event->time = std::chrono::steady_clock::now() +
                      std::chrono::duration_cast<std::chrono::steady_clock::duration>(spent);
    });
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    std::lock_guard<std::recursive_mutex> guard(lock);
    (void)flags;
    if (of(stream)->captured && refuse(cudaErrorStreamCaptureIsolation))
        return last_error;
    if (enter())
        return lost;
    of(stream)->queue.push_back({nullptr, false, event, event->recorded});
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    if (refuse())
        return last_error;
    std::lock_guard<std::recursive_mutex> guard(lock);
    if (enter())
        return lost;
    if (event->reached >= event->recorded)
        return cudaSuccess;
    if (++event->nasked % 8 == 0) // whoever polls must come through in the end
        for (size_t i = 0; i < streams.size(); i++)
            if (can_run(streams[i]))
                run_one(streams[i]);
    return fail(cudaErrorNotReady); // the thread's last error, too, as CUDA has it
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    if (refuse())
        return last_error;
    std::lock_guard<std::recursive_mutex> guard(lock);
    reach(event, event->recorded);
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end)
{
    std::lock_guard<std::recursive_mutex> guard(lock);
    if (!begin->timed || !end->timed)
        return fail(cudaErrorInvalidValue);
    if (begin->reached < begin->recorded || end->reached < end->recorded)
        return fail(cudaErrorNotReady);
    *ms = std::chrono::duration<float, std::milli>(end->time - begin->time).count();
    return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *arg)
{
    enqueue(stream, false, [=]() { fn(arg); });
    return cudaSuccess;
}

/* ---- graphs ---------------------------------------------------------------------------------- */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    std::lock_guard<std::recursive_mutex> guard(lock);
    if (enter())
        return lost;
    if (!stream || stream->captured || capturing || mode != cudaStreamCaptureModeThreadLocal)
        return fail(cudaErrorStreamCaptureUnsupported);
    stream->captured = new CUgraph_st();
    stream->captured_lost = false;
    capturing = stream;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    std::lock_guard<std::recursive_mutex> guard(lock);
    *graph = nullptr;
    if (!stream || capturing != stream)
        return fail(cudaErrorInvalidValue);
    *graph = stream->captured;
    stream->captured = nullptr;
    capturing = nullptr;
    if (!stream->captured_lost)
        return cudaSuccess;
    delete *graph;
    *graph = nullptr;
    return fail(cudaErrorStreamCaptureInvalidated);
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *exec, cudaGraph_t graph,
                                          unsigned long long flags)
{
    std::lock_guard<std::recursive_mutex> guard(lock);
    (void)flags;
    if (refuse())
        return last_error;
    if (graph_error)
        return fail(graph_error);
    *exec = new CUgraphExec_st{graph->all};
    graph_counts.there++;
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    std::lock_guard<std::recursive_mutex> guard(lock);
    if (enter())
        return lost;
    if (refuse()) // which a GPU takes, as a graph in the graph
        return last_error;
    for (const CUstream_st::work &w : exec->all)
        of(stream)->queue.push_back(w);
    graph_counts.launched++;
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    delete graph;
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    std::lock_guard<std::recursive_mutex> guard(lock);
    delete exec;
    graph_counts.there--;
    return cudaSuccess;
}

/* ---- beyond CUDA ----------------------------------------------------------------------------- */

void simt_call(cudaStream_t stream, void (*fn)(void *arg), const void *arg, size_t arg_nbytes)
{
    std::vector<char> copy((const char *)arg, (const char *)arg + arg_nbytes);
    enqueue(stream, true, [=]() mutable { fn(copy.data()); });
}

void simt_spend(double seconds)
{
    spent += std::chrono::duration<double>(seconds);
}

void simt_set_device(cudaError_t error, int version)
{
    device_error = error;
    driver_version = version;
}

void simt_fail_launch(cudaError_t error)
{
    launch_error = error;
}

void simt_lose_gpu(cudaError_t error)
{
    lost = error;
}

void simt_check_pointer(const void *ptr, const char *what)
{
    std::lock_guard<std::recursive_mutex> guard(lock);
    auto after = locked_blocks.upper_bound((char *)ptr);
    if (!ptr || on_device(ptr) ||
        (after != locked_blocks.begin() &&
         (const char *)ptr < std::prev(after)->first + std::prev(after)->second))
        return;
    fprintf(stderr, "simt: %s was given memory of the host\n", what);
    abort();
}

void simt_fail_graphs(cudaError_t error)
{
    graph_error = error;
}

struct simt_graph_counts simt_graphs(void)
{
    return graph_counts;
}

int simt_unchosen(void)
{
    return nunchosen;
}

} // extern "C"

bool simt_find_memory(uint64_t address, uint64_t *lo, uint64_t *hi)
{
    for (const std::map<char *, size_t> *all : {&asked, &locked_blocks}) {
        const auto after = all->upper_bound((char *)address);
        if (after == all->begin())
            continue;
        const auto block = std::prev(after);
        if (address - (uint64_t)block->first < block->second) {
            *lo = (uint64_t)block->first;
            *hi = *lo + block->second;
            return true;
        }
    }
    return false;
}

void simt_launch_body(dim3 grid, dim3 block, size_t nbytes, cudaStream_t stream, const char *name,
                      std::function<void()> body, const void *kernel, std::vector<char> arguments)
{
    const size_t nthreads = (size_t)block.x * block.y * block.z;
    if (launch_error || !nthreads || nthreads > 1024 || !grid.x || !grid.y || !grid.z ||
        grid.y > 65535 || grid.z > 65535 || nbytes > 227 << 10) {
        fail(launch_error ? launch_error : cudaErrorInvalidValue);
        launch_error = cudaSuccess;
        return;
    }
    enqueue(stream, true, [=]() {
        if (!simt_has_ptx() || !simt_run_ptx(grid, block, nbytes, name, kernel, arguments))
            simt_run_kernel(grid, block, nbytes, name, body);
    });
}
