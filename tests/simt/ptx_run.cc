// SPDX-License-Identifier: Apache-2.0
// Runs nvcc's PTX in place of the bodies of kernels, where SIMT_PTX names files of it. A thread
// runs to its next barrier, or exchange with its warp, and then a thread drawn at random is next.
// What would be undefined on a GPU ends the process: memory outside of allocations, addresses that
// are not aligned, registers and shared memory that are read before they are written, and two
// accesses of shared memory by different threads, one of them a write, that no barrier orders.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <numeric>
#include <set>
#include <sstream>
#include <unistd.h>

#include "fsdp/base.h"
#include "ptx.h"
#include "simt.h"

using namespace ptx;

namespace
{

enum { WARP = 32 };
enum state { READY, AT_BARRIER, AT_WARP, DONE };

struct thread {
    int at; // the next instruction, or the one that it waits in
    state now;
    unsigned mask; // of lanes that it waits for
};

// What happened to a granule of shared memory, and between which barriers.
const int NOBODY = -1, MANY_WARPS = -2, MANY_LANES = -3 /* less the warp */;
struct touched {
    int writer, reader; // threads, or one of these
    unsigned write_epoch, write_warp_epoch, read_epoch, read_warp_epoch;
};

std::unique_ptr<module> loaded;
std::set<const entry *> finished;
std::map<const entry *, uint64_t> ninstructions; // that threads executed, in finished launches
uint64_t ninstructions_run;                      // in this one

// The launch, and its current block.
const entry *e;
dim3 grid_size, block_size;
uint3 block_at;
int nthreads;
std::vector<char> params, shared, local;
std::vector<touched> shadow;
std::vector<uint64_t> registers;
std::vector<uint8_t> written;
std::vector<thread> threads;
unsigned epoch;
std::vector<unsigned> warp_epoch;
int running;
uint64_t random_state, nlaunches;

uint64_t draw()
{
    uint64_t z = random_state += 0x9E3779B97F4A7C15u; // splitmix64
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

[[noreturn]] void die(const instruction &i, const std::string &what)
{
    fprintf(
        stderr,
        "ptx: kernel %s (%s), block %u,%u,%u of %u,%u,%u, thread %d of %d, %s:%d, line %d of the "
        "PTX: %s: %s\n",
        e->name.c_str(), e->arch.c_str(), block_at.x, block_at.y, block_at.z, grid_size.x,
        grid_size.y, grid_size.z, running, nthreads, i.file.c_str(), i.line, i.ptx_line,
        i.text.c_str(), what.c_str());
    abort();
}

std::string text(const char *format, uint64_t a, uint64_t b = 0)
{
    char out[160];
    snprintf(out, sizeof out, format, (unsigned long long)a, (unsigned long long)b);
    return out;
}

// ---- memory

// Has a thread that touched it before come to a barrier since, as this one has?
bool is_ordered(int other, unsigned when, unsigned warp_when)
{
    const int warp = running / WARP;
    if (other == NOBODY || when != epoch || other == running)
        return true;
    return (other >= 0 ? other / WARP == warp : other == MANY_LANES - warp) &&
           warp_when < warp_epoch[(size_t)warp];
}

void touch_shared(const instruction &i, uint64_t at, uint64_t nbytes, bool write)
{
    const int warp = running / WARP;
    const unsigned now = warp_epoch[(size_t)warp];
    const uint64_t granule = (uint64_t)e->granule;
    for (uint64_t k = at / granule; k < (at + nbytes) / granule; k++) {
        touched &s = shadow[k];
        if (!write && s.writer == NOBODY)
            die(i, text("shared memory at %llu is not written yet", k * granule));
        if (!is_ordered(s.writer, s.write_epoch, s.write_warp_epoch))
            die(i, text("a race in shared memory at %llu with thread %llu, which wrote it",
                        k * granule, (uint64_t)s.writer));
        if (write) {
            if (!is_ordered(s.reader, s.read_epoch, s.read_warp_epoch))
                die(i,
                    text("a race in shared memory at %llu with threads that read it", k * granule));
            s.writer = running, s.write_epoch = epoch, s.write_warp_epoch = now;
            s.reader = NOBODY;
            continue;
        }
        if (s.read_epoch != epoch || s.reader == NOBODY)
            s.reader = running;
        else if (s.reader != running && s.reader != MANY_WARPS)
            s.reader = (s.reader >= 0 ? s.reader / WARP == warp : s.reader == MANY_LANES - warp)
                           ? MANY_LANES - warp
                           : MANY_WARPS;
        s.read_epoch = epoch, s.read_warp_epoch = now;
    }
}

// The host's address of memory that the running thread accesses.
char *access(const instruction &i, uint64_t address, uint64_t nbytes, bool write)
{
    space where = i.where;
    if (address % nbytes)
        die(i, text("the address 0x%llx is not a multiple of %llu", address, nbytes));
    if (where == GENERIC) {
        const uint64_t window = address & ~(WINDOW - 1);
        where = window == SHARED_WINDOW  ? SHARED
                : window == LOCAL_WINDOW ? LOCAL
                : window == PARAM_WINDOW ? PARAM
                                         : GLOBAL;
        address = where == GLOBAL ? address : address & (WINDOW - 1);
    }
    switch (where) {
    case SHARED:
        if (address > shared.size() || nbytes > shared.size() - address)
            die(i,
                text("%llu is outside of the %llu bytes of shared memory", address, shared.size()));
        touch_shared(i, address, nbytes, write);
        return shared.data() + address;
    case LOCAL:
        if (address > e->local_nbytes || nbytes > e->local_nbytes - address)
            die(i, text("%llu is outside of the %llu bytes of local memory", address,
                        e->local_nbytes));
        return local.data() + (size_t)running * e->local_nbytes + address;
    case PARAM:
        if (address > params.size() || nbytes > params.size() - address || write)
            die(i, text("%llu is outside of the %llu bytes of arguments", address, params.size()));
        return params.data() + address;
    default:
        break;
    }
    if (i.launch != nlaunches || address < i.lo || address >= i.hi || nbytes > i.hi - address) {
        i.launch = nlaunches;
        const auto after = loaded->ranges.upper_bound(address);
        if (after != loaded->ranges.begin() && address < std::prev(after)->second)
            i.lo = std::prev(after)->first, i.hi = std::prev(after)->second;
        else if (!simt_find_memory(address, &i.lo, &i.hi))
            i.lo = 1, i.hi = 0;
        if (address < i.lo || address >= i.hi || nbytes > i.hi - address)
            die(i, text("0x%llx, %llu bytes, is outside of all allocations", address, nbytes));
    }
    return (char *)address;
}

// ---- instructions of one thread

void load(const instruction &i, uint64_t *r, uint8_t *w)
{
    const size_t each = (size_t)i.nbytes;
    const char *from = access(i, r[i.in[0]] + (uint64_t)i.offset, each * i.list.size(), false);
    for (const int out : i.list) {
        uint64_t x = 0;
        memcpy(&x, from, each);
        if (i.is_signed && each < 8) {
            const unsigned unused = 64 - 8 * (unsigned)each;
            x = (uint64_t)((int64_t)(x << unused) >> unused);
            x = e->width[(size_t)out] < 64 ? x & (((uint64_t)1 << e->width[(size_t)out]) - 1) : x;
        }
        r[out] = x;
        w[out] = 1;
        from += each;
    }
}

void store(const instruction &i, const uint64_t *r, const uint8_t *w)
{
    const size_t each = (size_t)i.nbytes;
    char *to = access(i, r[i.in[0]] + (uint64_t)i.offset, each * i.list.size(), true);
    for (const int in : i.list) {
        if (!w[in])
            die(i, "a register is not written yet");
        memcpy(to, &r[in], each);
        to += each;
    }
}

void update(const instruction &i, uint64_t *r, uint8_t *w)
{
    char *memory = access(i, r[i.in[0]] + (uint64_t)i.offset, (uint64_t)i.nbytes, true);
    uint64_t old = 0;
    memcpy(&old, memory, (size_t)i.nbytes);
    const uint64_t now = i.compute(old, r[i.in[1]], 0, 0);
    memcpy(memory, &now, (size_t)i.nbytes);
    r[i.out[0]] = old;
    w[i.out[0]] = 1;
}

void pack(const instruction &i, uint64_t *r, uint8_t *w)
{
    const unsigned width = 8 * (unsigned)i.nbytes;
    uint64_t all = 0;
    for (size_t k = 0; k < i.list.size(); k++) {
        if (!w[i.list[k]])
            die(i, "a register is not written yet");
        all |= (r[i.list[k]] & (((uint64_t)1 << width) - 1)) << (width * k);
    }
    r[i.out[0]] = all;
    w[i.out[0]] = 1;
}

void unpack(const instruction &i, uint64_t *r, uint8_t *w)
{
    const unsigned width = 8 * (unsigned)i.nbytes;
    for (size_t k = 0; k < i.list.size(); k++) {
        r[i.list[k]] = r[i.in[0]] >> (width * k) & (((uint64_t)1 << width) - 1);
        w[i.list[k]] = 1;
    }
}

// Until it waits or has ended.
void run_thread(int t)
{
    const size_t nslots = e->first_value.size();
    uint64_t *r = registers.data() + (size_t)t * nslots;
    uint8_t *w = written.data() + (size_t)t * nslots;
    const instruction *code = e->code.data();
    int at = threads[(size_t)t].at;
    running = t;
    for (;; ninstructions_run++) {
        const instruction &i = code[at++];
        if (i.predicate) {
            if (!w[i.predicate])
                die(i, "the predicate is not written yet");
            if ((r[i.predicate] != 0) == i.negated)
                continue;
        }
        if (!(w[i.in[0]] & w[i.in[1]] & w[i.in[2]] & w[i.in[3]]))
            die(i, "a register is not written yet");
        switch (i.what) {
        case COMPUTE:
            r[i.out[0]] = i.compute(r[i.in[0]], r[i.in[1]], r[i.in[2]], r[i.in[3]]);
            w[i.out[0]] = 1;
            break;
        case PACK:
            pack(i, r, w);
            break;
        case UNPACK:
            unpack(i, r, w);
            break;
        case LOAD:
            load(i, r, w);
            break;
        case STORE:
            store(i, r, w);
            break;
        case ATOMIC:
            update(i, r, w);
            break;
        case BRANCH:
            at = i.target;
            break;
        case BRANCH_TABLE:
            if (r[i.in[0]] >= i.list.size())
                die(i, "the index is outside of the table");
            at = i.list[r[i.in[0]]];
            break;
        case CALL:
            r[i.out[0]] = (uint64_t)at;
            at = i.target;
            break;
        case COPY: {
            char *mine = local.data() + (size_t)t * e->local_nbytes;
            memcpy(mine + i.offset, mine + i.target, (size_t)i.nbytes);
            break;
        }
        case RETURN:
            if (i.target) {
                at = (int)r[i.in[0]];
                break;
            }
            threads[(size_t)t].now = DONE;
            return;
        case NOTHING:
            break;
        case BARRIER:
            threads[(size_t)t].at = at - 1;
            threads[(size_t)t].now = AT_BARRIER;
            return;
        case WARP_BARRIER:
        case SHUFFLE:
        case VOTE:
        case MATRIX_LOAD:
        case MATRIX_STORE:
        case MATRIX_MULTIPLY: {
            const uint64_t mask = i.what == WARP_BARRIER ? r[i.in[0]]
                                  : i.what == SHUFFLE    ? r[i.in[3]]
                                  : i.what == VOTE       ? r[i.in[1]]
                                                         : 0xffffffffu;
            if (!(mask >> (t % WARP) & 1))
                die(i, "a lane comes with a mask that leaves it out");
            threads[(size_t)t].mask = (unsigned)mask;
            threads[(size_t)t].at = at - 1;
            threads[(size_t)t].now = AT_WARP;
            return;
        }
        case UNKNOWN:
            die(i, "the instruction is not known");
        }
    }
}

// ---- instructions of a warp: `lanes` begin at its first thread

uint64_t *registers_of(int t)
{
    return registers.data() + (size_t)t * e->first_value.size();
}
uint8_t *written_of(int t)
{
    return written.data() + (size_t)t * e->first_value.size();
}

unsigned lane_for(const instruction &i, unsigned lane, const uint64_t *r, bool *inside)
{
    const unsigned by = (unsigned)r[i.in[1]] & 31, clamp = (unsigned)r[i.in[2]] & 31,
                   segment = (unsigned)r[i.in[2]] >> 8 & 31;
    const unsigned most = (lane & segment) | (clamp & ~segment), least = lane & segment;
    unsigned from = lane;
    switch (i.target) {
    case UP:
        from = lane - by;
        *inside = (int)from >= (int)most;
        break;
    case DOWN:
        from = lane + by;
        *inside = from <= most;
        break;
    case BUTTERFLY:
        from = lane ^ by;
        *inside = from <= most;
        break;
    default:
        from = least | (by & ~segment);
        *inside = from <= most;
    }
    return *inside ? from : lane;
}

void exchange(const instruction &i, int first, unsigned mask)
{
    uint64_t given[WARP];
    unsigned votes = 0;
    for (int k = 0; k < WARP; k++)
        if (mask >> k & 1) {
            given[k] = registers_of(first + k)[i.in[0]];
            votes |= (unsigned)((given[k] != 0) != i.is_signed) << k;
        }
    for (int k = 0; k < WARP; k++) {
        if (!(mask >> k & 1))
            continue;
        uint64_t *r = registers_of(first + k);
        uint8_t *w = written_of(first + k);
        running = first + k;
        if (i.what == SHUFFLE) {
            bool inside;
            const unsigned from = lane_for(i, (unsigned)k, r, &inside);
            if (!(mask >> from & 1))
                die(i, "the value of a lane that is not there");
            r[i.out[0]] = given[from];
            if (i.out[1])
                r[i.out[1]] = inside, w[i.out[1]] = 1;
        } else {
            r[i.out[0]] = i.target == BALLOT ? votes : i.target == ANY ? votes != 0 : votes == mask;
        }
        w[i.out[0]] = 1;
    }
}

// Which element of a 16 x 16 matrix is in which register of which lane is not defined; here each
// lane has eight of one row. Elements of 16 bits are two to a register, or, of fp16, one of them.
float element_of(const instruction &i, int first, size_t begin, int row, int col, bool narrow)
{
    const int lane = row * 2 + col / 8;
    const size_t n = (size_t)col % 8;
    const uint64_t *r = registers_of(first + lane);
    if (!narrow) {
        float x;
        memcpy(&x, &r[i.list[begin + n]], sizeof x);
        return x;
    }
    return i.is_bf16 ? float_of_bf16((uint16_t)(r[i.list[begin + n / 2]] >> (n % 2 * 16)))
                     : fsdp_f16_to_f32((uint16_t)r[i.list[begin + n]]);
}

void multiply(const instruction &i, int first)
{
    const size_t each = i.is_bf16 ? 4 : 8;
    float a[16][16], b[16][16], d[16][16];
    for (int t = first; t < first + WARP; t++)
        for (size_t k = 8; k < i.list.size(); k++)
            if (!written_of(t)[i.list[k]])
                running = t, die(i, "a register is not written yet");
    for (int row = 0; row < 16; row++)
        for (int col = 0; col < 16; col++) {
            a[row][col] = element_of(i, first, 8, row, col, true);
            b[row][col] = element_of(i, first, 8 + each, row, col, true);
            d[row][col] = element_of(i, first, 8 + 2 * each, row, col, false);
        }
    for (int row = 0; row < 16; row++)
        for (int col = 0; col < 16; col++) {
            for (int k = 0; k < 16; k++)
                d[row][col] += a[row][k] * b[k][col];
            const int lane = row * 2 + col / 8, slot = i.list[(size_t)col % 8];
            uint32_t bits;
            memcpy(&bits, &d[row][col], sizeof bits);
            registers_of(first + lane)[slot] = bits;
            written_of(first + lane)[slot] = 1;
        }
}

void move_matrix(const instruction &i, int first)
{
    const uint64_t nbytes = (uint64_t)i.nbytes;
    for (int lane = 0; lane < WARP; lane++) {
        uint64_t *r = registers_of(first + lane);
        uint8_t *w = written_of(first + lane);
        const uint64_t base = r[i.in[0]] + (uint64_t)i.offset, ld = r[i.in[1]] & 0xffffffffu;
        running = first + lane;
        if (base % 32 || ld * nbytes % 16)
            die(i, text("a matrix at 0x%llx with rows of %llu elements is not aligned", base, ld));
        if (base != registers_of(first)[i.in[0]] + (uint64_t)i.offset)
            die(i, "lanes give different addresses");
        for (unsigned n = 0; n < 8; n++) {
            const unsigned row = (unsigned)lane / 2, col = (unsigned)lane % 2 * 8 + n;
            const uint64_t at = i.by_columns ? col * ld + row : row * ld + col;
            char *memory = access(i, base + at * nbytes, nbytes, i.what == MATRIX_STORE);
            const int slot = i.list[nbytes == 2 && i.is_bf16 ? n / 2 : n];
            if (i.what == MATRIX_STORE) {
                if (!w[slot])
                    die(i, "a register is not written yet");
                memcpy(memory, &r[slot], nbytes);
                continue;
            }
            uint64_t x = 0;
            memcpy(&x, memory, nbytes);
            if (nbytes == 2 && i.is_bf16)
                r[slot] = n % 2 ? r[slot] | x << 16 : x;
            else
                r[slot] = nbytes == 2 ? x | x << 16 : x;
            w[slot] = 1;
        }
    }
}

bool covers_warp(unsigned mask, int first)
{
    for (int k = 0; k < WARP && first + k < nthreads; k++)
        if (!(mask >> k & 1) && threads[(size_t)(first + k)].now != DONE)
            return false;
    return true;
}

void run_warp(const instruction &i, int first, unsigned mask)
{
    // A barrier of some lanes orders those alone; none of the kernels needs that, so it orders
    // nothing.
    if (i.what == WARP_BARRIER)
        warp_epoch[(size_t)(first / WARP)] += covers_warp(mask, first);
    else if (i.what == SHUFFLE || i.what == VOTE)
        exchange(i, first, mask);
    else if (i.what == MATRIX_MULTIPLY)
        multiply(i, first);
    else
        move_matrix(i, first);
}

// ---- the block

const instruction &waits_in(int t)
{
    return e->code[(size_t)threads[(size_t)t].at];
}

// Whether all lanes of thread t's mask wait for each other. Whole fragments are for one
// instruction; so are other exchanges here, which would be right at several, but of which nvcc
// makes none.
bool is_complete(int t, int first)
{
    const thread &own = threads[(size_t)t];
    for (int k = 0; k < WARP; k++) {
        if (!(own.mask >> k & 1))
            continue;
        if (first + k >= nthreads)
            return false;
        const thread &other = threads[(size_t)(first + k)];
        if (other.now != AT_WARP || other.mask != own.mask)
            return false;
        if (other.at != own.at &&
            (waits_in(t).what != WARP_BARRIER || waits_in(first + k).what != WARP_BARRIER))
            running = first + k, die(waits_in(t), "lanes of a warp are at different instructions");
    }
    return true;
}

bool open_warp(int first)
{
    bool opened = false;
    for (int t = first; t < first + WARP && t < nthreads; t++) {
        const unsigned mask = threads[(size_t)t].mask;
        if (threads[(size_t)t].now != AT_WARP || !is_complete(t, first))
            continue;
        run_warp(waits_in(t), first, mask);
        for (int k = 0; k < WARP; k++)
            if (mask >> k & 1) {
                threads[(size_t)(first + k)].at++;
                threads[(size_t)(first + k)].now = READY;
            }
        opened = true;
    }
    return opened;
}

bool open_barrier()
{
    for (int t = 0; t < nthreads; t++)
        if (threads[(size_t)t].now != AT_BARRIER)
            return false;
    for (int t = 0; t < nthreads; t++) {
        if (threads[(size_t)t].at != threads[(size_t)(t / WARP * WARP)].at)
            running = t, die(waits_in(t), "lanes of a warp are at different barriers");
        threads[(size_t)t].now = READY;
    }
    for (int t = 0; t < nthreads; t++)
        threads[(size_t)t].at++;
    epoch++;
    return true;
}

void start_block()
{
    const size_t nslots = e->first_value.size();
    const auto set = [&](uint64_t *r, int slot, unsigned x) {
        if (slot)
            r[slot] = x;
    };
    for (int t = 0; t < nthreads; t++) {
        uint64_t *r = registers_of(t);
        memcpy(r, e->first_value.data(), nslots * sizeof *r);
        memcpy(written_of(t), e->first_written.data(), nslots);
        set(r, e->thread_x, (unsigned)t % block_size.x);
        set(r, e->thread_y, (unsigned)t / block_size.x % block_size.y);
        set(r, e->thread_z, (unsigned)t / block_size.x / block_size.y);
        set(r, e->size_x, block_size.x), set(r, e->size_y, block_size.y);
        set(r, e->size_z, block_size.z);
        set(r, e->block_x, block_at.x), set(r, e->block_y, block_at.y);
        set(r, e->block_z, block_at.z);
        set(r, e->grid_x, grid_size.x), set(r, e->grid_y, grid_size.y);
        set(r, e->grid_z, grid_size.z);
        set(r, e->lane, (unsigned)t % WARP);
        threads[(size_t)t] = {0, READY, 0};
    }
    memset(shared.data(), 0xee, shared.size());
    memset(local.data(), 0xee, local.size());
    shadow.assign(shared.size() / (size_t)e->granule + 1, {NOBODY, NOBODY, 0, 0, 0, 0});
    warp_epoch.assign((size_t)(nthreads + WARP - 1) / WARP, 1);
    epoch = 1;
}

void run_block()
{
    start_block();
    for (;;) {
        // All that can run, in an order drawn at random.
        const int from = (int)(draw() % (uint64_t)nthreads);
        int step = (int)(draw() % (uint64_t)nthreads) | 1, nleft = 0;
        while (std::gcd(step, nthreads) != 1)
            step++;
        for (int n = 0, t = from; n < nthreads; n++, t = (t + step) % nthreads) {
            if (threads[(size_t)t].now == READY)
                run_thread(t);
            nleft += threads[(size_t)t].now != DONE;
        }
        if (!nleft)
            return;
        bool opened = open_barrier();
        for (int first = 0; first < nthreads; first += WARP)
            opened = open_warp(first) || opened;
        for (int t = 0; !opened && t < nthreads; t++)
            if (threads[(size_t)t].now != DONE)
                running = t, die(waits_in(t), "threads wait here for others that do not come");
    }
}

// ---- which entry a kernel is

void read_files(module &into, const char *files)
{
    std::stringstream all(files);
    for (std::string path; std::getline(all, path, ' ');)
        if (!path.empty())
            read_file(into, path);
}

// The body of an entry, all instructions of which must be known.
void read_known(entry &of)
{
    if (!of.from)
        return;
    read_whole(of);
    for (const instruction &i : of.code)
        if (i.what == UNKNOWN) {
            e = &of;
            die(i, "the instruction is not known");
        }
}

const entry *entry_of(const void *kernel, const char *launched)
{
    const std::string name = symbol_of(kernel);
    const auto found = loaded->entries.find(name);
    if (found != loaded->entries.end()) {
        read_known(*found->second);
        return found->second.get();
    }
    fprintf(stderr, "ptx: no entry of the PTX is %s (%s)\n", name.c_str(), launched);
    abort();
}

// Once for each entry that ran to its end.
void note(const entry *done)
{
    const char *path = getenv("SIMT_PTX_LOG");
    if (!finished.insert(done).second || !path)
        return;
    const std::string line = done->arch + " " + done->ptx_name + "\n";
    const int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0 || write(fd, line.data(), line.size()) != (ssize_t)line.size())
        perror(path);
    close(fd);
}

} // namespace

