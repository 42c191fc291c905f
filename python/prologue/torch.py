"""The operations as registered operators of torch: torch.ops.prologue.*. prologue.rotary and the others call them where something
compiles or needs gradients; otherwise they call the extension directly, which takes a third of the time.

Operators write into their arguments and return nothing, except for `rotary`, which returns new tensors and has gradients. Their fakes
need no tensor data. torch allows 64 arguments: so each operator has its tensors one by one, those in groups (a Rope, ..) too, and then
all other values in three lists, in order. A group begins with an int: whether it is given.
"""

import sys
import typing
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

import torch

from . import _extension
from ._frameworks import Framework, leaves_elements
from ._groups import Array, HeadNorm, PagedKv, PageTable, QueryScale, Rope, TokenPlaces

_SCHEMA_TYPES = {Optional[Array]: "Tensor?", Optional[int]: "int?", Optional[float]: "float?", Optional[str]: "str?", int: "int", float: "float", bool: "bool", str: "str"}  # fmt: skip

_is_compiling = torch.compiler.is_compiling

# How None is written in the lists.
_NO_INT, _NO_FLOAT, _NO_STRING = -(1 << 63), float("nan"), ""

# The arguments of each operator in the order of _operations.py: "type name", with "Tensor!" for what it writes; or (name, group, members
# that it writes).
_ROPE = ("rope", Rope, ())
_PLACES = ("places", TokenPlaces, ())
_CACHE = ("cache", PagedKv, ("k", "v", "k_scale", "v_scale"))
_FAULTS = ("Tensor!? faults", "Tensor!? token_faults")
_STEPS = (
    _CACHE, "Tensor? q_bias", "Tensor? k_bias", "Tensor? v_bias", ("q_norm", HeadNorm, ()), ("k_norm", HeadNorm, ()),
    ("v_norm", HeadNorm, ()), _ROPE, _PLACES, "int hadamard_block", ("q_scale", QueryScale, ()), "str rounding", "Tensor!? k_out",
    "Tensor!? v_out", *_FAULTS,
)  # fmt: skip
_OPTIONS = (
    "float? scale", "float soft_cap", "int window", "int chunk", "int ring_size", "Tensor? sinks", "int? max_seqlen_q",
    "int? max_seq_len", "int num_decode_seqs", "bool batch_invariant",
)  # fmt: skip
_ROTARY_OPTIONS = (
    "str? layout", "str tail", _ROPE, "Tensor? positions", "int offset", "Tensor? offsets", "Tensor? cu_seqlens", "int? max_seqlen",
)  # fmt: skip
_OPERATORS = {
    "gather_cos_sin": ("Tensor cos_sin", "Tensor positions", "Tensor? pair_axis", "str past_table", "Tensor! out"),
    "attention_prologue": (
        "Tensor? q", "Tensor? k", "Tensor? v", "Tensor? q_rope", "Tensor? k_rope", "Tensor? qkv", "int? num_q_heads",
        "int? num_kv_heads", "int? head_dim", "int? v_head_dim", "Tensor!? q_out", "Tensor!? q8_out", "Tensor!? q8_scale", *_STEPS,
    ),
    "mla_prologue": (
        "Tensor? kv_c", "Tensor? k_pe", "Tensor? q_pe", "Tensor!? kv_cache", "Tensor!? ckv_cache", "Tensor!? kpe_cache",
        "str? cache_type", "Tensor? cache_scale", ("norm", HeadNorm, ()), _ROPE, "Tensor? positions", "Tensor? slot_mapping",
        "Tensor!? q_pe_out", "Tensor!? kv_c_out", "Tensor!? k_pe_out", *_FAULTS,
    ),
    "paged_attention": (
        "Tensor q", "Tensor! out", ("cache", PagedKv, ()), "Tensor cu_seqlens_q", "Tensor? seq_lens", ("page_table", PageTable, ()),
        *_OPTIONS, "Tensor!? workspace", "Tensor!? counters", *_FAULTS,
    ),
    "attention_layer": (
        "Tensor hidden_states", "Tensor qkv_weight", "Tensor output_weight", "Tensor? output_bias", "Tensor! out", "int num_q_heads",
        "int num_kv_heads", "int head_dim", "int? v_head_dim", *_STEPS, *_OPTIONS, "Tensor? seq_lens", "Tensor!? workspace",
        "bool clears",
    ),
    "rotary": ("Tensor[] x", "int rotate", *_ROTARY_OPTIONS),  # rotate: bit i: whether x[i] is rotated
    "rotary_out": ("Tensor[] x", "Tensor![] out", "int rotate", *_ROTARY_OPTIONS, *_FAULTS),
}  # fmt: skip


