#!/usr/bin/env python3
"""Writes the C interface from the public C++ headers:

    c/prologue.h                   the header
    c/functions.cpp                its functions
    c/layout.inc                   what has to be equal in C and C++: sizes, offsets, values
    c/prologue_ctypes.py           the same declarations for Python's ctypes
    kernels/base/host/members.inc  the members of every struct, for C++ code that does the same with each of them

    python3 c/generate.py            writes them
    python3 c/generate.py --check    fails if one of them is not what the headers say

A public struct, enumeration, constant or function of a header below is in C, or it is listed in OMITTED: anything else is an error
here. Only the standard library is needed.
"""
import os
import re
import sys
import textwrap

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# (header, whether its first comment is the contract of what follows, the names that C takes; None: all that are not OMITTED)
HEADERS = [
    ("kernels/base/status.h", False, ["StatusCode", "status_code_name"]),
    ("kernels/base/dtype.h", False, ["DType", "dtype_name", "dtype_bits"]),
    ("kernels/base/execution.h", False, None),
    ("kernels/base/gpu.h", False, ["check_gpu"]),
    ("kernels/base/faults.h", True, None),
    ("kernels/base/views.h", True, None),
    ("kernels/base/norm_kind.h", True, None),
    ("kernels/base/rope.h", True, None),
    ("kernels/base/weight_format.h", True, None),
    ("layers/rope/rope_scaling.h", False, ["RopePrecision"]),
    ("c/rope_table.h", True, None),
    ("kernels/rotary/rotary.h", True, None),
    ("kernels/rerope/rerope.h", True, None),
    ("kernels/attention_prologue/attention_prologue.h", True, None),
    ("kernels/attention_prologue/stages/stages.h", True, None),
    ("kernels/mla_prologue/mla_prologue.h", True, None),
    ("kernels/paged_attention/paged_attention.h", True, None),
    ("kernels/gemm/gemm.h", True, None),
    ("kernels/token_ops/norm.h", True, None),
    ("kernels/token_ops/activation.h", True, None),
    ("kernels/token_ops/add.h", True, None),
    ("kernels/projection/projection.h", True, None),
    ("kernels/qkv_prologue/qkv_prologue.h", True, None),
    ("kernels/collective/communicator.h", False, ["kMaxRanks", "Communicator"]),
    ("layers/attention_layer.h", True, None),
    ("kernels/moe/moe_route.h", True, None),
    ("kernels/moe/moe_gemm.h", True, None),
    ("kernels/moe/moe_combine.h", True, None),
    ("kernels/token_ops/embedding.h", True, None),
    ("kernels/token_ops/gate.h", True, None),
    ("kernels/token_ops/gather_cos_sin.h", True, None),
    ("kernels/token_ops/scale_logits.h", True, None),
    ("kernels/token_ops/sampling.h", True, None),
    ("kernels/token_ops/logprobs.h", True, None),
    ("kernels/token_ops/end_step.h", True, None),
    ("kernels/token_ops/take_tokens.h", True, None),
    ("c/communicators.h", True, None),
    ("kernels/collective/all_reduce.h", True, None),
    ("kernels/collective/all_gather.h", True, None),
]
# What C does not have, and why.
OMITTED = {
    "weight_scaling_name", "cuda_not_built", "encode_fault", "record_fault", "as_input", "index_view", "index_at", "scales_of_head",
    "num_slots", "v_head_dim",
    "is_block_scaled", "block_channels",
    "rope_style_name", "rope_rows_are_given", "rope_row_is_token", "weight_format_is_packed", "rotary_tensor",  # one-liners
    "RotaryFrequencies", "kPackedGroupRows",  # inside of a plan, of a format
    "create_without_workspace", "set_workspace", "has_workspace", "kGemmWorkspaceBytes",  # for bindings: a C caller's context has its own
}
# Public headers of kernels/ that C has nothing of: helpers of C++ programs, no operations.
NOT_IN_C = {"base/captured_graph.h", "base/divide_up.h", "base/event.h", "base/export.h", "base/host_device.h", "base/kv_types.h",
            "base/memory.h", "base/out_of_memory.h", "base/str_cat.h"}
# Structs that never grow. All others end in `reserved` (docs/versioning.md).
FIXED = {"FaultRecord", "Fault", "HeadsView", "MutableHeadsView", "IndexView", "PageStrides", "RotaryStrides", "KvFormat", "RopeColumns",
         "PackedRows", "QkvBias",
         "SamplingRow"}  # of an array on the device: more options of a row would be another array
# C names that are not the C++ name in lower case; an operation has the name of its type otherwise.
RENAMED = {"StatusCode": "status", "DType": "dtype", "Activation": "activation_kind", "QueryScale": "q_scale",
           "status_code_name": "status_name"}
# Parts of comments that are about C++.
IN_C = {"; index_view() makes one": "", " (views.h)": "", " of weight_format.h": " of prologue_weight_format",
        "layers/rope makes": "prologue_rope_cos_sin makes",
        "abort() and status() may": "prologue_communicator_abort() and prologue_communicator_status() may",
        "Communicator::status()": "prologue_communicator_status()"}
# How a handle is called as an argument.
HANDLES = {"GemmContext": "context", "RotaryPlan": "plan", "AttentionProloguePlan": "plan", "Communicator": "communicator"}

