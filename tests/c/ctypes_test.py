"""c/prologue_ctypes.py beside the library: the size of every struct, every function, defaults, every reserved word.

    python3 tests/c/ctypes_test.py libprologue.so
"""
import ctypes
import inspect
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "c"))
import prologue_ctypes as pl  # noqa: E402


def check(ok, what):
    if not ok:
        sys.exit("ctypes_test: " + what)


def reserved_words(struct, path=""):
    """(path of the array, the array) of all reserved words of a struct and of those inside of it."""
    for name, type_ in struct._fields_:
        member, where = getattr(struct, name), f"{path}.{name}" if path else name
        if name == "reserved" and issubclass(type_, ctypes.Array):
            yield where, member
        elif issubclass(type_, ctypes.Structure):
            yield from reserved_words(member, where)
        elif issubclass(type_, ctypes.Array) and issubclass(type_._type_, ctypes.Structure):
            for i, element in enumerate(member):
                yield from reserved_words(element, f"{where}[{i}]")


def plans():
    """A plan of each kind, by the beginning of its functions' names."""
    x = (ctypes.c_float * 8)()
    rotary = pl.RotaryParams(seq_len=1, head_dim=8, dtype=pl.DTYPE_F32, num_tensors=1)
    rotary.tensors[0].x = rotary.tensors[0].y = ctypes.addressof(x)
    rotary.tensors[0].num_heads = 1
    rotary.tensors[0].x_strides = rotary.tensors[0].y_strides = pl.batch_major_strides(1, 1, 8)
    prologue = pl.AttentionPrologueParams(num_tokens=1, num_q_heads=1, head_dim=8, dtype=pl.DTYPE_F32)
    prologue.q = pl.HeadsView(data=ctypes.addressof(x), token_stride=8, head_stride=8)
    prologue.q_out = pl.MutableHeadsView(data=ctypes.addressof(x), token_stride=8, head_stride=8)
    return {"rotary_plan": pl.rotary_plan_create(rotary, pl.Execution()),
            "attention_prologue_plan": pl.attention_prologue_plan_create(prologue, 1, pl.Execution())}


def check_reserved_words(context, communicator):
    """Every function that reads structs refuses each reserved word in use, and names it. Returns how many words that were."""
    made, count = plans(), 0
    for name, (result, types, has_out) in pl.FUNCTIONS.items():
        if result is not ctypes.c_int32 or name.startswith("set_"):  # those write the struct
            continue
        names = list(inspect.signature(getattr(pl, name)).parameters)
        arguments = []
        for argument, type_ in zip(names, types):
            if argument in ("context", "gemm_context"):
                arguments.append(context)
            elif argument == "communicator":
                arguments.append(communicator)
            elif argument == "plan":
                arguments.append(next(plan for begin, plan in made.items() if name.startswith(begin)))
            elif type_ is ctypes.c_void_p:
                arguments.append(None)
            else:
                arguments.append(type_._type_() if isinstance(type_._type_, type) else 0)
        for argument, struct in zip(names, arguments):
            if not isinstance(struct, ctypes.Structure):
                continue
            for path, words in reserved_words(struct):
                for i in range(len(words)):
                    words[i] = 1 << (i % 64)
                    try:
                        getattr(pl, name)(*arguments)
                    except pl.Error as error:
                        check(error.code == pl.STATUS_INVALID_ARGUMENT and f"{argument}->{path} must be zeros" in str(error),
                              f"{name}: {argument}->{path}[{i}]: {error}")
                    else:
                        sys.exit(f"ctypes_test: {name}: {argument}->{path}[{i}] was taken")
                    words[i] = 0
                    count += 1
    pl.rotary_plan_destroy(made["rotary_plan"])
    pl.attention_prologue_plan_destroy(made["attention_prologue_plan"])
    return count


