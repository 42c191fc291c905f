"""What each operation of the extension takes: the one list of its arguments, by name. The extension finds them by these names, torch's
operators have them in their schemas, and the tuples that _operations.py passes are in this order (tests/test_names.py)."""

import typing
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

from . import _extension
from ._groups import (
    Array, HeadGroup, HeadNorm, PagedKv, PageTable, QueryScale, Rope, RotaryTensor, TokenPlaces, flat, flat_groups, flat_places,
)  # fmt: skip


class Group(NamedTuple):
    """An argument that is a group, or None."""

    name: str
    members: type
    written: Tuple[str, ...] = ()  # the members that the operation writes


# "type name", with "Tensor!" for what the operation writes; or a group.
Item = Union[str, Group]

_ROPE = Group("rope", Rope)
_CACHE = Group("cache", PagedKv, ("k", "v", "k_scale", "v_scale", "k_block_scale", "v_block_scale"))
FAULTS: Tuple[Item, ...] = ("Tensor!? faults", "Tensor!? token_faults")
_STEPS: Tuple[Item, ...] = (
    _CACHE, "Tensor? q_bias", "Tensor? k_bias", "Tensor? v_bias", Group("q_norm", HeadNorm), Group("k_norm", HeadNorm),
    Group("v_norm", HeadNorm), _ROPE, Group("places", TokenPlaces), "int hadamard_block", "int v_hadamard_block", Group("q_scale", QueryScale),
    "float k_constant", "float v_constant", "str rounding", "Tensor!? k_out", "Tensor!? v_out", *FAULTS,
)  # fmt: skip
_OPTIONS: Tuple[Item, ...] = (
    "float? scale", "float soft_cap", "int window", "int chunk", "int ring_size", "Tensor? sinks", "int? max_seqlen_q",
    "int? max_seq_len", "int num_decode_seqs", "bool batch_invariant",
)  # fmt: skip
ROTARY_OPTIONS: Tuple[Item, ...] = (
    "str? layout", "str tail", _ROPE, "Tensor? positions", "int offset", "Tensor? offsets", "Tensor? cu_seqlens", "int? max_seqlen",
)  # fmt: skip
_ITEMS: Dict[str, Tuple[Item, ...]] = {
    "rotary": (Group("tensors", RotaryTensor), *ROTARY_OPTIONS, *FAULTS),
    "gather_cos_sin": ("Tensor cos_sin", "Tensor positions", "Tensor? pair_axis", "str past_table", "Tensor! out"),
    "rerope": (
        Group("cache", PagedKv, ("k", "k_scale")), "Tensor slot_mapping", "Tensor from_positions", "Tensor to_positions", _ROPE,
        "int hadamard_block", *FAULTS,
    ),
    "attention_prologue": (
        "Tensor? q", "Tensor? k", "Tensor? v", "Tensor? q_rope", "Tensor? k_rope", "Tensor? qkv", "int? num_q_heads",
        "int? num_kv_heads", "int? head_dim", "int? v_head_dim", "bool v_from_k", "Tensor!? q_out", "Tensor!? q8_out",
        "Tensor!? q8_scale", *_STEPS, Group("groups", HeadGroup),
    ),
    "mla_prologue": (
        "Tensor? kv_c", "Tensor? k_pe", "Tensor? q_pe", "Tensor!? kv_cache", "Tensor!? ckv_cache", "Tensor!? kpe_cache",
        "str? cache_type", "Tensor? cache_scale", Group("norm", HeadNorm), Group("k_pe_norm", HeadNorm), _ROPE, "Tensor? positions",
        "Tensor? slot_mapping",
        "Tensor!? q_pe_out", "Tensor!? kv_c_out", "Tensor!? k_pe_out", *FAULTS,
    ),
    "paged_attention": (
        "Tensor q", "Tensor! out", Group("cache", PagedKv), "Tensor cu_seqlens_q", "Tensor? seq_lens", Group("page_table", PageTable),
        *_OPTIONS, "Tensor!? workspace", "Tensor!? counters", *FAULTS,
    ),
    "attention_layer": (
        "Tensor hidden_states", "Tensor qkv_weight", "Tensor output_weight", "Tensor? output_bias", "Tensor! out", "int num_q_heads",
        "int num_kv_heads", "int head_dim", "int? v_head_dim", *_STEPS, *_OPTIONS, "Tensor? seq_lens", "Tensor!? workspace",
        "bool clears",
    ),
}  # fmt: skip


def members_of(group: type) -> List[Tuple[str, Any]]:
    """The names and types of a group's members."""
    return list(typing.get_type_hints(group).items())


_NESTED = (PageTable, Rope, HeadNorm, PagedKv)  # groups that are members of others


