"""The operations as registered operators of torch: torch.ops.prologue.*. The functions of the package call them where something
compiles or needs gradients; otherwise they call the extension directly, which takes a third of the time.

Operators write into their arguments and return nothing, except for `rotary`, which returns new tensors and has gradients. Their fakes
need no tensor data. torch allows 64 arguments: so each operator has its tensors one by one, those in groups (a Rope, ..) too, and then
all other values in three lists, in the order of the arguments in _arguments.py. A group begins with an int: whether it is given.
"""

import sys
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, get_args

import torch

from ._arguments import FAULTS, OPERATIONS, ROTARY, ROTARY_OPTIONS, Group, Operation, is_group, members_of
from ._frameworks import Framework, explain, label, leaves_elements
from ._groups import Array, PageTable, RotaryTensor

_SCHEMA_TYPES = {Optional[Array]: "Tensor?", Optional[int]: "int?", Optional[float]: "float?", int: "int", float: "float", bool: "bool"}


def _schema_type(kind: Any) -> str:
    """Of a member's type. What is none of these is a Literal of strings, or one that may be None."""
    return _SCHEMA_TYPES.get(kind) or ("str?" if type(None) in get_args(kind) else "str")


_is_compiling = torch.compiler.is_compiling

# How None is written in the lists.
_NO_INT, _NO_FLOAT, _NO_STRING = -(1 << 63), float("nan"), ""

# The arguments of each operator: those of the operation, but rotary has lists of tensors.
_ROTARY = ("int rotate", *ROTARY_OPTIONS)  # rotate: bit i: whether x[i] is rotated
_OPERATORS = {
    **{name: operation.items for name, operation in OPERATIONS.items()},
    "attention_prologue": OPERATIONS["attention_prologue"].items[:-1],  # without groups of heads
    "rotary": ("Tensor[] x", *_ROTARY),
    "rotary_out": ("Tensor[] x", "Tensor![] out", *_ROTARY, *FAULTS),
}


def _kinds(name: str) -> List[Tuple[str, str]]:
    """The schema type and the name of each argument, groups expanded."""

    def of_group(prefix: str, group: type, writes: Sequence[str]) -> List[Tuple[str, str]]:
        kinds = [("bool", f"has_{prefix}")]
        for member, kind in members_of(group):
            if is_group(kind):
                kinds += of_group(member, PageTable, ())
            else:
                text = _schema_type(kind)
                kinds.append((text.replace("Tensor", "Tensor!") if member in writes else text, f"{prefix}_{member}"))
        return kinds

    kinds: List[Tuple[str, str]] = []
    for item in _OPERATORS[name]:
        if isinstance(item, Group):
            kinds += of_group(*item)
        else:
            kind, argument = item.split()
            kinds.append((kind, argument))
    return kinds


_KINDS = {name: _kinds(name) for name in _OPERATORS}


def _schema(name: str) -> str:
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    parts = []
    for kind, argument in _KINDS[name]:
        if kind.startswith("Tensor"):
            parts.append(f"{kind.replace('Tensor!', f'Tensor({next(letters)}!)') if '!' in kind else kind} {argument}")
    parts += ["int[] ints", "float[] floats", "str[] strings"]
    return f"{name}({', '.join(parts)}) -> {'Tensor[]' if name == 'rotary' else '()'}"


def _defaults(group: Any) -> List[Any]:
    values: List[Any] = []
    for member, kind in members_of(group):
        values += [False, *_defaults(PageTable)] if is_group(kind) else [group._field_defaults[member]]
    return values


class _Members(NamedTuple):
    nested: Tuple[bool, ...]  # for each member: whether it is a page table
    defaults: Tuple[Any, ...]  # of all members, expanded


def _members(group: type) -> _Members:
    return _Members(tuple(is_group(kind) for _, kind in members_of(group)), tuple(_defaults(group)))


_PAGE_TABLE = _members(PageTable)
_ITEMS = {name: tuple(_members(item.members) if isinstance(item, Group) else None for item in items) for name, items in _OPERATORS.items()}


def _expand_group(group: _Members, values: Sequence[Any], at: int, result: List[Any]) -> int:
    """Appends the group that begins at values[at], a None or True and its members, as the flag and all members. Returns its end."""
    if values[at] is None:
        result.append(False)
        result.extend(group.defaults)
        return at + 1
    result.append(True)
    at += 1
    for nested in group.nested:
        if nested:
            at = _expand_group(_PAGE_TABLE, values, at, result)
        else:
            result.append(values[at])
            at += 1
    return at