SCALARS = {"int64_t": "c_int64", "int32_t": "c_int32", "uint32_t": "c_uint32", "uint64_t": "c_uint64", "uint8_t": "c_uint8",
           "float": "c_float", "double": "c_double", "bool": "c_bool"}


def fail(message):
    sys.exit("c/generate.py: " + message)


def snake(name):
    name = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name)
    return re.sub(r"([A-Z])([A-Z][a-z])", r"\1_\2", name).lower()


def c_name(name):
    return "prologue_" + RENAMED.get(name, snake(name))


def code_of(line):
    return line.split("//", 1)[0].rstrip()


def comment_of(line):
    return line.split("//", 1)[1].strip() if "//" in line else ""


class Declaration:
    def __init__(self, comment, lines, scope, adjacent):
        self.comment = comment  # lines, without //
        self.lines = lines
        self.scope = scope  # the C++ namespace
        self.adjacent = adjacent  # no empty line between it and the one before
        self.code = re.sub(r"\s+", " ", " ".join(code_of(line).strip() for line in lines)).strip()


def declarations(lines, scope):
    """The declarations of a namespace's or class's lines, each with the comment right above it."""
    found, comment, pending, depth, adjacent = [], [], [], 0, False
    for line in lines:
        code = code_of(line)
        if not pending:
            if line.startswith("//"):
                comment.append(line[3:])
                continue
            if not code.strip():
                comment, adjacent = [], False
                continue
            if line.startswith("#"):
                continue
        pending.append(line)
        depth += code.count("{") - code.count("}") + code.count("(") - code.count(")")
        if depth == 0 and (code.endswith(";") or code.endswith("}")):
            found.append(Declaration(comment, pending, scope, adjacent))
            comment, pending, adjacent = [], [], True
    return found


def read_header(path):
    """The first comment of a header, and its declarations."""
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        lines = file.read().split("\n")
    contract = []
    for line in lines:
        if not line.startswith("//"):
            break
        contract.append(line[3:])
    begin = next((i for i, line in enumerate(lines) if re.match(r"namespace prologue(::c)? \{", line)), None)
    if begin is None:
        fail(path + " has no namespace prologue")
    scope = "prologue::c::" if "::c" in lines[begin] else "prologue::"
    body, inner = [], False
    for line in lines[begin + 1:]:
        if line.startswith("}  // namespace prologue"):
            break
        if line.startswith("namespace "):
            inner = True
        if not inner:
            body.append(line)
        if line.startswith("}  // namespace "):
            inner = False
    return contract, declarations(body, scope)


class Enum:
    def __init__(self, name, d):
        self.name, self.comment, self.scope = name, list(d.comment), d.scope
        self.items = []  # (name, value, comment lines)
        if len(d.lines) == 1 and comment_of(d.lines[0]):
            self.comment.append(comment_of(d.lines[0]))
        text = d.lines if len(d.lines) > 1 else [part + "," for part in re.search(r"\{(.*)\}", d.code).group(1).split(",")]
        value = 0
        for line in text[1:-1] if len(d.lines) > 1 else text:
            code = code_of(line).strip().rstrip(",")
            if not code:
                if self.items and comment_of(line):
                    self.items[-1][2].append(comment_of(line))
                continue
            parts = [part.strip() for part in code.split("=")]
            value = int(parts[1]) if len(parts) > 1 else value
            self.items.append((parts[0], value, [comment_of(line)] if comment_of(line) else []))
            value += 1

    def constant(self, item):
        return (c_name(self.name) + "_" + item).upper()


class Member:
    def __init__(self, type_, name, default, array, comment):
        self.type, self.name, self.default, self.array, self.comment = type_, name, default, array, comment


class Struct:
    def __init__(self, name, d, aligned):
        self.name, self.comment, self.scope, self.aligned = name, d.comment, d.scope, aligned
        self.body = []  # Member, or a line of comment, or "" for an empty line
        for line in d.lines[1:-1]:
            code = code_of(line).strip()
            if not code:
                if not self.body and "//" not in line:
                    continue
                self.body.append("// " + line.strip()[3:] if "//" in line else "")
                continue
            if code.startswith("static constexpr "):  # a comment says the number
                continue
            m = re.match(r"^(.+?[ *])(\w+)(?:\[(\w+)\])?(?: = (.+))?;$", code)
            if not m:
                fail("%s: cannot read the member '%s'" % (name, code))
            self.body.append(Member(m.group(1).strip(), m.group(2), m.group(4), m.group(3), comment_of(line)))

    def members(self):
        return [m for m in self.body if isinstance(m, Member)]


class Constant:
    def __init__(self, name, value, d):
        self.name, self.value, self.comment, self.scope = name, value, d.comment, d.scope
        self.c = "PROLOGUE_" + snake(name[1:]).upper()


class Function:
    def __init__(self, result, name, arguments, d, owner=None):
        self.result, self.name, self.scope, self.owner, self.adjacent = result, name, d.scope, owner, d.adjacent
        self.comment = d.comment + ([comment_of(d.lines[0])] if comment_of(d.lines[0]) else [])
        self.arguments = []  # (type, name)
        for argument in re.split(r",\s*", arguments) if arguments else []:
            m = re.match(r"^(.+?[ *&])(\w+)$", argument)
            self.arguments.append((m.group(1).strip(), m.group(2)))
        if name == "validate":
            subject = re.match(r"const (\w+)Params&", self.arguments[0][0]).group(1)
            self.c = "prologue_" + snake(subject) + "_validate"
        elif owner:
            self.c = c_name(owner) + "_" + name
        else:
            self.c = "prologue_" + RENAMED.get(name, name)