def _members(group: type) -> List[Tuple[str, Any]]:
    """The names and types of a group's members; those of a group in it, as PageTable in TokenPlaces, in their place."""
    return list(typing.get_type_hints(group).items())


def _kinds(name: str) -> List[Tuple[str, str]]:
    """The schema type and the name of each argument, groups expanded."""

    def of_group(prefix: str, group: type, writes: Sequence[str]) -> List[Tuple[str, str]]:
        kinds = [("bool", f"has_{prefix}")]
        for member, kind in _members(group):
            if kind == Optional[PageTable]:
                kinds += of_group(member, PageTable, ())
            else:
                text = _SCHEMA_TYPES[kind]
                kinds.append((text.replace("Tensor", "Tensor!") if member in writes else text, f"{prefix}_{member}"))
        return kinds

    kinds: List[Tuple[str, str]] = []
    for item in _OPERATORS[name]:
        if isinstance(item, tuple):
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


def _defaults(group: Any) -> list:
    values: list = []
    for member, kind in _members(group):
        values += [False, *_defaults(PageTable)] if kind == Optional[PageTable] else [group._field_defaults[member]]
    return values


class _Group(NamedTuple):
    nested: Tuple[bool, ...]  # for each member: whether it is a page table
    defaults: Tuple[Any, ...]  # of all members, expanded


def _group(group: type) -> _Group:
    return _Group(tuple(kind == Optional[PageTable] for _, kind in _members(group)), tuple(_defaults(group)))


_PAGE_TABLE = _group(PageTable)
_ITEMS = {name: tuple(_group(item[1]) if isinstance(item, tuple) else None for item in items) for name, items in _OPERATORS.items()}


def _expand_group(group: _Group, values: Sequence[Any], at: int, result: list) -> int:
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


def _collapse_group(group: _Group, values: Sequence[Any], at: int, result: list) -> int:
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


def _convert(items: Sequence[Optional[_Group]], values: Sequence[Any], convert_group: Any) -> list:
    result: list = []
    at = 0
    for group in items:
        if group is None:
            result.append(values[at])
            at += 1
        else:
            at = convert_group(group, values, at, result)
    return result


def _pack(name: str, values: Sequence[Any]) -> list:
    """From what the extension reads to the operator's arguments."""
    tensors: list = []
    ints: list = []
    floats: list = []
    strings: list = []
    for (kind, _), value in zip(_KINDS[name], _convert(_ITEMS[name], values, _expand_group)):
        if kind.startswith("Tensor"):
            tensors.append(value)
        elif kind.startswith("float"):
            floats.append(_NO_FLOAT if value is None else value)
        elif kind.startswith("str"):
            strings.append(_NO_STRING if value is None else value)
        else:
            ints.append(_NO_INT if value is None else int(value) if kind == "bool" else value)
    return [*tensors, ints, floats, strings]


def _unpack(name: str, arguments: Sequence[Any]) -> list:
    """The inverse of _pack."""
    tensors = iter(arguments[:-3])
    ints, floats, strings = (iter(values) for values in arguments[-3:])
    values: list = []
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
    return _convert(_ITEMS[name], values, _collapse_group)


def _rotary_arguments(x: Sequence[Any], out: Sequence[Any], rotate: int, options: Sequence[Any]) -> list:
    """As _operations.rotary passes them to the extension."""
    tensors: list = []
    for i, one in enumerate(x):
        same = out[i].data_ptr() == one.data_ptr() and out[i].stride() == one.stride()
        tensors += (one, None if same else out[i], rotate >> i & 1 == 1)
    return [len(x), *tensors, *options]


def _run_rotary(*arguments: Any) -> List[Any]:
    x, rotate, *options = _unpack("rotary", arguments)
    _, tail, *_, positions, _, _, cu_seqlens, _ = options
    new = torch.zeros_like if leaves_elements(tail, positions, cu_seqlens) else torch.empty_like
    out = [new(one) for one in x]
    _extension.rotary(*_rotary_arguments(x, out, rotate, (*options, None, None)))
    return out


