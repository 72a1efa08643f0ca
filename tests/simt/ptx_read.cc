// SPDX-License-Identifier: Apache-2.0
// Reads PTX as nvcc writes it: declarations, functions and entries. What is not understood ends the
// process; an instruction that is not known becomes UNKNOWN, which simt_has_ptx refuses.
#include <cctype>
#include <cstring>
#include <set>

#include "ptx_reader.h"

namespace ptx
{
namespace
{

struct name_chars {
    bool in[256];
    name_chars()
    {
        for (int c = 0; c < 256; c++)
            in[c] = isalnum(c) || (c && strchr("_$%.", c));
    }
};

bool is_name(char c)
{
    static const name_chars chars;
    return chars.in[(unsigned char)c];
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

} // namespace

void reader::split(std::string_view text)
{
    int l = 1;
    lines.push_back({});
    tokens.reserve(text.size() / 5);
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
            i = i == std::string_view::npos ? text.size() : i;
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
            tokens.push_back({text.substr(i, 1), l});
            i++;
        }
    }
}

void reader::read()
{
    for (const std::string_view some : lines) {
        int n, skip = 0;
        if (some.find(".file") == std::string_view::npos)
            continue;
        const std::string l(some);
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
        const std::string t(peek());
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
            find_entry();
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
    bool of_pointee = false; // behind .ptr
    for (;;) {
        const std::string t = next();
        if (t == ".ptr")
            of_pointee = true;
        else if (t == ".align" && of_pointee)
            next();
        else if (t == ".align")
            v.align = strtoul(next().c_str(), nullptr, 10);
        else if (t == ".global" || t == ".const" || t == ".shared")
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

// Of an entry only its name, at first.
void reader::find_entry()
{
    std::unique_ptr<entry> found(new entry());
    found->from = this;
    found->begin = ++at;
    found->arch = arch;
    found->ptx_name = peek();
    found->name = host_name(found->ptx_name);
    while (peek() != "{")
        at++;
    skip_braces();
    if (m.entries.count(found->name))
        fail("a second entry " + found->name);
    m.entries[found->name] = std::move(found);
}

void reader::read_entry(entry &of)
{
    e = &of;
    at = of.begin;
    slots.clear(), constants.clear(), places = globals, labels.clear(), tables.clear();
    starts.clear(), return_slots.clear(), jumps.clear(), table_jumps.clear(), calls.clear();
    constants[0] = add_slot(64, true, 0);
    carry_slot = 0;
    has_open = false;
    read_heading(true);
    expect("{");
    const size_t body = at;
    // The shared variables of the file that it names.
    std::set<std::string> named;
    int depth = 1;
    for (size_t i = body; depth; i++) {
        if (tokens[i].text == ".loc") {
            const int l = tokens[i].line;
            while (tokens[i + 1].line == l)
                i++;
            continue;
        }
        depth += tokens[i].text == "{" ? 1 : tokens[i].text == "}" ? -1 : 0;
        const std::string name(tokens[i].text);
        if (shared_globals.count(name))
            named.insert(name);
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
    const std::string t(peek());
    if (t == ".loc") {
        file = files[atoi(std::string(tokens[at + 1].text).c_str())];
        line = atoi(std::string(tokens[at + 2].text).c_str());
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

void read_file(module &into, const std::string &path)
{
    into.readers.emplace_back(new reader(into, path));
    into.readers.back()->read();
}

void read_whole(entry &of)
{
    if (of.from)
        of.from->read_entry(of);
    of.from = nullptr;
}

module::module() = default;
module::~module() = default;

} // namespace ptx