bool simt_has_ptx()
{
    static int has = -1;
    if (has >= 0)
        return has;
    const char *files = getenv("SIMT_PTX");
    has = files && *files;
    if (!has)
        return false;
    loaded.reset(new module());
    read_files(*loaded, files);
    const char *whole = getenv("SIMT_PTX_WHOLE");
    if (whole && *whole)
        for (const auto &named : loaded->entries)
            read_known(*named.second);
    return true;
}

bool simt_run_ptx(dim3 grid, dim3 block, size_t nbytes, const char *name, const void *kernel,
                  const std::vector<char> &arguments)
{
    const char *seed = getenv("SIMT_SEED"), *most = getenv("SIMT_PTX_MOST");
    random_state = (seed ? strtoull(seed, nullptr, 10) : 0) + ++nlaunches * 1000003;
    e = entry_of(kernel, name);
    uint64_t &done = ninstructions[e];
    if (most && done > strtoull(most, nullptr, 10))
        return false;
    grid_size = grid;
    block_size = block;
    nthreads = (int)(block.x * block.y * block.z);
    params = arguments;
    shared.resize(e->shared_nbytes + nbytes);
    local.resize(e->local_nbytes * (size_t)nthreads);
    registers.resize(e->first_value.size() * (size_t)nthreads);
    written.resize(registers.size());
    threads.resize((size_t)nthreads);
    block_at = {0, 0, 0};
    running = 0;
    if (arguments.size() != e->param_nbytes)
        die(e->code[0],
            text("%llu bytes of arguments instead of %llu", arguments.size(), e->param_nbytes));
    if ((uint64_t)nthreads > e->most_threads)
        die(e->code[0], text("more threads than its bounds allow: %llu", e->most_threads));
    for (block_at.z = 0; block_at.z < grid.z; block_at.z++)
        for (block_at.y = 0; block_at.y < grid.y; block_at.y++)
            for (block_at.x = 0; block_at.x < grid.x; block_at.x++)
                run_block();
    done += ninstructions_run;
    ninstructions_run = 0;
    note(e);
    return true;
}