class Handle:
    def __init__(self, name, d):
        self.name, self.comment, self.scope = name, d.comment, d.scope
        public = []
        for line in d.lines[1:-1]:
            if re.match(r" (private|protected):", line):
                break
            if not line.startswith(" public:"):
                public.append(line[2:])
        self.methods = []
        for method in declarations(public, d.scope):
            m = re.match(r"^(static )?(?:constexpr )?([\w:<>* &]+?[ *&])(\w+)\(([^()]*)\)( const)?\s*[;{]", method.code)
            if not m or "virtual" in method.code or "operator" in method.code or m.group(3) in OMITTED:
                continue
            f = Function(m.group(2).strip(), m.group(3), m.group(4), method, name)
            f.static = bool(m.group(1))
            self.methods.append(f)


class Interface:
    def __init__(self):
        self.section = []  # the items of the section that is written
        self.sections = []  # (header, contract lines, items)
        self.enums, self.structs, self.handles, self.functions, self.constants = {}, {}, {}, {}, {}
        for header, has_contract, only in HEADERS:
            contract, found = read_header(header)
            items = []
            for d in found:
                item = self.parse(header, d, only)
                if item is not None:
                    items.append(item)
            if only:
                missing = set(only) - {item.name for item in items}
                if missing:
                    fail("%s no longer has %s" % (header, ", ".join(sorted(missing))))
            self.sections.append((header, contract if has_contract else [], items))
        self.check_headers()
        self.check_reserved()
        self.check_names()

    def parse(self, header, d, only):
        taken = lambda name: name in only if only is not None else name not in OMITTED
        if re.match(r"^(struct|class) \w+;", d.code) or re.match(r"^(using|template) ", d.code):
            return None
        m = re.match(r"^enum class (\w+)", d.code)
        if m:
            return self.enums.setdefault(m.group(1), Enum(m.group(1), d)) if taken(m.group(1)) else None
        m = re.match(r"^struct (alignas\(16\) )?(\w+) \{", d.code)
        if m:
            return self.structs.setdefault(m.group(2), Struct(m.group(2), d, bool(m.group(1)))) if taken(m.group(2)) else None
        m = re.match(r"^class (?:\[\[nodiscard\]\] )?(?:PROLOGUE_API )?(\w+) \{", d.code)
        if m:
            return self.handles.setdefault(m.group(1), Handle(m.group(1), d)) if taken(m.group(1)) else None
        m = re.match(r"^(?:inline )?constexpr \w+ (k\w+) = (-?\d+);$", d.code)
        if m:
            return self.constants.setdefault(m.group(1), Constant(m.group(1), int(m.group(2)), d)) if taken(m.group(1)) else None
        m = re.match(r"^(?:(?:PROLOGUE_API|PROLOGUE_HOST_DEVICE|inline|constexpr) )*([\w:<>* &]+?[ *&])(\w+)\(([^()]*)\)\s*(?:noexcept )?[;{]", d.code)
        if m and m.group(2) not in ("if", "while"):
            name = m.group(2)
            if not taken(name):
                return None
            f = Function(m.group(1).strip(), name, m.group(3), d)
            if f.c in self.functions:
                fail("%s: two functions of C would be called %s" % (header, f.c))
            self.functions[f.c] = f
            return f
        if only is None:
            fail("%s: cannot read '%s'" % (header, d.code[:100]))
        return None

    def check_headers(self):
        """Every public header of kernels/ is here, or has nothing for C."""
        with open(os.path.join(ROOT, "kernels/CMakeLists.txt"), encoding="utf-8") as file:
            listed = re.search(r"PUBLIC_HEADERS([^)]*)\)", file.read()).group(1).split()
        read = {header for header, _, _ in HEADERS}
        for header in listed:
            if "kernels/" + header not in read and header not in NOT_IN_C:
                fail("kernels/%s is public, but neither in HEADERS nor in NOT_IN_C" % header)

    def check_reserved(self):
        """A struct can grow in a major version only if it has reserved words, after all members."""
        for struct in self.structs.values():
            reserved = [member.name == "reserved" and member.array is not None for member in struct.members()]
            if reserved[-1] == (struct.name in FIXED) or any(reserved[:-1]):
                fail("%s: end it in `uint64_t reserved[n] = {};`, or list it in FIXED" % struct.name)
            if any(member.array and member.type == "uint64_t" and member.name != "reserved" for member in struct.members()):
                fail("%s: an array of uint64_t would be taken for reserved words (c/boundary.h)" % struct.name)

    def check_names(self):
        names = {}
        for name in [*self.enums, *self.structs, *self.handles]:
            names.setdefault(c_name(name), []).append(name)
        for name, function in self.functions.items():
            names.setdefault(name, []).append(function.name + "()")
        for name, users in names.items():
            if len(users) > 1:
                fail("%s would all be %s in C: give one another name in RENAMED" % (" and ".join(users), name))

    # ---- types

    def c_type(self, type_):
        """The C type of a member or a by-value argument."""
        pointer = re.match(r"^(const )?(\w+)\*$", type_)
        if pointer:
            const, base = pointer.group(1) or "", pointer.group(2)
            if base == "CUstream_st":
                return "struct CUstream_st*"
            return const + (base if base in SCALARS or base in ("void", "char") else c_name(base)) + "*"
        handles = re.match(r"^(\w+)\*\*$", type_)  # an array of handles that the function makes
        if handles and handles.group(1) in self.handles:
            return c_name(handles.group(1)) + "**"
        if type_ in SCALARS:
            return type_
        if type_ in self.enums or type_ in self.structs:
            return c_name(type_)
        fail("no C type for '%s'" % type_)

    def py_type(self, type_):
        if type_ == "const char*":
            return "c_char_p"
        if type_.endswith("*"):
            return "c_void_p"
        if type_ in self.enums:
            return "c_int32"
        return SCALARS.get(type_, type_)

    # ---- text

    def translate(self, text):
        """C++ names in a comment become those of C. Columns, which begin after two or more spaces, stay where they are if they can."""
        result, end = "", 0
        for column in re.finditer(r"\S+(?: \S+)*", text):
            gap = column.start() - end
            result += " " * (max(2, column.start() - len(result)) if gap > 1 and end else gap)
            result += self.translate_words(column.group())
            end = column.end()
        return result

    def translate_words(self, text):
        """translate() for one column."""
        for enum in self.enums.values():
            for item, _, _ in enum.items:
                text = re.sub(r"\b%s::%s\b" % (enum.name, item), enum.constant(item), text)
        for constant in self.constants.values():
            text = re.sub(r"\b%s\b" % constant.name, constant.c, text)
        prose = {"Fault", "Device", "Activation", "Rounding"}  # words of a sentence, too
        for name in [*self.enums, *self.structs, *self.handles]:
            if name not in prose:
                text = re.sub(r"(?<![\w:])%s\b(?!::)" % name, c_name(name), text)
        validate = [item.c for item in self.section if isinstance(item, Function) and item.name == "validate"]
        for name, function in self.functions.items():
            if function.name == "validate":
                if name not in validate:  # that of another section
                    continue
                pattern = r"(?<![\w.:/])validate(?=\(\))"
            elif "_" in function.name:
                pattern = r"(?<![\w.:/])%s\b(?!\.h|\.params)" % function.name
            else:
                pattern = r"(?<![\w.:/])%s(?=\(\))" % function.name
            text = re.sub(pattern, name, text)
        for handle in self.handles.values():
            for method in handle.methods:
                text = re.sub(r"\b%s::%s\(\)" % (handle.name, method.name), method.c + "()", text)
        text = re.sub(r"(prologue_\w+(?:\(\))?) in \w+\.h", r"\1", text)
        for old, new in IN_C.items():
            text = text.replace(old, new)
        for header, contract, _ in self.sections:
            folder, name = header[:-2].rsplit("/", 2)[-2:]
            if contract and not header.startswith("c/"):
                text = re.sub(r"(?:(?:kernels|layers)/(?:\w+/)?|\b(?<!/))%s\.h\b" % name, "section " + name, text)
                if folder == name:
                    text = re.sub(r"\bkernels/%s\b(?!/)" % name, "section " + name, text)
        return re.sub(r"\bsection (\w+(?:, section \w+)*,? and )section (?=\w)",
                      lambda m: "sections " + m.group(1).replace("section ", ""), text)

    def default_of(self, member):
        """The default of a member as C says it; '' for zeros."""
        value = member.default
        if value is None or value in ("nullptr", "{}", "false") or re.match(r"^0(\.0)?f?$", value):
            return ""
        if "::" in value:
            enum, item = value.split("::")[-2:]
            found = next(i for i in self.enums[enum].items if i[0] == item)
            return self.enums[enum].constant(item) if found[1] != 0 else ""
        if value in self.constants:
            return self.constants[value].c
        return value