def _run_rotary_out(*arguments: Any) -> None:
    x, out, rotate, *options = _unpack("rotary_out", arguments)
    _extension.rotary(*_rotary_arguments(x, out, rotate, options))


def _runner(name: str) -> Any:
    function = getattr(_extension, name)

    def run(*arguments: Any) -> None:
        function(*_unpack(name, arguments))

    return run


def _setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
    _, *tensors, ints, floats, strings = inputs
    ctx.given = [tensor is not None for tensor in tensors]
    ctx.save_for_backward(*(tensor for tensor in tensors if tensor is not None))
    ctx.others = ints, floats, strings


def _backward(ctx: Any, gradients: Sequence[Any]) -> tuple:
    """The rotation is linear, and its transpose is the inverse rotation."""
    saved = iter(ctx.saved_tensors)
    tensors = [next(saved) if given else None for given in ctx.given]
    _, rotate, layout, tail, has_rope, *rest = _unpack("rotary", [list(gradients), *tensors, *ctx.others])
    if has_rope is None:
        raise ValueError("rope is None: it must be given")
    rope, rest = Rope(*rest[: len(Rope._fields)]), rest[len(Rope._fields) :]
    if rope.inverse_by_own_sine:
        raise NotImplementedError("inverse_by_own_sine has no gradient: it is not the transpose of a rotation")
    rope = rope._replace(inverse=not rope.inverse)
    results = torch.ops.prologue.rotary(*_pack("rotary", [list(gradients), rotate, layout, tail, True, *rope, *rest]))
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
    library = torch.library.Library("prologue", "DEF")
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
    def needed(*x: Any) -> bool:
        """Whether a call must go through torch's dispatcher. x: tensors that may need gradients."""
        if _is_compiling():
            return True
        for one in x:
            if (one.requires_grad and torch.is_grad_enabled()) or type(one) not in _PLAIN:
                return True
        return False

    @staticmethod
    def needed_without_gradients(*x: Any) -> bool:
        """The same for an operation that has no gradients: an error if one of x needs them."""
        if torch.is_grad_enabled():
            for one in x:
                if one is not None and one.requires_grad:
                    raise NotImplementedError("only rotary has gradients: call the other operations under torch.no_grad()")
        return _is_compiling()

    @staticmethod
    def rotary(x: Sequence[Any], out: Optional[Sequence[Any]], rotate: Optional[Sequence[bool]], options: Sequence[Any]) -> Any:
        bits = 0
        for i in range(len(x)):
            bits |= (1 if rotate is None or rotate[i] else 0) << i
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
    def gather_cos_sin(arguments: tuple) -> None:
        torch.ops.prologue.gather_cos_sin(*_pack("gather_cos_sin", arguments))

    @staticmethod
    def attention_prologue(arguments: tuple) -> None:
        torch.ops.prologue.attention_prologue(*_pack("attention_prologue", arguments))

    @staticmethod
    def mla_prologue(arguments: tuple) -> None:
        torch.ops.prologue.mla_prologue(*_pack("mla_prologue", arguments))

    @staticmethod
    def paged_attention(arguments: tuple) -> None:
        torch.ops.prologue.paged_attention(*_pack("paged_attention", arguments))

    @staticmethod
    def attention_layer(arguments: tuple) -> None:
        torch.ops.prologue.attention_layer(*_pack("attention_layer", arguments))


_PLAIN = (torch.Tensor, torch.nn.Parameter)


class _Torch(Framework):
    dispatcher = _Dispatcher

    def empty(self, like: Any, shape: tuple, dtype: Any = None) -> Any:
        if dtype is not None:
            return torch.empty(shape, dtype=getattr(torch, dtype), device=like.device)
        return like.new_empty(shape)

    def zeros(self, like: Any, shape: tuple, dtype: Any = None) -> Any:
        return like.new_zeros(shape, dtype=None if dtype is None else getattr(torch, dtype))

    def empty_like(self, like: Any) -> Any:
        return torch.empty_like(like)

    def zeros_like(self, like: Any) -> Any:
        return torch.zeros_like(like)

    def call(self, function: Any, arguments: tuple, written: Any) -> None:
        function(*arguments)

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