def _collapse_group(group: _Members, values: Sequence[Any], at: int, result: List[Any]) -> int:
    """The inverse of _expand_group."""
    if not values[at]:
        result.append(None)
        return at + 1 + len(group.defaults)
    result.append(True)
    at += 1
    for nested in group.nested:
        if nested:
            at = _collapse_group(_PAGE_TABLE, values, at, result)
        else:
            result.append(values[at])
            at += 1
    return at


def _convert(items: Sequence[Optional[_Members]], values: Sequence[Any], convert_group: Any) -> List[Any]:
    result: List[Any] = []
    at = 0
    for group in items:
        if group is None:
            result.append(values[at])
            at += 1
        else:
            at = convert_group(group, values, at, result)
    return result


def _pack_expanded(name: str, values: Sequence[Any]) -> List[Any]:
    """From the values of all arguments, groups expanded, to the operator's arguments."""
    tensors: List[Any] = []
    ints: List[Any] = []
    floats: List[Any] = []
    strings: List[Any] = []
    for (kind, _), value in zip(_KINDS[name], values):
        if kind.startswith("Tensor"):
            tensors.append(value)
        elif kind.startswith("float"):
            floats.append(_NO_FLOAT if value is None else value)
        elif kind.startswith("str"):
            strings.append(_NO_STRING if value is None else value)
        else:
            ints.append(_NO_INT if value is None else int(value) if kind == "bool" else value)
    return [*tensors, ints, floats, strings]


def _unpack_expanded(name: str, arguments: Sequence[Any]) -> List[Any]:
    """The inverse of _pack_expanded."""
    tensors = iter(arguments[:-3])
    ints, floats, strings = (iter(values) for values in arguments[-3:])
    values: List[Any] = []
    for kind, _ in _KINDS[name]:
        if kind.startswith("Tensor"):
            values.append(next(tensors))
        elif kind.startswith("float"):
            value = next(floats)
            values.append(None if value != value else value)
        elif kind.startswith("str"):
            values.append(next(strings) or None)
        else:
            value = next(ints)
            values.append(None if value == _NO_INT else bool(value) if kind == "bool" else value)
    return values


def _pack(name: str, values: Sequence[Any]) -> List[Any]:
    """From what the extension takes to the operator's arguments."""
    return _pack_expanded(name, _convert(_ITEMS[name], values, _expand_group))


def _unpack(name: str, arguments: Sequence[Any]) -> List[Any]:
    """The inverse of _pack."""
    return _convert(_ITEMS[name], _unpack_expanded(name, arguments), _collapse_group)


_ROTARY_AT = {argument: i for i, (_, argument) in enumerate(_KINDS["rotary"])}


def _rotary_arguments(x: Sequence[Any], out: Sequence[Any], rotate: int, options: Sequence[Any]) -> List[Any]:
    """As _operations.rotary passes them to the extension."""
    tensors: List[Any] = []
    for i, one in enumerate(x):
        same = out[i].data_ptr() == one.data_ptr() and out[i].stride() == one.stride()
        tensors += RotaryTensor(x=one, out=None if same else out[i], rotate=rotate >> i & 1 == 1)
    return [len(x), *tensors, *options]


def _run_rotary(*arguments: Any) -> List[Any]:
    values = _unpack_expanded("rotary", arguments)
    tail, positions, cu_seqlens = [values[_ROTARY_AT[name]] for name in ("tail", "positions", "cu_seqlens")]
    x, rotate, *options = _convert(_ITEMS["rotary"], values, _collapse_group)
    new = torch.zeros_like if leaves_elements(tail, positions, cu_seqlens) else torch.empty_like
    out = [new(one) for one in x]
    ROTARY.function(*_rotary_arguments(x, out, rotate, (*options, None, None)))
    return out


def _run_rotary_out(*arguments: Any) -> None:
    x, out, rotate, *options = _unpack("rotary_out", arguments)
    ROTARY.function(*_rotary_arguments(x, out, rotate, options))


def _runner(name: str) -> Any:
    function = OPERATIONS[name].function

    def run(*arguments: Any) -> None:
        function(*_unpack(name, arguments), *([None] if name == "attention_prologue" else []))  # no groups of heads

    return run


def _setup_context(ctx: Any, inputs: Tuple[Any, ...], output: Any) -> None:
    _, *tensors, ints, floats, strings = inputs
    ctx.given = [tensor is not None for tensor in tensors]
    ctx.save_for_backward(*(tensor for tensor in tensors if tensor is not None))
    ctx.others = ints, floats, strings