def block(lines, indent=""):
    return [(indent + "// " + line).rstrip() for line in lines]


# ---- prologue.h

PREAMBLE = """\
// This is the C interface of Prologue: single operations and the attention layer over raw pointers. C11 and C++17. The tutorial is
// docs/embedding-c.md; what may change between versions is in docs/versioning.md.
//
// It is written by c/generate.py from the C++ headers, with their comments. Do not change it by hand.
// clang-format off
//
// Structs are plain data with the layout of the C++ structs: a call is a call of the C++ function, and nothing is copied. Initialise
// each struct with its prologue_..._init(), which sets the defaults; structs inside of it get theirs with it. Then set members by name.
// A member's comment begins with its default (`= 1`) if that is not zero. `reserved` must stay zeros: any other value is an error, so
// that a later version can give it a meaning. Enumerations are int32_t.
//
// Errors. A function that can fail returns a prologue_status: PROLOGUE_STATUS_OK (0), or a code whose sentence
// prologue_last_error_message() returns. No function throws, prints or aborts. A null argument is an error, unless the comment says
// what it means. Pointers inside of structs are on the operation's device.
//
// Objects (contexts and plans) are made by ..._create, which sets the pointer to null after an error, and freed by ..._destroy, which
// accepts null. Threads: operations have no global state. Several threads may use one plan, but a context is for one thread at a time.
// A struct may be shared as long as nobody changes it.
#ifndef PROLOGUE_H
#define PROLOGUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PROLOGUE_VERSION_MAJOR %(major)d
#define PROLOGUE_VERSION_MINOR %(minor)d
#define PROLOGUE_VERSION_PATCH %(patch)d
// This is the version of this header: 10000 * major + 100 * minor + patch.
#define PROLOGUE_VERSION %(number)d

#if defined(PROLOGUE_SHARED)  // set where the shared library is built
#define PROLOGUE_C_API __attribute__((visibility("default")))
#else
#define PROLOGUE_C_API
#endif

#ifdef __cplusplus
#define PROLOGUE_C_ALIGNAS(bytes) alignas(bytes)
extern "C" {
#else
#define PROLOGUE_C_ALIGNAS(bytes) _Alignas(bytes)
#endif

struct CUstream_st;  // cudaStream_t is a pointer to this
"""