def nested_group(kind: Any) -> Optional[type]:
    """The group that a member of this type is: the page table of TokenPlaces; None: it is none."""
    return next((group for group in _NESTED if kind == Optional[group]), None)


def is_group(kind: Any) -> bool:
    """Whether a member of this type is a group."""
    return nested_group(kind) is not None


for _group in (PageTable, Rope, HeadNorm, TokenPlaces, QueryScale, PagedKv, HeadGroup, RotaryTensor):
    _nested = [(name, nested_group(kind)) for name, kind in members_of(_group)]
    _extension.declare(_group.__name__, *(name if group is None else f"{name} {group.__name__}" for name, group in _nested))


def _flat(value: Any, members: type) -> Tuple[Any, ...]:
    if members is HeadGroup:
        return flat_groups(value)
    return flat_places(value) if isinstance(value, TokenPlaces) else flat(value)


class Operation:
    """An operation of the extension. `function` takes the values in the order of `items`, groups as flat() returns them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.items = _ITEMS[name]
        self.function: Callable[..., Any] = _extension.function(
            name, *(f"{item.name} {item.members.__name__}" if isinstance(item, Group) else item.split()[1] for item in self.items)
        )

    def arguments(self, **values: Any) -> Tuple[Any, ...]:
        """The values in order. What is optional may be left out."""
        result: List[Any] = []
        for item in self.items:
            kind, name = ("?", item.name) if isinstance(item, Group) else item.split()
            if name not in values and "?" not in kind:
                raise TypeError(f"{self.name} needs '{name}'")
            value = values.pop(name, None)
            result += _flat(value, item.members) if isinstance(item, Group) else (value,)
        if values:
            raise TypeError(f"{self.name} has no argument '{next(iter(values))}'")
        return tuple(result)

    def named(self, arguments: Sequence[Any]) -> Dict[str, Any]:
        """The values by name: "q", "rope.theta", "places.page_table.block_table", "tensors[1].x"."""
        values = iter(arguments)
        result: Dict[str, Any] = {}

        def take_group(name: str, group: type) -> None:
            for i in range(next(values) or 0):
                prefix = f"{name}[{i}]" if group in (RotaryTensor, HeadGroup) else name
                for member, kind in members_of(group):
                    nested = nested_group(kind)
                    if nested is not None:
                        take_group(f"{prefix}.{member}", nested)
                    else:
                        result[f"{prefix}.{member}"] = next(values)

        try:
            for item in self.items:
                if isinstance(item, Group):
                    take_group(item.name, item.members)
                else:
                    result[item.split()[1]] = next(values)
        except (StopIteration, TypeError):
            raise TypeError(f"{self.name}: an argument is not of its class (Rope, PagedKv, ..)") from None
        return result

    def written(self, arguments: Sequence[Any]) -> Dict[str, Any]:
        """The arrays that a call writes, by name."""
        values = self.named(arguments)
        if self.name == "rotary":
            tensors = range(arguments[0])
            outs = [(values[f"tensors[{i}].x"], values[f"tensors[{i}].out"]) for i in tensors]
            result = {f"out[{i}]": x if out is None else out for i, (x, out) in enumerate(outs)}
            return {**result, "faults": values["faults"], "token_faults": values["token_faults"]}
        names: List[str] = []
        for item in self.items:
            if isinstance(item, Group):
                names += [f"{item.name}.{member}" for member in item.written]
            elif "!" in item.split()[0]:
                names.append(item.split()[1])
        read = set()  # scales that are not computed
        if values.get("cache.scaling") != "token_head":
            read |= {"cache.k_scale", "cache.v_scale"}
        if values.get("q8_scale") is not None and len(values["q8_scale"].shape) != 2:
            read.add("q8_scale")
        result = {name: values.get(name) for name in names if name not in read}
        for name, value in values.items():
            group, _, member = name.partition("].")
            if not name.startswith("groups[") or member not in ("out", "q8_out", "q8_scale", "cache.k", "cache.k_scale", "cache.k_block_scale"):
                continue
            given = (member == "q8_scale" and value is not None and len(value.shape) != 2) or (
                member == "cache.k_scale" and values.get(f"{group}].cache.scaling") != "token_head"
            )
            if not given:
                result[name] = value
        return result


ROTARY = Operation("rotary")
GATHER_COS_SIN = Operation("gather_cos_sin")
REROPE = Operation("rerope")
ATTENTION_PROLOGUE = Operation("attention_prologue")
MLA_PROLOGUE = Operation("mla_prologue")
PAGED_ATTENTION = Operation("paged_attention")
ATTENTION_LAYER = Operation("attention_layer")
OPERATIONS = {
    one.name: one for one in (ROTARY, GATHER_COS_SIN, REROPE, ATTENTION_PROLOGUE, MLA_PROLOGUE, PAGED_ATTENTION, ATTENTION_LAYER)
}