def _backward(ctx: Any, gradients: Sequence[Any]) -> Tuple[Any, ...]:
    """The rotation is linear, and its transpose is the inverse rotation."""
    saved = iter(ctx.saved_tensors)
    tensors = [next(saved) if given else None for given in ctx.given]
    values = _unpack_expanded("rotary", [list(gradients), *tensors, *ctx.others])
    if not values[_ROTARY_AT["has_rope"]]:
        raise ValueError("rope is None: it must be given")
    if values[_ROTARY_AT["rope_inverse_by_own_sine"]]:
        raise NotImplementedError("inverse_by_own_sine has no gradient: it is not the transpose of a rotation")
    values[_ROTARY_AT["rope_inverse"]] = not values[_ROTARY_AT["rope_inverse"]]
    results = torch.ops.prologue.rotary(*_pack_expanded("rotary", values))
    return (results, *[None] * (len(tensors) + 3))


def _keep_offsets_in_inductor() -> None:
    """Gives Inductor the lowering of aten.sym_storage_offset that it lacks (pytorch#198068, in torch 2.11 and 2.15). Without it, where
    shapes are dynamic, an operator that writes into a view made inside of the compiled function writes to the view's base instead."""
    lowering = sys.modules.get("torch._inductor.lowering")  # while Inductor compiles, it is imported
    operator = torch.ops.aten.sym_storage_offset.default
    if lowering is None or (operator in lowering.lowerings and operator not in lowering.fallbacks):
        return
    from torch._inductor.virtualized import V

    def sym_storage_offset(_: Any) -> Any:
        value = V.graph.current_node.meta["val"]
        return value.node.expr if isinstance(value, torch.SymInt) else value

    lowering.register_lowering(operator, type_promotion_kind=None)(sym_storage_offset)
    lowering.fallbacks.discard(operator)


def _fake_of_writing(*_: Any) -> None:
    _keep_offsets_in_inductor()


def _register() -> Any:
    library: Any = torch.library.Library("prologue", "DEF")  # type: ignore[no-untyped-call]
    for name in _OPERATORS:
        library.define(_schema(name))
        run = {"rotary": _run_rotary, "rotary_out": _run_rotary_out}.get(name) or _runner(name)
        library.impl(name, run, "CPU")
        library.impl(name, run, "CUDA")
        fake = (lambda x, *_: [torch.empty_like(one) for one in x]) if name == "rotary" else _fake_of_writing
        torch.library.register_fake(f"prologue::{name}", fake, lib=library)
    torch.library.register_autograd("prologue::rotary", _backward, setup_context=_setup_context, lib=library)
    return library


_LIBRARY = _register()