# After the first section, which has prologue_status.
ABOUT_THE_LIBRARY = """\
// Returns PROLOGUE_VERSION of the library that runs. Versions compare as numbers.
PROLOGUE_C_API int32_t prologue_version(void);
// Whether a program that was compiled with a header of this version may use the library that runs: its major version is equal, and
// its minor version is not smaller (before 1.0: equal). The dynamic linker checks it for what is linked with -lprologue; call
// prologue_check_version(PROLOGUE_VERSION) after dlopen(). The error is `unsupported`, with both versions.
PROLOGUE_C_API prologue_status prologue_check_version(int32_t header_version);
// Returns the sentence of the last error of a function of this header in the calling thread; "" if there was none. The pointer is valid
// until the next error in this thread, or until the thread ends. A call that succeeds changes nothing.
PROLOGUE_C_API const char* prologue_last_error_message(void);
"""


def signature(api, f):
    """(C result, C arguments, out argument or None) of a function."""
    arguments, out = [], None
    if f.owner and not getattr(f, "static", True):
        arguments.append("const " + c_name(f.owner) + "* " + HANDLES[f.owner])
    by_reference = False
    for type_, name in f.arguments:
        m = re.match(r"^(const )?(\w+)&$", type_)
        if m:
            by_reference = True
            arguments.append((m.group(1) or "") + c_name(m.group(2)) + "* " + name)
        else:
            arguments.append(api.c_type(type_) + " " + name)
    result = f.result
    m = re.match(r"^Result<(?:std::unique_ptr<)?(\w+)>*$", result)
    if m and m.group(1) in api.handles:
        out = c_name(m.group(1)) + "** " + HANDLES[m.group(1)]
        result = "prologue_status"
    elif m or (by_reference and result not in ("Status", "void")):
        value = m.group(1) if m else result
        out = api.c_type(value) + "* " + ("bytes" if "bytes" in f.name else "result")
        result = "prologue_status"
    elif result == "Status" or (result == "void" and by_reference):
        result = "prologue_status"
    elif re.match(r"^const (\w+)&$", result):
        result = "const " + c_name(result[6:-1]) + "*"
    else:
        result = api.c_type(result)
    if out:
        arguments.append(out)
    return result, arguments, out


def prototype(api, f):
    result, arguments, _ = signature(api, f)
    return "%s %s(%s)" % (result, f.c, ", ".join(arguments) if arguments else "void")


def aligned(lines):
    """Trailing comments of adjacent lines begin in one column."""
    result, group = [], []

    def flush():
        width = max([len(code) for code, text in group if text] or [0])
        for code, text in group:
            result.append("%-*s  // %s" % (width, code, text) if text else code)
        group.clear()

    for code, text in lines:
        if not text:
            flush()
            result.append(code)
        else:
            group.append((code, text))
    flush()
    return result


def enum_lines(api, enum):
    lines = block([api.translate(line) for line in enum.comment])
    lines += ["typedef int32_t %s;" % c_name(enum.name), "enum {"]
    rows = []
    for item, value, comments in enum.items:
        code = "  %s = %d," % (enum.constant(item), value)
        rows.append((code, api.translate(comments[0]) if comments else ""))
        rows += [("", api.translate(comment)) for comment in comments[1:]]
    return lines + aligned(rows) + ["};"]


def struct_lines(api, struct):
    lines = block([api.translate(line) for line in struct.comment])
    name = c_name(struct.name)
    lines.append("typedef struct %s {" % name)
    rows = []
    for index, member in enumerate(struct.body):
        if not isinstance(member, Member):
            rows.append((("  " + api.translate(member)).rstrip(), ""))
            continue
        array = ""
        if member.array:
            array = "[%s]" % (api.constants[member.array].c if member.array in api.constants else member.array)
        align = "PROLOGUE_C_ALIGNAS(16) " if struct.aligned and index == 0 else ""
        default = api.default_of(member)
        comment = ("zeros" if member.array else "not used") if member.name == "reserved" else api.translate(member.comment)
        if default:
            comment = "= " + default + ("; " + comment if comment else "")
        rows.append(("  %s%s %s%s;" % (align, api.c_type(member.type), member.name, array), comment))
    lines += aligned(rows) + ["} %s;" % name]
    lines.append("PROLOGUE_C_API void %s_init(%s* value);" % (name, name))
    return lines


def function_lines(api, f):
    lines = block([api.translate(line) for line in f.comment])
    text = "PROLOGUE_C_API " + prototype(api, f) + ";"
    if len(text) <= 130:
        return lines + [text]
    begin, rest = text.split("(", 1)
    return lines + [begin + "("] + ["    " + part + ("," if part[-1] != ";" else "") for part in rest.split(", ")]


