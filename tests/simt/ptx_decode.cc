// SPDX-License-Identifier: Apache-2.0
// One instruction of PTX: its operands become slots of registers, its name what it does.
#include <cctype>
#include <cstring>
#include <functional>
#include <set>

#include "ptx_reader.h"

namespace ptx
{

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

// atom.global.max.u32 old, [address], operand; red.global.max.u32 [address], operand. Those of
// shared memory would be no races with each other; there are none.
void reader::atomic(const std::vector<std::string> &part, instruction &i)
{
    static const std::set<std::string> orders = {"relaxed", "gpu", "sys"};
    std::vector<std::string> rest;
    for (size_t k = 1; k < part.size(); k++)
        if (!orders.count(part[k]))
            rest.push_back(part[k]);
    if (rest.size() != 3 || rest[0] != "global")
        return;
    i.compute = compute_of(rest[1] == "exch" ? "second" : rest[1] + "." + rest[2]);
    i.where = GLOBAL;
    i.nbytes = width_of("." + rest[2]) / 8;
    if (!i.compute || (i.nbytes != 4 && i.nbytes != 8))
        return;
    i.what = ATOMIC;
    if (part[0] == "atom") {
        i.out[0] = slot(next());
        expect(",");
    } else {
        i.out[0] = add_slot(64, true, 0);
    }
    address(i);
    expect(",");
    i.in[1] = value();
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
    i.text = std::string(lines[(size_t)tokens[at].line]);
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
    } else if (op == "atom" || op == "red") {
        atomic(part, i);
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
        // A signed integer fills a wider register with its sign.
        const int width = e->width[(size_t)i.out[0]];
        const std::string &to = part[part.size() > 2 ? part.size() - 2 : 0];
        if (i.compute && op == "cvt" && to[0] == 's' && width_of("." + to) < width) {
            e->code.push_back(i);
            i.compute = compute_of("cvt.s" + std::to_string(width) + "." + to);
            i.in[0] = i.out[0];
        }
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

} // namespace ptx