class _Dispatcher:
    @staticmethod
    def needed(x: Sequence[Any]) -> bool:
        """Whether a call must go through torch's dispatcher. x: tensors that may need gradients."""
        if _is_compiling():
            return True
        gradients = torch.is_grad_enabled()
        for one in x:
            if type(one) not in _PLAIN or (gradients and one.requires_grad):
                return True
        return False

    @staticmethod
    def needed_without_gradients(x: Sequence[Any]) -> bool:
        """The same for an operation that has no gradients: an error if one of x needs them."""
        if torch.is_grad_enabled():
            for one in x:
                if one is not None and getattr(one, "requires_grad", False):
                    raise NotImplementedError("only rotary has gradients: call the other operations under torch.no_grad()")
        return _is_compiling()

    @staticmethod
    def rotary(x: Sequence[Any], out: Optional[Sequence[Any]], rotate: Optional[Sequence[bool]], options: Sequence[Any]) -> Any:
        bits = 0
        for i in range(len(x)):
            bits |= (1 if rotate is None or rotate[i] else 0) << i
        if not _is_compiling():
            given = [value for one in zip(x, out or x) for value in RotaryTensor(*one, True)]
            explain(ROTARY, (len(x), *given, *options))
            _explain_tensors(ROTARY, (len(x), *given, *options))
        *options, faults, token_faults = options
        if out is None and faults is None and token_faults is None:
            out = torch.ops.prologue.rotary(*_pack("rotary", [list(x), bits, *options]))
        else:
            if torch.is_grad_enabled() and any([one.requires_grad for one in x]):
                raise NotImplementedError("rotary with out, inplace, faults or token_faults has no gradients: call it without them")
            out = [torch.zeros_like(one) for one in x] if out is None else list(out)
            torch.ops.prologue.rotary_out(*_pack("rotary_out", [list(x), out, bits, *options, faults, token_faults]))
        return out[0] if len(x) == 1 else tuple(out)

    @staticmethod
    def gather_cos_sin(arguments: Tuple[Any, ...]) -> None:
        torch.ops.prologue.gather_cos_sin(*_pack("gather_cos_sin", arguments))

    @staticmethod
    def rerope(arguments: Tuple[Any, ...]) -> None:
        torch.ops.prologue.rerope(*_pack("rerope", arguments))

    @staticmethod
    def attention_prologue(arguments: Tuple[Any, ...]) -> None:
        torch.ops.prologue.attention_prologue(*_pack("attention_prologue", arguments[:-1]))

    @staticmethod
    def mla_prologue(arguments: Tuple[Any, ...]) -> None:
        torch.ops.prologue.mla_prologue(*_pack("mla_prologue", arguments))

    @staticmethod
    def paged_attention(arguments: Tuple[Any, ...]) -> None:
        torch.ops.prologue.paged_attention(*_pack("paged_attention", arguments))

    @staticmethod
    def attention_layer(arguments: Tuple[Any, ...]) -> None:
        torch.ops.prologue.attention_layer(*_pack("attention_layer", arguments))


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def _explain_tensors(operation: Operation, arguments: Sequence[Any], error: Optional[Exception] = None) -> bool:
    """Raises an error that says more than `error` of a call that has failed: tensors of torch.func, and those that have no memory. True if
    all tensors are meta tensors: they have shapes only, and the call has nothing to do."""
    try:
        values = operation.named(arguments)
    except TypeError:
        return False
    tensors = {label(name): value for name, value in values.items() if isinstance(value, torch.Tensor)}
    for name, tensor in tensors.items():
        if torch._C._functorch.is_batchedtensor(tensor):
            raise NotImplementedError(
                f"{operation.name}: {name} is batched by torch.func.vmap, which operations do not support: "
                "give them all sequences at once, as an axis or as tokens of one batch"
            ) from error
        if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            raise NotImplementedError(
                f"{operation.name}: {name} is a tensor of torch.func (grad, jvp, ..), which operations do not support: "
                "gradients of rotary are those of torch.autograd"
            ) from error
        if tensor.layout != torch.strided:
            raise ValueError(f"{operation.name}: {name} is {tensor.layout}: it must be a dense tensor, {name}.to_dense()") from error
    meta = [name for name, tensor in tensors.items() if tensor.is_meta]
    real = [name for name, tensor in tensors.items() if not tensor.is_meta]
    if meta and real:
        raise ValueError(
            f"{operation.name}: {meta[0]} is a meta tensor, which has no data, but {real[0]} is on {tensors[real[0]].device}: "
            "all tensors of a call must be on one device"
        ) from error
    return bool(meta)


class _Torch(Framework):
    dispatcher = _Dispatcher

    def empty(self, like: Any, shape: Tuple[int, ...], dtype: Any = None) -> Any:
        if dtype is not None:
            return torch.empty(shape, dtype=getattr(torch, dtype), device=like.device)
        return like.new_empty(shape)

    def zeros(self, like: Any, shape: Tuple[int, ...], dtype: Any = None) -> Any:
        return like.new_zeros(shape, dtype=None if dtype is None else getattr(torch, dtype))

    def empty_like(self, like: Any) -> Any:
        return torch.empty_like(like)

    def zeros_like(self, like: Any) -> Any:
        return torch.zeros_like(like)

    def call(self, operation: Operation, arguments: Tuple[Any, ...]) -> None:
        try:
            operation.function(*arguments)
        except Exception as error:
            explain(operation, arguments, error)
            if not _explain_tensors(operation, arguments, error):
                raise

    def exported(self, array: Any, written: Dict[str, Any]) -> Any:
        return array.detach() if isinstance(array, torch.Tensor) else array

    def from_host(self, like: Any, tensor: Any) -> Any:
        return torch.utils.dlpack.from_dlpack(tensor).to(like.device)

    def array(self, like: Any, values: Any, dtype: str) -> Any:
        return torch.tensor(list(values), dtype=getattr(torch, dtype), device=like.device)

    def arange(self, like: Any, n: int, dtype: str) -> Any:
        return torch.arange(n, dtype=getattr(torch, dtype), device=like.device)

    def cast(self, x: Any, dtype: str) -> Any:
        return x.to(getattr(torch, dtype))

    def contiguous(self, x: Any) -> Any:
        return x.contiguous()

    def concatenate(self, a: Any, b: Any) -> Any:
        return torch.cat([a, b], -1)

    def join_halves(self, a: Any, b: Any) -> Any:
        step = a.shape[-1] * a.stride(-1)
        if a.untyped_storage().data_ptr() != b.untyped_storage().data_ptr():
            return None
        if a.shape != b.shape or a.stride() != b.stride() or a.dtype != b.dtype or b.data_ptr() - a.data_ptr() != step * a.element_size():
            return None
        return a.as_strided((*a.shape[:-1], 2 * a.shape[-1]), a.stride())


FRAMEWORK = _Torch()