def header_text(api, version):
    major, minor, patch = version
    lines = (PREAMBLE % {"major": major, "minor": minor, "patch": patch, "number": 10000 * major + 100 * minor + patch}).split("\n")
    for header, contract, items in api.sections:
        name = header.rsplit("/", 1)[1][:-2]
        api.section = items
        lines += ["// ---- %s %s" % (name, "-" * (120 - len(name))), ""]
        if contract:
            lines += block([api.translate(line) for line in contract]) + [""]
        for item in items:
            if isinstance(item, Enum):
                text = enum_lines(api, item)
            elif isinstance(item, Struct):
                text = struct_lines(api, item)
            elif isinstance(item, Constant):
                text = block([api.translate(line) for line in item.comment]) + ["#define %s INT64_C(%d)" % (item.c, item.value)]
            elif isinstance(item, Function):
                text = function_lines(api, item)
                if item.adjacent and lines[-2:-1] and lines[-2].startswith(("PROLOGUE_C_API", "    ")):
                    lines.pop()
            else:
                c = c_name(item.name)
                text = block([api.translate(line) for line in item.comment]) + ["typedef struct %s %s;" % (c, c)]
                for method in item.methods:
                    text += function_lines(api, method)
                text.append("PROLOGUE_C_API void %s_destroy(%s* %s);" % (c, c, HANDLES[item.name]))
            lines += text + [""]
        if header == HEADERS[0][0]:
            lines += ABOUT_THE_LIBRARY.split("\n")
    lines += ["#ifdef __cplusplus", "}", "#endif", "", "#endif  // PROLOGUE_H", ""]
    return "\n".join(lines)


# ---- functions.cpp

def has_reserved(api, struct):
    """Whether the struct, or one inside of it, has reserved words."""
    return any(m.name == "reserved" or (m.type in api.structs and has_reserved(api, api.structs[m.type])) for m in struct.members())


def definition(api, f):
    result, arguments, out = signature(api, f)
    checks, passed = [], []
    out_name = out.split("* ")[-1].lstrip("*") if out else None
    handle = HANDLES[f.owner] if f.owner and not getattr(f, "static", True) else None
    if handle:
        checks.append('  if (%s == nullptr) return %s;' % (
            handle, 'null_argument("%s", "%s")' % (f.c, handle) if result == "prologue_status" else "{}"))
    reserved = []
    for type_, name in f.arguments:
        m = re.match(r"^(const )?(\w+)&$", type_)
        if m:
            checks.append('  if (%s == nullptr) return null_argument("%s", "%s");' % (name, f.c, name))
            if m.group(2) in api.structs:
                passed.append("cpp(*%s)" % name)
                if m.group(1) and has_reserved(api, api.structs[m.group(2)]):
                    reserved.append((name, c_name(m.group(2)) + "_init"))
            else:
                passed.append("cpp(*%s)" % name)
        elif type_ in api.enums:
            passed.append("static_cast<%s%s>(%s)" % (api.enums[type_].scope, type_, name))
        elif type_.endswith("**"):
            passed.append("reinterpret_cast<%s%s**>(%s)" % (api.handles[type_[:-2]].scope, type_[:-2], name))
        else:
            passed.append(name)
    if out:
        checks.append('  if (%s == nullptr) return null_argument("%s", "%s");' % (out_name, f.c, out_name))
    for name, init in reserved:
        checks.append('  if (reserved_bits(cpp(*%s)) != 0) [[unlikely]] return reserved_argument("%s", "%s", cpp(*%s), "%s");'
                      % (name, f.c, name, name, init))
    target = "cpp(*%s).%s" % (handle, f.name) if handle else f.scope + (f.owner + "::" if f.owner else "") + f.name
    call = "%s(%s)" % (target, ", ".join(passed))
    body = list(checks)
    if out and "**" in out:
        body = [c for c in body if "(%s == nullptr)" % out_name in c] + ["  *%s = nullptr;" % out_name] + [
            c for c in body if "(%s == nullptr)" % out_name not in c]
        body.append("  return call([&] { return hand_over(%s, %s); });" % (call, out_name))
    elif f.result.startswith("Result<"):
        body.append("  return call([&] { return store(%s, %s); });" % (call, out_name))
    elif out and f.result in api.structs:
        body.append("  return call([&] { return cpp(*%s) = %s, Status(); });" % (out_name, call))
    elif out:
        body.append("  return call([&] { return *%s = %s, Status(); });" % (out_name, call))
    elif f.result == "Status":
        body.append("  return call([&] { return %s; });" % call)
    elif result == "prologue_status":
        body.append("  return call([&] { return %s, Status(); });" % call)
    elif f.result in api.structs:
        body += ["  %s result;" % result, "  cpp(result) = %s;" % call, "  return result;"]
    elif f.result in api.enums:
        body.append("  return static_cast<int32_t>(%s);" % call)
    elif f.result.endswith("&"):
        body.append("  return reinterpret_cast<%s>(&%s);" % (result, call))
    else:
        body.append("  return %s;" % call)
    return ["%s {" % prototype(api, f), *body, "}"]


def all_functions(api):
    for _, _, items in api.sections:
        for item in items:
            if isinstance(item, Function):
                yield item
            elif isinstance(item, Handle):
                yield from item.methods


