// SPDX-License-Identifier: Apache-2.0
// ptx.h: nvcc's PTX as a list of instructions (ptx_read.cc, ptx_decode.cc), what they compute
// (ptx_compute.cc), and their execution in place of a kernel's body (ptx_run.cc).
#ifndef SIMT_PTX_H
#define SIMT_PTX_H

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cuda_runtime.h"

namespace ptx
{

// Windows of the generic address space. Shared, local and parameter addresses are offsets in them.
const uint64_t SHARED_WINDOW = (uint64_t)1 << 60, LOCAL_WINDOW = (uint64_t)2 << 60,
               PARAM_WINDOW = (uint64_t)3 << 60, WINDOW = (uint64_t)1 << 60;

// The value of a register is its bits, with zeros above its width.
typedef uint64_t value_f(uint64_t a, uint64_t b, uint64_t c, uint64_t d);
// What `name` (with all its modifiers) computes of its operands, or NULL.
value_f *compute_of(const std::string &name);
uint16_t bf16_of(float x);
float float_of_bf16(uint16_t bits);

enum kind {
    COMPUTE,      // out[0] = compute(in...)
    PACK,         // out[0] = list, from low bits to high ones
    UNPACK,       // list = in[0]
    LOAD,         // list = memory at in[0] + offset
    STORE,        // memory at in[0] + offset = list
    BRANCH,       // to target
    BRANCH_TABLE, // to list[in[0]]
    CALL,         // of a function at target; what returns continues behind it
    COPY,         // in local memory: arguments and results of functions
    RETURN,       // from a function, or the end of the thread
    BARRIER,      // of the block
    WARP_BARRIER, // of the lanes in[0]
    SHUFFLE,      // mode target: out[0] (in range: out[1]) = in[0] of another lane
    VOTE,         // mode target: out[0] = of all lanes' in[0]
    ATOMIC,       // out[0] = memory at in[0] + offset, which becomes compute(it, in[1])
    MATRIX_LOAD,  // mode target: list = a fragment at in[0], in[1] elements from row to row
    MATRIX_STORE,
    MATRIX_MULTIPLY, // list = d, a, b, c
    NOTHING,
    UNKNOWN
};
enum space { GLOBAL, SHARED, LOCAL, PARAM, GENERIC };
enum shuffle { UP, DOWN, BUTTERFLY, INDEX };
enum vote { BALLOT, ANY, ALL };

struct instruction {
    kind what = UNKNOWN;
    value_f *compute = nullptr;
    int predicate = 0; // register; 0: always
    bool negated = false;
    bool is_signed = false; // what is loaded; of VOTE: the opposite of in[0]
    bool by_columns = false, is_bf16 = false;
    space where = GLOBAL;
    int out[2] = {0, 0}, in[4] = {0, 0, 0, 0};
    int nbytes = 0; // of each of the list
    int64_t offset = 0;
    int target = 0;
    std::vector<int> list;
    int line = 0, ptx_line = 0; // of the source, of the PTX
    std::string file, text;
    // The allocation of its latest access to global memory, in that launch.
    mutable uint64_t launch = 0, lo = 1, hi = 0;
};

class reader;

struct entry {
    reader *from = nullptr; // of its body, while that is not read
    size_t begin = 0;       // its token
    std::string name, arch; // name as the host's compiler would mangle it
    std::string ptx_name;
    std::vector<instruction> code;
    // Register 0 is zero and is always written. Constants and special registers follow it.
    std::vector<uint64_t> first_value;
    std::vector<uint8_t> first_written, width; // width in bits, 1 of predicates
    int thread_x = 0, thread_y = 0, thread_z = 0, size_x = 0, size_y = 0, size_z = 0, block_x = 0,
        block_y = 0, block_z = 0, grid_x = 0, grid_y = 0, grid_z = 0, lane = 0; // special registers
    uint64_t param_nbytes = 0, shared_nbytes = 0, local_nbytes = 0, most_threads = 1024;
    int granule = 1; // bytes of shared memory that are read and written as one
};

struct module {
    module();
    ~module();
    std::map<std::string, std::unique_ptr<entry>> entries; // by name
    std::vector<std::unique_ptr<reader>> readers;          // of the files
    std::vector<std::unique_ptr<char[]>> memory;           // variables
    std::map<uint64_t, uint64_t> ranges;                   // of them: address to end
};

// Reads a file of nvcc's PTX; ends the process with a message where it is not understood. Bodies of
// entries are read where they are needed.
void read_file(module &into, const std::string &path);
void read_whole(entry &of);
// The mangled name of a function of this program, as nvcc has it; "" of an unknown one.
std::string symbol_of(const void *function);

} // namespace ptx

#endif
