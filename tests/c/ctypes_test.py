"""examples/python/prologue.py beside the library: the size of every struct, every function, defaults.

    python3 tests/c/ctypes_test.py libprologue.so
"""
import ctypes
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples", "python"))
import prologue as pl  # noqa: E402


def check(ok, what):
    if not ok:
        sys.exit("ctypes_test: " + what)


def main():
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
    check(pl.status_name(pl.STATUS_DATA_LOSS) == b"data loss", "status_name")
    check(pl.version() == pl.HEADER_VERSION, "version")
    for wrong in ({"no_such_member": 1},):
        try:
            pl.NormParams(**wrong)
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
    pl.gemm_context_destroy(context)
    print(f"{len(pl.STRUCTS)} structs, {len(pl.FUNCTIONS)} functions")


if __name__ == "__main__":
    main()