def functions_text(api):
    lines = ["// This file has the functions of prologue.h. It is written by c/generate.py; do not change it by hand.", "// clang-format off",
             "#include <prologue/c/boundary.h>", ""]
    for header, _, _ in HEADERS:
        lines.append("#include <prologue/%s>" % header)
    lines += ["", "// A struct of C is used as that of C++, so both must have the same layout.",
              "#define PROLOGUE_STRUCT(c, cpp) \\",
              "  static_assert(sizeof(c) == sizeof(cpp) && alignof(c) == alignof(cpp), #c);",
              "#define PROLOGUE_MEMBER(c, cpp, member) \\",
              "  static_assert(offsetof(c, member) == offsetof(cpp, member) && sizeof(c::member) == sizeof(cpp::member), #c \".\" #member);",
              "#define PROLOGUE_VALUE(c, cpp) static_assert((c) == static_cast<int64_t>(cpp), #c);",
              '#include "layout.inc"', "#undef PROLOGUE_STRUCT", "#undef PROLOGUE_MEMBER", "#undef PROLOGUE_VALUE", "",
              "namespace {", "", "using namespace prologue::c;", "using prologue::Status;", ""]
    for struct in api.structs.values():
        lines.append("PROLOGUE_SAME(%s, %s%s)" % (c_name(struct.name), struct.scope, struct.name))
    for handle in api.handles.values():
        lines.append("PROLOGUE_SAME(%s, %s%s)" % (c_name(handle.name), handle.scope, handle.name))
    lines += ["", "}  // namespace", "", 'extern "C" {', ""]
    for struct in api.structs.values():
        c = c_name(struct.name)
        lines.append("void %s_init(%s* value) { initialize<%s%s>(value); }" % (c, c, struct.scope, struct.name))
    lines.append("")
    for f in all_functions(api):
        lines += definition(api, f) + [""]
    for handle in api.handles.values():
        c = c_name(handle.name)
        lines.append("void %s_destroy(%s* %s) { delete reinterpret_cast<%s%s*>(%s); }" % (
            c, c, HANDLES[handle.name], handle.scope, handle.name, HANDLES[handle.name]))
    lines += ["", '}  // extern "C"', ""]
    return "\n".join(lines)


# ---- layout.inc

def layout_text(api):
    lines = ["// This file has what must be equal in C and C++. It is written by c/generate.py; do not change it by hand.", "// clang-format off"]
    for enum in api.enums.values():
        for item, _, _ in enum.items:
            lines.append("PROLOGUE_VALUE(%s, %s%s::%s)" % (enum.constant(item), enum.scope, enum.name, item))
    for constant in api.constants.values():
        lines.append("PROLOGUE_VALUE(%s, %s%s)" % (constant.c, constant.scope, constant.name))
    for struct in api.structs.values():
        c, cpp = c_name(struct.name), struct.scope + struct.name
        lines.append("PROLOGUE_STRUCT(%s, %s)" % (c, cpp))
        for member in struct.members():
            lines.append("PROLOGUE_MEMBER(%s, %s, %s)" % (c, cpp, member.name))
    return "\n".join(lines) + "\n"


# ---- members.inc

def members_text(api):
    """Nothing is included: what the structs consist of matters only where the list of one is used."""
    lines = ["// The members of every public struct. Written by c/generate.py; do not change it by hand.", "// clang-format off"]
    for scope in dict.fromkeys(struct.scope for struct in api.structs.values()):
        lines += ["", "namespace %s {" % scope[:-2]]
        lines += ["struct %s;" % struct.name for struct in api.structs.values() if struct.scope == scope]
        lines.append("}  // namespace %s" % scope[:-2])
    lines += ["", "namespace prologue {", "", "#define PROLOGUE_VISIT(member) visit(#member, of.member...)"]
    for struct in api.structs.values():
        visits = " && ".join("PROLOGUE_VISIT(%s)" % member.name for member in struct.members())
        lines += ["", "template <>", "struct Members<%s%s> {" % (struct.scope, struct.name), "  template <class Visit, class... Of>",
                  "  static constexpr bool visit(const Visit& visit, Of&... of) {",
                  *textwrap.wrap(visits + ";", 120, initial_indent="    return ", subsequent_indent=" " * 11), "  }", "};"]
    return "\n".join(lines + ["", "#undef PROLOGUE_VISIT", "", "}  // namespace prologue", ""])


# ---- prologue_ctypes.py

