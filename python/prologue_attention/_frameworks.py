"""What differs between the array libraries: how an output is made, and how the extension is called on the caller's stream."""

from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import tvm_ffi

from . import _extension
from ._arguments import Operation
from ._groups import HeadGroup, Rope

# dtypes of ml_dtypes, which NumPy itself has no DLPack name for.
_NARROW = {"bfloat16": "uint16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}


def leaves_elements(tail: str, positions: Any, cu_seqlens: Any) -> bool:
    """Whether a call of rotary may leave elements of its result as they are: those of padding, or a tail."""
    return tail == "leave" or positions is not None or cu_seqlens is not None


def may_pad(places: Any) -> bool:
    """Whether a call with these TokenPlaces may have padding, whose rows it leaves as they are."""
    return places is not None and (places.positions is not None or places.cu_seqlens_q is not None)


def framework_name(array: Any) -> Optional[str]:
    """What messages call the framework of a value; None: it is no array of one that is known."""
    for base in type(array).__mro__:
        name = _NAMES.get(base.__module__.partition(".")[0])
        if name is not None and hasattr(array, "__dlpack__"):
            return name
    return None


def explain(operation: Operation, arguments: Sequence[Any], error: Optional[Exception] = None) -> None:
    """Raises an error that says more than `error` of a call that has failed, if there is one: arrays of two frameworks."""
    try:
        values = operation.named(arguments)
    except TypeError:
        return
    arrays = {name: value for name, value in ((label(name), value) for name, value in values.items()) if framework_name(value)}
    for name, value in arrays.items():
        first = next(iter(arrays))
        mine, others = framework_name(arrays[first]), framework_name(value)
        if mine != others:
            raise TypeError(
                f"{operation.name}: {first} is {_with_article(mine)}, {name} {_with_article(others)}: convert one of them, "
                "all arrays of a call must be of one framework"
            ) from error


def label(name: str) -> str:
    """What messages call an argument of Operation.named: x[1] for tensors[1].x."""
    return f"{name.split('.')[1]}[{name[8]}]" if name.startswith("tensors[") else name


def _with_article(framework: Optional[str]) -> str:
    return f"a {framework} {'tensor' if framework == 'torch' else 'array'}"


_NAMES = {"numpy": "NumPy", "cupy": "CuPy", "torch": "torch", "jax": "JAX", "jaxlib": "JAX"}


class _Writable:
    """The memory of a read-only array as that of one that is not: NumPy exports no other. For arrays that are only read."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.__array_interface__ = {**array.__array_interface__, "data": (array.__array_interface__["data"][0], False)}


class Framework:
    """empty(like, shape, dtype): a new dense array beside `like`, for a call that writes every element of it; dtype None: that of `like`,
    "float32": that one. zeros(..): the same of zeros, for a call that may leave elements as they are: rows of padding, and those that no
    sequence owns. empty_like(like), zeros_like(like): of its shape and dtype. call(operation, arguments): calls the extension.
    For compat: array(like, values, dtype): a list as an array; arange(like, n, dtype); cast(x, dtype); contiguous(x): x, or a
    copy of it; concatenate(a, b): along the last axis; join_halves(a, b): the array of which a and b are the halves along the last
    axis, without a copy, or None if they are not."""

    # Whether the call must go through torch's dispatcher; only torch's has one.
    dispatcher: Any = None

    def empty(self, like: Any, shape: Tuple[int, ...], dtype: Any = None) -> Any:
        raise TypeError(f"out is None, and {type(like).__module__}.{type(like).__name__} is not known: give out")

    def zeros(self, like: Any, shape: Tuple[int, ...], dtype: Any = None) -> Any:
        return self.empty(like, shape, dtype)

    def empty_like(self, like: Any) -> Any:
        return self.empty(like, like.shape)

    def zeros_like(self, like: Any) -> Any:
        return self.zeros(like, like.shape)

    def call(self, operation: Operation, arguments: Tuple[Any, ...]) -> None:
        try:
            operation.function(*arguments)
        except Exception as error:
            explain(operation, arguments, error)
            raise

    def exported(self, array: Any, written: Dict[str, Any]) -> Any:
        """What DLPack takes of an array. written: the arrays that the call writes, by name."""
        return array

    def run_plan(self, run: Callable[..., Any], arrays: Tuple[Any, ...]) -> None:
        """Calls a plan on the caller's stream."""
        run(*arrays)

    def from_host(self, like: Any, tensor: Any) -> Any:
        """A tensor of the extension on the CPU as an array beside `like`."""
        raise self._unknown(like)

    def array(self, like: Any, values: Any, dtype: str) -> Any:
        raise self._unknown(like)

    def arange(self, like: Any, n: int, dtype: str) -> Any:
        raise self._unknown(like)

    def cast(self, x: Any, dtype: str) -> Any:
        raise self._unknown(x)

    def contiguous(self, x: Any) -> Any:
        raise self._unknown(x)

    def concatenate(self, a: Any, b: Any) -> Any:
        raise self._unknown(a)

    def join_halves(self, a: Any, b: Any) -> Any:
        return None

    def _unknown(self, array: Any) -> TypeError:
        return TypeError(f"{type(array).__module__}.{type(array).__name__} is not known: use arrays of torch, NumPy or CuPy")


class _NumPy(Framework):
    def __init__(self) -> None:
        import numpy

        self.numpy = numpy

    def empty(self, like: Any, shape: Tuple[int, ...], dtype: Any = None) -> Any:
        return self.numpy.empty(shape, like.dtype if dtype is None else dtype)

    def zeros(self, like: Any, shape: Tuple[int, ...], dtype: Any = None) -> Any:
        return self.numpy.zeros(shape, like.dtype if dtype is None else dtype)

    def _exports(self, value: Any) -> bool:
        """Whether NumPy exports it: it does not if the dtype is narrow, or if it is read-only."""
        return not isinstance(value, self.numpy.ndarray) or (value.dtype.name not in _NARROW and value.flags.writeable)

    def _exported(self, value: Any, written: Dict[str, Any]) -> Any:
        """What the extension takes for a value."""
        if self._exports(value):
            return value
        array, name = value, value.dtype.name
        if name in _NARROW:
            array = array.view(_NARROW[name])
        if not value.flags.writeable:
            for what, one in written.items():
                if one is value:
                    raise ValueError(f"{what} is read-only: the call writes it")
            array = self.numpy.asarray(_Writable(array))
        return _extension.reinterpret(tvm_ffi.from_dlpack(array), name) if name in _NARROW else array

    def exported(self, array: Any, written: Dict[str, Any]) -> Any:
        return self._exported(array, written)

    def run_plan(self, run: Callable[..., Any], arrays: Tuple[Any, ...]) -> None:
        try:
            run(*arrays)
        except (BufferError, TypeError):  # of NumPy, before anything has run
            if all([self._exports(array) for array in arrays]):
                raise
            written = {f"argument {i} of the plan": array for i, array in enumerate(arrays)}
            run(*[self._exported(array, written) for array in arrays])

    def call(self, operation: Operation, arguments: Tuple[Any, ...]) -> None:
        try:
            operation.function(*arguments)
        except (BufferError, TypeError) as error:  # of NumPy, before anything has run
            explain(operation, arguments, error)
            if all([self._exports(value) for value in arguments]):
                raise
            written = operation.written(arguments)
            operation.function(*[self._exported(value, written) for value in arguments])

    def from_host(self, like: Any, tensor: Any) -> Any:
        import numpy

        array = numpy.from_dlpack(tensor)
        return array if self.numpy is numpy else self.numpy.asarray(array)

    def array(self, like: Any, values: Any, dtype: str) -> Any:
        return self.numpy.array(list(values), dtype)

    def arange(self, like: Any, n: int, dtype: str) -> Any:
        return self.numpy.arange(n, dtype=dtype)

    def cast(self, x: Any, dtype: str) -> Any:
        return x.astype(dtype)

    def contiguous(self, x: Any) -> Any:
        return self.numpy.ascontiguousarray(x)

    def concatenate(self, a: Any, b: Any) -> Any:
        return self.numpy.concatenate([a, b], -1)

    def join_halves(self, a: Any, b: Any) -> Any:
        step = a.shape[-1] * a.strides[-1]
        if a.shape != b.shape or a.strides != b.strides or a.dtype != b.dtype or b.ctypes.data - a.ctypes.data != step:
            return None
        shape = (*a.shape[:-1], 2 * a.shape[-1])
        return self.numpy.lib.stride_tricks.as_strided(a, shape, a.strides)


class _CuPy(_NumPy):
    def __init__(self) -> None:
        import cupy  # type: ignore[import-not-found,unused-ignore]

        self.cupy = self.numpy = cupy

    def empty(self, like: Any, shape: Tuple[int, ...], dtype: Any = None) -> Any:
        with like.device:
            return self.cupy.empty(shape, like.dtype if dtype is None else dtype)

    def zeros(self, like: Any, shape: Tuple[int, ...], dtype: Any = None) -> Any:
        with like.device:
            return self.cupy.zeros(shape, like.dtype if dtype is None else dtype)

    def join_halves(self, a: Any, b: Any) -> Any:
        return None

    def call(self, operation: Operation, arguments: Tuple[Any, ...]) -> None:
        first = next(value for value in arguments if isinstance(value, self.cupy.ndarray))
        with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", first.device.id), self.cupy.cuda.get_current_stream(first.device.id).ptr):
            super(_NumPy, self).call(operation, arguments)


    def exported(self, array: Any, written: Dict[str, Any]) -> Any:
        return array

    def run_plan(self, run: Callable[..., Any], arrays: Tuple[Any, ...]) -> None:
        first = arrays[0]
        with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", first.device.id), self.cupy.cuda.get_current_stream(first.device.id).ptr):
            run(*arrays)


class _Jax(Framework):
    READ_ONLY = "JAX arrays cannot be written: use the functions of prologue_attention.jax"

    def empty(self, like: Any, shape: Tuple[int, ...], dtype: Any = None) -> Any:
        raise TypeError(self.READ_ONLY)

    def call(self, operation: Operation, arguments: Tuple[Any, ...]) -> None:
        raise TypeError(self.READ_ONLY)


def _torch() -> Framework:
    from .torch import FRAMEWORK

    return FRAMEWORK


_MAKERS: Dict[str, Callable[[], Framework]] = {"numpy": _NumPy, "cupy": _CuPy, "torch": _torch, "jax": _Jax, "jaxlib": _Jax}
_KNOWN: Dict[type, Framework] = {}


_FREQUENCIES: Dict[Any, Any] = {}  # of theta, on a device: made once, and never freed, since captured graphs read them


def groups_with_frequencies(groups: Optional[Sequence[HeadGroup]]) -> Optional[List[HeadGroup]]:
    """Groups of heads whose ropes have no theta."""
    if not groups:
        return None
    for group in groups:
        if not isinstance(group, HeadGroup):
            raise TypeError(f"{group!r} is not of its class (HeadGroup)")
    return [group._replace(rope=with_frequencies(group.rope, group.x)) for group in groups]


def with_frequencies(rope: Optional[Rope], like: Any) -> Optional[Rope]:
    """A rope for the operations that take no theta: with its inv_freq in float32."""
    if rope is None or rope.theta is None or rope.rotary_dim is None or rope.inv_freq is not None:
        return rope
    framework = framework_of(like)
    width = rope.rotary_dim // rope.num_blocks
    compiling = framework.dispatcher is not None and framework.dispatcher.needed(())
    where = (framework, None if compiling else str(getattr(like, "device", "")), rope.theta, width)
    found = None if compiling else _FREQUENCIES.get(where)
    if found is None:
        found = framework.array(like, [rope.theta ** (-2.0 * column / width) for column in range(width // 2)], "float32")
        if not compiling:
            _FREQUENCIES[where] = found
    return rope._replace(theta=None, inv_freq=found)


def numpy_framework() -> Framework:
    return _NumPy()


def framework_of(array: Any) -> Framework:
    """That of an array, by its type."""
    found = _KNOWN.get(type(array))
    return _find(type(array)) if found is None else found


def _find(kind: type) -> Framework:
    for base in kind.__mro__:
        maker = _MAKERS.get(base.__module__.partition(".")[0])
        if maker is not None:
            _KNOWN[kind] = maker()
            return _KNOWN[kind]
    if not hasattr(kind, "__dlpack__"):
        raise TypeError(f"{kind.__module__}.{kind.__name__} is not an array: it must have DLPack (torch, NumPy, CuPy)")
    _KNOWN[kind] = Framework()
    return _KNOWN[kind]
