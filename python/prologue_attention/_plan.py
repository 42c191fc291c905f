"""Plans that a caller holds: a call whose arguments are read and checked once."""

import inspect
from typing import Any, Dict, List, Sequence, Tuple

import tvm_ffi

from . import _extension
from ._arguments import OPERATIONS, Group
from ._frameworks import framework_name, framework_of, groups_with_frequencies, label, with_frequencies
from ._operations import attention_prologue, mla_prologue, paged_attention, rotary

_PLANNED = {function.__name__: function for function in (rotary, attention_prologue, mla_prologue, paged_attention)}


class Plan:
    """A call that is made many times with other arrays, for example for every layer and step:

        plan = Plan(attention_prologue, q, k, v, cache=cache, rope=rope, places=places, q_out=q_out,
                    changing=("q", "k", "v", "q_out", "cache.k", "cache.v", "places.positions", "places.slot_mapping"))
        plan(q, k, v, q_out, k_cache, v_cache, positions, slots)

    The function (rotary, attention_prologue, mla_prologue or paged_attention) is not run when the plan is made. Everything is fixed but
    the arrays that `changing` names; each call takes these in this order, of the shapes, strides, dtypes and device of the first ones,
    and with addresses that are equal modulo 16. Members of a group are named with a dot ("rope.cos_sin", "places.page_table.block_table"),
    arrays of rotary "x[0]" and "out[0]". The plan holds the other arrays, in the memory that they have now.

    Every result must be given, or be in place: a plan makes no arrays (scratch memory excepted), and returns None. On CUDA a plan of
    attention_prologue may compile a kernel when it is made (docs/embedding.md), so not while a stream is captured; its calls may be
    captured. There are no gradients, and torch.compile does not see it. A plan may be called by several threads at a time.
    """

    __slots__ = ("changing", "_run", "_framework")

    def __init__(self, function: Any, *arguments: Any, changing: Sequence[str], **options: Any) -> None:
        name = getattr(function, "__name__", "")
        if _PLANNED.get(name) is not function:
            raise TypeError(f"there are no plans of {function!r}: there are of {', '.join(_PLANNED)}")
        if isinstance(changing, str) or not changing:
            raise TypeError(f"changing is {changing!r}: it must be the names of one or more arrays, such as ('q', 'places.positions')")
        values = _values(name, function, arguments, options)
        operation = OPERATIONS[name]
        named = {label(one): value for one, value in operation.named(values).items()}
        arrays = {one: value for one, value in named.items() if framework_name(value) is not None}
        for one in changing:
            if one not in arrays or list(changing).count(one) > 1:
                state = "named twice" if one in arrays else "None" if one in named else "no argument"
                raise ValueError(f"changing: {one!r} is {state}: it must be one of {', '.join(map(repr, arrays))}")
        self._framework = framework_of(arrays[changing[0]])
        self.changing: Tuple[str, ...] = tuple(changing)
        order = [value for value in values if framework_name(value) is not None]
        at = [index for index, value in enumerate(values) if framework_name(value) is not None]
        assert len(order) == len(arrays)
        where = dict(zip(arrays, at))
        written = operation.written(values)
        held = [tvm_ffi.from_dlpack(self._framework.exported(one, written)) if framework_name(one) is not None else one for one in values]
        self._run = _extension.make_plan(name, [where[one] for one in changing], *held)

    def __call__(self, *arrays: Any) -> None:
        self._framework.run_plan(self._run, arrays)


def _values(name: str, function: Any, arguments: Sequence[Any], options: Dict[str, Any]) -> Tuple[Any, ...]:
    """The values of a call in the extension's order."""
    bound = inspect.signature(function).bind(*arguments, **options)
    bound.apply_defaults()
    values: Dict[str, Any] = dict(bound.arguments)
    operation = OPERATIONS[name]
    if name != "rotary":
        for item in operation.items:
            kind = item.name if isinstance(item, Group) else item.split()[1]
            if kind in _RESULTS and values.get(kind) is None and _is_needed(kind, values):
                raise ValueError(f"{kind} is None: a plan makes no arrays, so it must be given")
        if name != "paged_attention" and values["rope"] is not None:
            values["rope"] = with_frequencies(values["rope"], next(one for one in arguments or values.values() if framework_name(one)))
        if name == "attention_prologue":
            values["groups"] = groups_with_frequencies(values["groups"])
        return operation.arguments(**values)
    x, out, rotate = values.pop("x"), values.pop("out"), values.pop("rotate")
    if not values.pop("inplace"):
        if out is None:
            raise ValueError("out is None: a plan makes no arrays, so it must be given, or inplace=True")
        outs = list(out) if isinstance(out, (tuple, list)) else [out]
    elif out is not None:
        raise ValueError("out and inplace are both given")
    else:
        outs = list(x)
    if len(outs) != len(x) or (rotate is not None and len(rotate) != len(x)):
        raise ValueError(f"out or rotate has another number of elements than there are arrays, {len(x)}")
    tensors: List[Any] = []
    for i, one in enumerate(x):
        tensors += (one, None if outs[i] is one else outs[i], True if rotate is None else bool(rotate[i]))
    return (len(x), *tensors, *operation.arguments(**values)[1:])


_RESULTS = ("q_out", "q_pe_out", "out")


def _is_needed(result: str, values: Dict[str, Any]) -> bool:
    if result == "q_out":
        return values["q8_out"] is None and (values["q"] is not None or bool(values["qkv"] is not None and values["num_q_heads"]))
    return result == "out" or values["q_pe"] is not None