PYTHON = '''\
"""The C interface of Prologue for Python's ctypes. Written by c/generate.py from the C++ headers; do not change it by hand.

    import prologue_ctypes as pl
    pl.load("libprologue.so")
    params = pl.NormParams(num_tokens=2, width=64, dtype=pl.DTYPE_F32, ...)   # other members: the defaults
    pl.norm(params, pl.Execution(num_threads=2))                              # raises pl.Error

A function has the name of C's without prologue_. Structs are passed as they are. A pointer inside of a struct is an address (an int,
or None): ctypes.addressof(array), or tensor.data_ptr(). Keep what it points to alive. What C returns through its last argument
(plans, contexts, sizes) is the result here. prologue.h documents everything.
"""
import ctypes
from ctypes import POINTER, Structure, byref, c_bool, c_char_p, c_double, c_float, c_int32, c_int64, c_uint8, c_uint32, c_uint64, c_void_p

HEADER_VERSION = %(number)d
_library = None


class Error(Exception):
    """code: one of STATUS_*."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


def load(path):
    """Loads the shared library; once, before anything else."""
    global _library
    library = ctypes.CDLL(path)
    library.prologue_last_error_message.restype = c_char_p
    if library.prologue_check_version(c_int32(HEADER_VERSION)) != 0:  # before what another version may not have is looked up
        raise Error(STATUS_UNSUPPORTED, library.prologue_last_error_message().decode())
    library.prologue_version.restype = c_int32
    for name, (result, arguments, _) in FUNCTIONS.items():
        function = getattr(library, "prologue_" + name)
        function.restype = result
        function.argtypes = arguments
    for struct in STRUCTS:
        function = getattr(library, struct._init_name)
        function.restype = None
        function.argtypes = [POINTER(struct)]
    _library = library


def _loaded():
    if _library is None:
        raise RuntimeError("prologue_ctypes: call load() with the path of libprologue.so first")
    return _library


def version():
    return _loaded().prologue_version()


def last_error_message():
    return _loaded().prologue_last_error_message().decode()


def _check(status):
    if status != 0:
        raise Error(status, last_error_message())


def _call(name, arguments):
    _, types, has_out = FUNCTIONS[name]
    function = getattr(_loaded(), "prologue_" + name)
    arguments = [byref(a) if isinstance(a, Structure) else a for a in arguments]
    if not has_out:
        result = function(*arguments)
        return result.decode() if isinstance(result, bytes) else result
    out = types[-1]._type_()
    _check(function(*arguments, byref(out)))
    return out if isinstance(out, (Structure, c_void_p)) else out.value


class _Struct(Structure):
    """Members that are not given have the library's defaults. To set a name that is no member is an error."""

    __slots__ = ()

    def __init__(self, **members):
        super().__init__()
        getattr(_loaded(), self._init_name)(byref(self))
        for name, value in members.items():
            setattr(self, name, value)


'''


def python_text(api, version):
    major, minor, patch = version
    lines = (PYTHON % {"number": 10000 * major + 100 * minor + patch}).split("\n")[:-1]
    for enum in api.enums.values():
        for item, value, _ in enum.items:
            lines.append("%s = %d" % (enum.constant(item)[len("PROLOGUE_"):], value))
    for constant in api.constants.values():
        lines.append("%s = %d" % (constant.c[len("PROLOGUE_"):], constant.value))
    for struct in api.structs.values():
        lines += ["", "", "class %s(_Struct):" % struct.name, "    __slots__ = ()", '    _init_name = "%s_init"' % c_name(struct.name), "    _fields_ = ["]
        for member in struct.members():
            type_ = api.py_type(member.type)
            if member.array:
                count = api.constants[member.array].value if member.array in api.constants else int(member.array)
                type_ = "%s * %d" % (type_, count)
            lines.append('        ("%s", %s),' % (member.name, type_))
        lines.append("    ]")
    lines += ["", "", "STRUCTS = ["] + ["    %s," % name for name in api.structs] + ["]"]
    lines += ["# name: (result, arguments, whether the last one is the result in Python)", "FUNCTIONS = {"]
    names = []
    for f in all_functions(api):
        result, _, out = signature(api, f)
        types = []
        if f.owner and not getattr(f, "static", True):
            types.append("c_void_p")
        for type_, _ in f.arguments:
            m = re.match(r"^(?:const )?(\w+)&$", type_)
            types.append(("POINTER(%s)" % m.group(1) if m.group(1) in api.structs else "c_void_p") if m else api.py_type(type_))
        if out:
            value = re.match(r"^Result<(?:std::unique_ptr<)?(\w+)>*$", f.result)
            value = value.group(1) if value else f.result
            types.append("POINTER(%s)" % ("c_void_p" if value in api.handles else api.py_type(value)))
        python_result = "c_int32" if result == "prologue_status" else (
            "POINTER(%s)" % f.result[6:-1] if f.result.endswith("&") else api.py_type(f.result))
        short = f.c[len("prologue_"):]
        lines.append('    "%s": (%s, [%s], %s),' % (short, python_result, ", ".join(types), bool(out)))
        handle = [HANDLES[f.owner]] if f.owner and not getattr(f, "static", True) else []
        names.append((short, handle + [argument for _, argument in f.arguments], result == "prologue_status" and not out))
    for handle in api.handles.values():
        lines.append('    "%s_destroy": (None, [c_void_p], False),' % c_name(handle.name)[len("prologue_"):])
        names.append((c_name(handle.name)[len("prologue_"):] + "_destroy", [HANDLES[handle.name]], False))
    lines.append("}")
    for name, arguments, checked in names:
        call = '_call("%s", (%s))' % (name, ", ".join(arguments) + ("," if len(arguments) == 1 else ""))
        lines += ["", "", "def %s(%s):" % (name, ", ".join(arguments)), "    %s" % ("_check(%s)" % call if checked else "return " + call)]
    return "\n".join(lines) + "\n"


def main():
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit(__doc__)
    with open(os.path.join(ROOT, "CMakeLists.txt"), encoding="utf-8") as file:
        version = tuple(int(x) for x in re.search(r"project\(prologue VERSION (\d+)\.(\d+)\.(\d+)", file.read()).groups())
    api = Interface()
    outputs = {"c/prologue.h": header_text(api, version), "c/functions.cpp": functions_text(api), "c/layout.inc": layout_text(api),
               "kernels/base/host/members.inc": members_text(api),
               "c/prologue_ctypes.py": python_text(api, version)}
    for path, text in outputs.items():
        path = os.path.join(ROOT, path)
        old = None
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                old = file.read()
        if old == text:
            continue
        if sys.argv[1:] == ["--check"]:
            sys.exit("%s is not what the C++ headers say. To update it:\n  python3 c/generate.py" % os.path.relpath(path, ROOT))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)


if __name__ == "__main__":
    main()
