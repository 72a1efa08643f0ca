// SPDX-License-Identifier: Apache-2.0
// ptx_reader.h: a file of PTX while it is read: its tokens, and what they have declared so far.
// ptx_read.cc reads declarations and bodies, ptx_decode.cc the instructions in them.
#ifndef SIMT_PTX_READER_H
#define SIMT_PTX_READER_H

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string_view>

#include "ptx.h"

namespace ptx
{

struct token {
    std::string_view text; // of the file's
    int line;
};

// An array of bytes: a variable, or a parameter of a function.
struct place {
    space where;
    uint64_t address;
};

struct variable {
    std::string name, type;
    uint64_t align, nbytes, nelem;
    bool open; // its size is not given
};

struct function {
    std::string name;
    size_t body; // token behind its '{'
    std::vector<std::string> results, params;
};

static inline uint64_t aligned(uint64_t x, uint64_t to)
{
    return (x + to - 1) / to * to;
}

class reader
{
  public:
    reader(module &into, const std::string &path) : m(into), path(path)
    {
        std::ifstream in(path);
        std::stringstream all;
        all << in.rdbuf();
        if (!in)
            fail("cannot read it");
        whole = all.str();
        split(whole);
    }
    void read();
    void read_entry(entry &of);

  private:
    module &m;
    std::string path, arch, whole;
    std::vector<token> tokens;
    std::vector<std::string_view> lines;
    size_t at = 0;
    std::map<int, std::string> files;
    std::map<std::string, place> globals, shared_globals; // of the file
    std::map<std::string, function> functions;
    std::map<std::string, variable> parameters; // of functions

    // Of the entry that is read.
    entry *e = nullptr;
    std::map<std::string, int> slots;
    std::map<uint64_t, int> constants;
    int carry_slot = 0;
    bool has_open = false; // shared memory whose size the launch gives
    std::map<std::string, place> places;
    std::map<std::string, int> labels;
    std::map<std::string, std::vector<std::string>> tables;
    std::map<std::string, int> starts, return_slots; // of functions that are called
    struct jump {
        size_t at;
        std::string label;
    };
    std::vector<jump> jumps, table_jumps, calls;
    std::string callee, scope; // the function whose body is read; before its labels and registers
    int line = 0;
    std::string file;

    [[noreturn]] void fail(const std::string &what)
    {
        fprintf(stderr, "ptx: %s:%d: %s\n", path.c_str(), at < tokens.size() ? tokens[at].line : 0,
                what.c_str());
        exit(1);
    }
    void split(std::string_view text);
    std::string_view peek()
    {
        if (at >= tokens.size())
            fail("the file ends too early");
        return tokens[at].text;
    }
    std::string next()
    {
        std::string text(peek());
        at++;
        return text;
    }
    bool take(std::string_view text)
    {
        if (at >= tokens.size() || tokens[at].text != text)
            return false;
        at++;
        return true;
    }
    void expect(const std::string &text)
    {
        if (!take(text))
            fail("expected " + std::string(text) + ", found " + std::string(peek()));
    }
    void skip_line()
    {
        for (const int l = tokens[at].line; at < tokens.size() && tokens[at].line == l;)
            at++;
    }
    void skip_braces()
    {
        int depth = 0;
        do {
            const std::string_view t = peek();
            at++;
            depth += t == "{" ? 1 : t == "}" ? -1 : 0;
        } while (depth);
    }
    static int width_of(const std::string &type)
    {
        return type == ".pred" ? 1 : atoi(type.c_str() + 2);
    }

    variable read_variable();
    void read_global();
    function read_heading(bool entry);
    void read_function();
    void find_entry();
    void read_body();
    void read_statement();
    void read_instruction();
    void read_registers();

    std::map<std::string, place>::const_iterator place_of(std::string_view named) const
    {
        const std::string name(named);
        const auto own = places.find(scope + name);
        return own != places.end() ? own : places.find(name);
    }
    int slot(const std::string &name);
    int constant(uint64_t value);
    int add_slot(int width, bool written, uint64_t value);
    // Where a function returns to. No function calls itself.
    int return_slot(const std::string &name)
    {
        int &slot = return_slots[name];
        return slot ? slot : slot = add_slot(64, true, 0);
    }
    int carry()
    {
        return carry_slot ? carry_slot : carry_slot = add_slot(64, false, 0);
    }
    int special(int &slot)
    {
        return slot ? slot : slot = add_slot(32, true, 0);
    }
    int value();
    std::vector<int> values();
    void address(instruction &i);
    void finish(const std::string &name, instruction &i);
    void memory(const std::vector<std::string> &part, instruction &i);
    void matrix(const std::vector<std::string> &part, instruction &i);
    void atomic(const std::vector<std::string> &part, instruction &i);
    void call(instruction &i);
};

} // namespace ptx

#endif