def check_projection(context):
    """y += x W^T, against Python."""
    tokens, n, k = 3, 5, 8
    x, weight, y = (ctypes.c_float * (tokens * k))(), (ctypes.c_float * (n * k))(), (ctypes.c_float * (tokens * n))()
    for values in (x, weight, y):
        values[:] = [((i * 7919) % 21 - 10) / 8.0 for i in range(len(values))]
    want = [y[t * n + j] + sum(x[t * k + i] * weight[j * k + i] for i in range(k)) for t in range(tokens) for j in range(n)]
    p = pl.ProjectionParams(num_tokens=tokens, n=n, k=k, dtype=pl.DTYPE_F32, x=ctypes.addressof(x), x_stride=k,
                            weight=ctypes.addressof(weight), y=ctypes.addressof(y), y_stride=n, adds=1)
    p.workspace_bytes = pl.projection_workspace_bytes(p)
    memory = (ctypes.c_uint8 * (p.workspace_bytes + 15))()
    p.workspace = (ctypes.addressof(memory) + 15) // 16 * 16
    pl.projection(p, context, pl.Execution(num_threads=2))
    check(list(y) == want, "projection")  # the values are such that every order of a sum is exact


def main():
    try:
        pl.Execution()
    except RuntimeError as error:
        check("load()" in str(error), str(error))
    else:
        sys.exit("ctypes_test: a struct was made without the library")
    pl.load(sys.argv[1])  # looks up every function
    library = ctypes.CDLL(sys.argv[1])
    for struct in pl.STRUCTS:
        # init() writes the struct, the same bytes whatever was there, and nothing behind it.
        size = ctypes.sizeof(struct)
        written = []
        for filler in (0x5A, 0xA5):
            memory = (ctypes.c_uint8 * (size + 64))(*[filler] * (size + 64))
            getattr(library, struct._init_name)(ctypes.byref(memory))
            check(all(byte == filler for byte in memory[size:]), struct.__name__ + " is larger in C")
            written.append(bytes(memory[:size]))
        for name, type_ in struct._fields_:
            field = getattr(struct, name)
            member = slice(field.offset, field.offset + field.size)
            if not issubclass(type_, (ctypes.Structure, ctypes.Array)) or issubclass(type_, ctypes.Array) and name == "reserved":
                check(written[0][member] == written[1][member], f"{struct.__name__}.{name} is not set by init()")
        last = getattr(struct, struct._fields_[-1][0])
        check(size - (last.offset + last.size) < 16, struct.__name__ + " has bytes behind its last member")

    check(pl.RotaryParams().batch == 1 and pl.RotaryParams(batch=3).batch == 3, "a default of RotaryParams")
    check(pl.RotaryParams().tensors[3].y_strides.channel == 1, "a default of a struct in a struct")
    check(abs(pl.HeadNorm().eps - 1e-6) < 1e-12, "a default of HeadNorm")
    check(pl.ActivationParams().gated is True, "a default of ActivationParams")
    check(pl.status_name(pl.STATUS_DATA_LOSS) == "data loss", "status_name")
    check(pl.version() == pl.HEADER_VERSION, "version")
    norm = pl.NormParams()
    for wrong in (lambda: pl.NormParams(no_such_member=1), lambda: setattr(norm, "no_such_member", 1)):
        try:
            wrong()
        except AttributeError:
            continue
        sys.exit("ctypes_test: a wrong member was taken")
    try:
        pl.norm(None, None)
    except pl.Error as error:
        check(error.code == pl.STATUS_INVALID_ARGUMENT and str(error) == "prologue_norm: params is null", str(error))
    else:
        sys.exit("ctypes_test: null was taken")
    context = pl.gemm_context_create(pl.DEVICE_CPU)
    check(pl.gemm_context_device(context) == pl.DEVICE_CPU, "gemm_context_device")
    check_projection(context)
    communicators = (ctypes.c_void_p * 1)()
    pl.create_communicators(pl.CommunicatorsParams(num_ranks=1), communicators)
    check(pl.communicator_num_ranks(communicators[0]) == 1, "communicator_num_ranks")
    words = check_reserved_words(context, communicators[0])
    check(words > 500, f"only {words} reserved words were found")
    pl.communicator_destroy(communicators[0])
    pl.gemm_context_destroy(context)
    print(f"{len(pl.STRUCTS)} structs, {len(pl.FUNCTIONS)} functions, {words} reserved words of their arguments")


if __name__ == "__main__":
    main()
