// SPDX-License-Identifier: Apache-2.0
// Reads PTX as nvcc writes it. What is not understood ends the process; an instruction that is not
// known becomes UNKNOWN, which ends the process when a thread comes to it.
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <set>
#include <sstream>

#include "ptx.h"

namespace ptx
{
namespace
{

struct token {
    std::string text;
    int line;
};

bool is_name(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '%' || c == '.';
}

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

uint64_t aligned(uint64_t x, uint64_t to)
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
        split(all.str());
    }
    void read();

  private:
    module &m;
    std::string path, arch;
    std::vector<token> tokens;
    std::vector<std::string> lines;
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
    void split(const std::string &text);
    const std::string &peek()
    {
        if (at >= tokens.size())
            fail("the file ends too early");
        return tokens[at].text;
    }
    std::string next()
    {
        std::string text = peek();
        at++;
        return text;
    }
    bool take(const std::string &text)
    {
        if (at >= tokens.size() || tokens[at].text != text)
            return false;
        at++;
        return true;
    }
    void expect(const std::string &text)
    {
        if (!take(text))
            fail("expected " + text + ", found " + peek());
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
            const std::string t = next();
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
    void read_entry();
    void read_body();
    void read_statement();
    void read_instruction();
    void read_registers();

    std::map<std::string, place>::const_iterator place_of(const std::string &name) const
    {
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
    void call(instruction &i);
};

void reader::split(const std::string &text)
{
    int l = 1;
    lines.push_back("");
    for (size_t i = 0, begin = 0; i <= text.size(); i++)
        if (i == text.size() || text[i] == '\n') {
            lines.push_back(text.substr(begin, i - begin));
            begin = i + 1;
        }
    for (size_t i = 0; i < text.size();) {
        const char c = text[i];
        if (c == '\n')
            l++;
        if (isspace((unsigned char)c)) {
            i++;
        } else if (!text.compare(i, 2, "//")) {
            i = text.find('\n', i);
            i = i == std::string::npos ? text.size() : i;
        } else if (c == '"') {
            const size_t end = text.find('"', i + 1);
            tokens.push_back({text.substr(i, end + 1 - i), l});
            i = end + 1;
        } else if (is_name(c)) {
            size_t end = i;
            while (end < text.size() && is_name(text[end]))
                end++;
            tokens.push_back({text.substr(i, end - i), l});
            i = end;
        } else {
            tokens.push_back({std::string(1, c), l});
            i++;
        }
    }
}

// nvcc's name of an anonymous namespace has the file's, and a hash; a host's compiler has one name.
std::string host_name(const std::string &name)
{
    std::string out;
    for (size_t i = 0; i < name.size();) {
        size_t end = i;
        while (end < name.size() && isdigit((unsigned char)name[end]))
            end++;
        const size_t length = end > i ? strtoul(name.c_str() + i, nullptr, 10) : 0;
        if (length && !name.compare(end, 11, "_GLOBAL__N_") && end + length <= name.size()) {
            out += "12_GLOBAL__N_1";
            i = end + length;
        } else {
            end = end > i ? end : i + 1;
            out += name.substr(i, end - i);
            i = end;
        }
    }
    return out;
}

void reader::read()
{
    for (const std::string &l : lines) {
        int n, skip = 0;
        if (sscanf(l.c_str(), " .file %d %n", &n, &skip) == 1 && skip) {
            std::string name = l.substr((size_t)skip);
            name = name.substr(0, name.rfind('"'));
            const size_t slash = name.find_last_of("/\"");
            files[n] = name.substr(slash + 1);
        }
    }
    // Functions may stand behind the entries that call them.
    for (size_t i = 0; i < tokens.size(); i++)
        if (tokens[i].text == ".func") {
            at = i;
            read_function();
        }
    at = 0;
    while (at < tokens.size()) {
        const std::string t = peek();
        if (t == ".target") {
            arch = tokens[at + 1].text;
            skip_line();
        } else if (t == ".version" || t == ".address_size" || t == ".file") {
            skip_line();
        } else if (t == ".section") {
            next();
            next();
            skip_braces();
        } else if (t == ".visible" || t == ".weak" || t == ".extern" || t == ".common") {
            next();
        } else if (t == ".entry") {
            next();
            read_entry();
        } else if (t == ".func") {
            read_function();
        } else if (t == ".global" || t == ".const" || t == ".shared") {
            read_global();
        } else {
            fail("not understood: " + t);
        }
    }
}

void reader::read_function()
{
    expect(".func");
    const function f = read_heading(false);
    if (take(";"))
        return;
    functions[f.name] = f;
    functions[f.name].body = at + 1;
    skip_braces();
}

variable reader::read_variable()
{
    variable v = {"", "", 0, 0, 1, false};
    for (;;) {
        const std::string t = next();
        if (t == ".align")
            v.align = strtoul(next().c_str(), nullptr, 10);
        else if (t == ".ptr" || t == ".global" || t == ".const" || t == ".shared")
            continue;
        else if (t[0] == '.')
            v.type = t;
        else {
            v.name = t;
            break;
        }
    }
    const uint64_t each = (uint64_t)width_of(v.type) / 8;
    while (take("[")) {
        if (take("]")) {
            v.open = true;
            v.nelem = 0;
        } else {
            v.nelem *= strtoul(next().c_str(), nullptr, 0);
            expect("]");
        }
    }
    v.align = v.align ? v.align : each;
    v.nbytes = v.nelem * each;
    return v;
}

void reader::read_global()
{
    const std::string where = next();
    const variable v = read_variable();
    const size_t each = (size_t)width_of(v.type) / 8;
    if (where == ".shared") {
        // Kernels of the file have them all, one after the other; one of open size is the last.
        static const uint64_t OPEN = UINT64_MAX;
        shared_globals[v.name] = {SHARED, v.open ? OPEN : v.nbytes << 8 | v.align};
    } else {
        m.memory.emplace_back(new char[v.nbytes + v.align]());
        char *memory = (char *)aligned((uint64_t)m.memory.back().get(), v.align);
        m.ranges[(uint64_t)memory] = (uint64_t)memory + v.nbytes;
        globals[v.name] = {GLOBAL, (uint64_t)memory};
        if (take("=")) {
            const bool many = take("{");
            size_t n = 0;
            do {
                const bool negative = take("-");
                const std::string t = next();
                uint64_t bits = t.size() > 2 && (t[1] == 'f' || t[1] == 'd') && t[0] == '0'
                                    ? strtoull(t.c_str() + 2, nullptr, 16)
                                    : strtoull(t.c_str(), nullptr, 0);
                if (!isdigit((unsigned char)t[0]) || n * each >= v.nbytes)
                    fail("a value of " + v.name + " is not understood");
                bits = negative ? 0 - bits : bits;
                memcpy(memory + n++ * each, &bits, each);
            } while (take(","));
            if (many)
                expect("}");
        }
    }
    expect(";");
}

// Behind .entry or .func: name and parameters, up to '{' or ';'. Those of an entry are places.
function reader::read_heading(bool entry)
{
    function f;
    std::vector<variable> found;
    const auto list = [&](std::vector<std::string> &names) {
        if (!take("("))
            return;
        while (!take(")")) {
            expect(".param");
            const variable v = read_variable();
            names.push_back(v.name);
            if (entry) {
                e->param_nbytes = aligned(e->param_nbytes, v.align);
                places[v.name] = {PARAM, e->param_nbytes};
                e->param_nbytes += v.nbytes;
            } else {
                found.push_back(v);
            }
            take(",");
        }
    };
    list(f.results);
    f.name = next();
    list(f.params);
    for (std::vector<std::string> *names : {&f.results, &f.params})
        for (std::string &name : *names)
            name = entry ? name : f.name + ":" + name;
    for (const variable &v : found)
        parameters[f.name + ":" + v.name] = v;
    while (peek() != "{" && peek() != ";") {
        const std::string t = next();
        if (t == ".maxntid" && entry) {
            e->most_threads = 1;
            do
                e->most_threads *= strtoul(next().c_str(), nullptr, 10);
            while (take(","));
        } else if (t[0] != '.' && t != "," && !isdigit((unsigned char)t[0]))
            fail("not understood: " + t);
    }
    return f;
}

int reader::add_slot(int width, bool written, uint64_t value)
{
    e->first_value.push_back(value);
    e->first_written.push_back(written);
    e->width.push_back((uint8_t)width);
    return (int)e->first_value.size() - 1;
}

int reader::constant(uint64_t value)
{
    auto at = constants.find(value);
    return at != constants.end() ? at->second : constants[value] = add_slot(64, true, value);
}

void reader::read_entry()
{
    std::unique_ptr<entry> made(new entry());
    e = made.get();
    slots.clear(), constants.clear(), places = globals, labels.clear(), tables.clear();
    starts.clear(), return_slots.clear(), jumps.clear(), table_jumps.clear(), calls.clear();
    constants[0] = add_slot(64, true, 0);
    carry_slot = 0;
    has_open = false;
    e->arch = arch;
    e->ptx_name = read_heading(true).name;
    e->name = host_name(e->ptx_name);
    expect("{");
    const size_t body = at;
    // Its text, and the shared variables of the file that it names.
    std::set<std::string> named;
    int depth = 1;
    for (size_t i = body; depth; i++) {
        if (tokens[i].text == ".loc") {
            const int l = tokens[i].line;
            while (tokens[i + 1].line == l)
                i++;
            continue;
        }
        e->body += tokens[i].text + " ";
        depth += tokens[i].text == "{" ? 1 : tokens[i].text == "}" ? -1 : 0;
        if (shared_globals.count(tokens[i].text))
            named.insert(tokens[i].text);
    }
    for (const bool open : {false, true})
        for (const std::string &name : named) {
            const uint64_t size = shared_globals[name].address;
            if ((size == UINT64_MAX) != open)
                continue;
            e->shared_nbytes = aligned(e->shared_nbytes, open ? 16 : size & 255);
            has_open = open;
            places[name] = {SHARED, e->shared_nbytes};
            e->shared_nbytes += open ? 0 : size >> 8;
        }
    read_body();
    const size_t end = at;
    // Functions that it calls, each once.
    for (size_t n = 0; n < calls.size(); n++) {
        callee = calls[n].label;
        if (starts.count(callee))
            continue;
        const auto found = functions.find(callee);
        if (found == functions.end())
            fail("no function " + callee);
        starts[callee] = (int)e->code.size();
        at = found->second.body;
        scope = callee + ":";
        read_body();
    }
    scope.clear();
    at = end;
    for (const jump &c : calls)
        e->code[c.at].target = starts[c.label];
    for (const jump &j : jumps) {
        if (!labels.count(j.label))
            fail("no label " + j.label);
        e->code[j.at].target = labels[j.label];
    }
    for (const jump &j : table_jumps)
        for (const std::string &label : tables[j.label])
            e->code[j.at].list.push_back(labels.at(label));
    int granule = 16;
    for (const instruction &i : e->code)
        if ((i.what == LOAD || i.what == STORE) && (i.where == SHARED || i.where == GENERIC))
            granule = i.nbytes < granule ? i.nbytes : granule;
        else if (i.what == MATRIX_LOAD || i.what == MATRIX_STORE)
            granule = i.nbytes < granule ? i.nbytes : granule;
    e->granule = granule;
    if (m.entries.count(e->name))
        fail("a second entry " + e->name);
    m.entries[e->name] = std::move(made);
}

void reader::read_body()
{
    for (int depth = 1; depth;) {
        if (take("{"))
            depth++;
        else if (take("}"))
            depth--;
        else
            read_statement();
    }
    instruction end; // of a body that does not end with ret
    finish("ret", end);
    e->code.push_back(end);
}

void reader::read_registers()
{
    const std::string type = next();
    do {
        const std::string name = scope + next();
        if (take("<")) {
            const int n = atoi(next().c_str());
            expect(">");
            for (int i = 0; i < n; i++)
                slots[name + std::to_string(i)] = add_slot(width_of(type), false, 0);
        } else {
            slots[name] = add_slot(width_of(type), false, 0);
        }
    } while (take(","));
    expect(";");
}

void reader::read_statement()
{
    const std::string t = peek();
    if (t == ".loc") {
        file = files[atoi(tokens[at + 1].text.c_str())];
        line = atoi(tokens[at + 2].text.c_str());
        skip_line();
    } else if (t == ".pragma") {
        while (next() != ";")
            ;
    } else if (t == ".reg") {
        next();
        read_registers();
    } else if (t == ".shared" || t == ".local" || t == ".param") {
        next();
        const variable v = read_variable();
        if (t == ".shared" && has_open)
            fail("shared memory behind that of open size");
        uint64_t &size = t == ".shared" ? e->shared_nbytes : e->local_nbytes;
        size = aligned(size, v.align);
        places[v.name] = {t == ".shared" ? SHARED : LOCAL, size};
        size += v.nbytes;
        expect(";");
    } else if (tokens[at + 1].text == ":") {
        const std::string label = next();
        next();
        if (peek() == ".branchtargets") {
            next();
            do
                tables[scope + label].push_back(scope + next());
            while (take(","));
            expect(";");
        } else {
            labels[scope + label] = (int)e->code.size();
        }
    } else if (t[0] == '.') {
        fail("not understood: " + t);
    } else {
        read_instruction();
    }
}

int reader::slot(const std::string &name)
{
    if (name == "_")
        return add_slot(64, true, 0);
    if (name == "%tid.x")
        return special(e->thread_x);
    if (name == "%tid.y")
        return special(e->thread_y);
    if (name == "%tid.z")
        return special(e->thread_z);
    if (name == "%ntid.x")
        return special(e->size_x);
    if (name == "%ntid.y")
        return special(e->size_y);
    if (name == "%ntid.z")
        return special(e->size_z);
    if (name == "%ctaid.x")
        return special(e->block_x);
    if (name == "%ctaid.y")
        return special(e->block_y);
    if (name == "%ctaid.z")
        return special(e->block_z);
    if (name == "%nctaid.x")
        return special(e->grid_x);
    if (name == "%nctaid.y")
        return special(e->grid_y);
    if (name == "%nctaid.z")
        return special(e->grid_z);
    if (name == "%laneid")
        return special(e->lane);
    if (name == "WARP_SZ")
        return constant(32);
    const auto found = slots.find(scope + name);
    if (found == slots.end())
        fail("no register " + name);
    return found->second;
}

// A register, a number, or a variable's address.
int reader::value()
{
    const bool negative = take("-");
    const std::string t = next();
    if (isdigit((unsigned char)t[0])) {
        const bool is_float = t.size() > 2 && (t[1] == 'f' || t[1] == 'd') && t[0] == '0';
        const uint64_t bits =
            is_float ? strtoull(t.c_str() + 2, nullptr, 16) : strtoull(t.c_str(), nullptr, 0);
        return constant(negative ? 0 - bits : bits);
    }
    const auto found = place_of(t);
    if (found != places.end()) {
        uint64_t offset = 0;
        if (take("+"))
            offset = strtoull(next().c_str(), nullptr, 0);
        return constant(found->second.address + offset);
    }
    return slot(t);
}

// {a, b, ...}, or one value.
std::vector<int> reader::values()
{
    std::vector<int> out;
    if (!take("{"))
        return {value()};
    do
        out.push_back(value());
    while (take(","));
    expect("}");
    return out;
}

// [base + offset]
void reader::address(instruction &i)
{
    expect("[");
    const auto found = place_of(peek());
    if (found != places.end()) {
        next();
        i.in[0] = constant(found->second.address);
        if (i.where == PARAM)
            i.where = found->second.where;
    } else {
        i.in[0] = value();
    }
    if (take("+")) {
        const bool negative = take("-");
        i.offset = (int64_t)strtoull(next().c_str(), nullptr, 0);
        i.offset = negative ? -i.offset : i.offset;
    } else if (take("-")) {
        i.offset = -(int64_t)strtoull(next().c_str(), nullptr, 0);
    }
    expect("]");
}

void reader::memory(const std::vector<std::string> &part, instruction &i)
{
    static const std::set<std::string> plain = {
        "nc", "cs", "cg", "ca", "cv", "volatile", "L1::no_allocate"};
    size_t n = 1;
    const std::string &type = part.back();
    i.where = GENERIC;
    for (size_t k = 1; k + 1 < part.size(); k++) {
        const std::string &p = part[k];
        if (p == "global" || p == "const")
            i.where = GLOBAL;
        else if (p == "shared")
            i.where = SHARED;
        else if (p == "local")
            i.where = LOCAL;
        else if (p == "param")
            i.where = PARAM;
        else if (p == "v2" || p == "v4")
            n = (size_t)(p[1] - '0');
        else if (!plain.count(p))
            i.what = UNKNOWN;
    }
    i.nbytes = atoi(type.c_str() + 1) / 8;
    i.is_signed = type[0] == 's';
    if (i.what == LOAD)
        i.list = values(), expect(","), address(i);
    else if (i.what == STORE)
        address(i), expect(","), i.list = values();
    if (i.what != UNKNOWN && i.list.size() != n)
        fail("a vector of another length");
}

// wmma.load.a.sync.aligned.row.m16n16k16.shared.bf16 {...}, [address], rows
void reader::matrix(const std::vector<std::string> &part, instruction &i)
{
    const auto is = [&](size_t n, const char *text) { return n < part.size() && part[n] == text; };
    if (is(1, "mma") && is(6, "m16n16k16") && is(7, "f32") && part.back() == "f32") {
        i.what = MATRIX_MULTIPLY;
        i.is_bf16 = is(8, "bf16");
        const size_t each = i.is_bf16 ? 4 : 8;
        for (const size_t n : {(size_t)8, each, each, (size_t)8}) {
            const std::vector<int> some = values();
            if (some.size() != n)
                fail("a fragment of another size");
            i.list.insert(i.list.end(), some.begin(), some.end());
            if (i.list.size() < 16 + 2 * each)
                expect(",");
        }
        return;
    }
    const bool load = is(1, "load"), narrow = part.back() == "bf16" || part.back() == "f16";
    if ((!load && !is(1, "store")) || !is(6, "m16n16k16") || (is(2, "a") || is(2, "b")) != narrow)
        return;
    i.what = load ? MATRIX_LOAD : MATRIX_STORE;
    i.by_columns = is(5, "col");
    i.where = is(7, "shared") ? SHARED : is(7, "global") ? GLOBAL : GENERIC;
    i.is_bf16 = part.back() == "bf16";
    i.nbytes = narrow ? 2 : 4;
    if (load)
        i.list = values(), expect(","), address(i);
    else
        address(i), expect(","), i.list = values();
    i.in[1] = constant(16);
    if (take(","))
        i.in[1] = value();
}

// call.uni (result), name, (arguments); and copies of both.
void reader::call(instruction &i)
{
    std::vector<std::string> results, arguments;
    const auto list = [&](std::vector<std::string> &names) {
        while (!take(")")) {
            names.push_back(next());
            take(",");
        }
    };
    const auto copy = [&](const std::string &to, const std::string &from, uint64_t nbytes) {
        instruction c;
        c.what = COPY;
        c.target = (int)places.at(from).address;
        c.offset = (int64_t)places.at(to).address;
        c.nbytes = (int)nbytes;
        e->code.push_back(c);
    };
    if (take("(")) {
        list(results);
        expect(",");
    }
    const std::string name = next();
    if (take(",")) {
        expect("(");
        list(arguments);
    }
    expect(";");
    const auto found = functions.find(name);
    if (found == functions.end())
        return; // unknown
    const function &f = found->second;
    if (f.params.size() != arguments.size() || f.results.size() != results.size())
        fail("a call with other arguments");
    for (const auto &names : {f.params, f.results})
        for (const std::string &p : names)
            if (!places.count(p)) {
                const variable &v = parameters[p];
                e->local_nbytes = aligned(e->local_nbytes, v.align);
                places[p] = {LOCAL, e->local_nbytes};
                e->local_nbytes += v.nbytes;
            }
    for (size_t k = 0; k < arguments.size(); k++)
        copy(f.params[k], arguments[k], parameters[f.params[k]].nbytes);
    i.what = CALL;
    i.out[0] = return_slot(name);
    calls.push_back({e->code.size(), name});
    e->code.push_back(i);
    for (size_t k = 0; k < results.size(); k++)
        copy(results[k], f.results[k], parameters[f.results[k]].nbytes);
}

void reader::read_instruction()
{
    instruction i;
    i.line = line;
    i.file = file;
    i.ptx_line = tokens[at].line;
    i.text = lines[(size_t)tokens[at].line];
    i.text.erase(0, i.text.find_first_not_of(" \t"));
    if (take("@")) {
        i.negated = take("!");
        i.predicate = slot(next());
    }
    const size_t begin = at;
    finish(next(), i);
    if (i.what == CALL)
        return; // read whole
    if (i.what == UNKNOWN) {
        at = begin;
        while (next() != ";")
            ;
    } else {
        expect(";");
    }
    e->code.push_back(i);
}

// The operands of an instruction, and what it is.
void reader::finish(const std::string &name, instruction &i)
{
    std::vector<std::string> part;
    std::stringstream stream(name);
    for (std::string p; std::getline(stream, p, '.');)
        part.push_back(p);
    // Cache hints have colons, which end a name.
    while (take(":")) {
        expect(":");
        std::stringstream more(next());
        std::string p;
        std::getline(more, p, '.');
        part.back() += "::" + p;
        while (std::getline(more, p, '.'))
            part.push_back(p);
    }
    const std::string &op = part[0];
    if (op == "ld" || op == "st") {
        i.what = op == "ld" ? LOAD : STORE;
        memory(part, i);
    } else if (op == "wmma") {
        matrix(part, i);
    } else if (name == "bra" || name == "bra.uni") {
        i.what = BRANCH;
        jumps.push_back({e->code.size(), scope + next()});
    } else if (name == "brx.idx" || name == "brx.idx.uni") {
        i.what = BRANCH_TABLE;
        i.in[0] = value();
        expect(",");
        table_jumps.push_back({e->code.size(), scope + next()});
    } else if (name == "call" || name == "call.uni") {
        call(i);
    } else if (name == "ret" || name == "ret.uni" || name == "exit") {
        i.what = RETURN;
        i.target = !scope.empty() && name != "exit"; // to a caller
        i.in[0] = i.target ? return_slot(callee) : 0;
    } else if ((name == "bar.sync" || name == "barrier.sync") && take("0")) {
        i.what = peek() == ";" ? BARRIER : UNKNOWN;
    } else if (name == "bar.warp.sync") {
        i.what = WARP_BARRIER;
        i.in[0] = value();
    } else if (op == "membar" || op == "fence") {
        i.what = NOTHING;
    } else if (op == "shfl" && part.size() == 4 && part[1] == "sync" && part[3] == "b32") {
        i.what = SHUFFLE;
        i.target = part[2] == "up"     ? UP
                   : part[2] == "down" ? DOWN
                   : part[2] == "bfly" ? BUTTERFLY
                                       : INDEX;
        i.out[0] = slot(next());
        if (take("|"))
            i.out[1] = slot(next());
        for (int &in : i.in)
            expect(","), in = value();
    } else if (op == "vote" && part.size() == 4 && part[1] == "sync" &&
               (part[2] == "ballot" || part[2] == "any" || part[2] == "all")) {
        i.what = VOTE;
        i.target = part[2] == "ballot" ? BALLOT : part[2] == "any" ? ANY : ALL;
        i.out[0] = slot(next());
        expect(",");
        i.is_signed = take("!"); // the opposite
        i.in[0] = value();
        expect(",");
        i.in[1] = value();
    } else if (op == "mov" && peek() == "{") {
        i.what = UNPACK;
        i.list = values();
        expect(",");
        i.in[0] = value();
        i.nbytes = atoi(part.back().c_str() + 1) / 8 / (int)i.list.size();
    } else {
        i.out[0] = slot(next());
        if (peek() == "|")
            return; // two results: unknown
        expect(",");
        if (op == "mov" && peek() == "{") {
            i.what = PACK;
            i.list = values();
            i.nbytes = atoi(part.back().c_str() + 1) / 8 / (int)i.list.size();
            return;
        }
        int n = 0;
        do
            if (n < 4 && peek() != "!" && peek() != "{")
                i.in[n++] = value();
            else
                return;
        while (take(","));
        i.compute = compute_of(name);
        i.what = i.compute ? COMPUTE : UNKNOWN;
        if (op == "addc" || op == "subc" || op == "madc")
            i.in[3] = carry();
        if (i.compute && part.size() > 2 && part[part.size() - 2] == "cc") {
            // The carry first, as the result may be an operand.
            instruction c = i;
            c.compute = compute_of("carry of " + name);
            c.out[0] = add_slot(64, true, 0);
            e->code.push_back(c);
            e->code.push_back(i);
            i.compute = compute_of("mov.b64");
            i.out[0] = carry();
            i.in[0] = c.out[0];
            i.in[1] = i.in[2] = i.in[3] = 0;
        }
    }
}

} // namespace

void read_file(module &into, const std::string &path)
{
    reader(into, path).read();
}

} // namespace ptx
