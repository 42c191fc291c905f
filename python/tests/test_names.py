"""The arguments of the operations reach the extension under their names."""

import inspect
import re
import typing
from pathlib import Path

import numpy as np
import prologue_attention as prologue
import pytest
from prologue_attention import Array, HeadGroup, HeadNorm, PagedKv, PageTable, QueryScale, Rope, TokenPlaces, _extension
from prologue_attention._arguments import GATHER_COS_SIN, OPERATIONS

GROUPS = (HeadGroup, HeadNorm, PagedKv, PageTable, QueryScale, Rope, TokenPlaces)


class Value:
    """A value that is equal to itself only."""


def sentinel(kind, name, values):
    """A value of this type; those that it consists of are entered in `values` by name."""
    kinds = [one for one in typing.get_args(kind) if one is not type(None)] or [kind]
    if kinds[0] in GROUPS:
        members = typing.get_type_hints(kinds[0])
        return kinds[0](**{member: sentinel(one, f"{name}.{member}", values) for member, one in members.items()})
    values[name] = np.zeros((1, 1, 1)) if kinds[0] in (typing.Any, Array) or isinstance(kinds[0], typing.TypeVar) else Value()
    return values[name]


def passed(monkeypatch, name, *positional, **options):
    """What the extension gets from a call, by name."""
    calls = []
    monkeypatch.setattr(OPERATIONS[name], "function", lambda *arguments: calls.append(arguments))
    getattr(prologue, name)(*positional, **options)
    (arguments,) = calls
    return OPERATIONS[name].named(arguments)


def test_the_module_has_the_name_of_the_distribution():
    """PyPI has another distribution `prologue`, which installs the folder `prologue`."""
    project = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    assert prologue.__name__ == re.search(r'^name = "(.*)"$', project, re.M)[1].replace("-", "_") == "prologue_attention"


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_every_argument_has_its_own_name(name, monkeypatch):
    hints = typing.get_type_hints(getattr(prologue, name))
    want = {}
    options = {
        parameter: sentinel(hints[parameter], parameter, want)
        for parameter in inspect.signature(getattr(prologue, name)).parameters
        if (name != "rotary" or parameter not in ("x", "out", "inplace", "rotate")) and parameter != "groups"
    }
    if name == "attention_prologue":
        options["groups"] = [sentinel(HeadGroup, f"groups[{i}]", want) for i in range(2)]
    x, out = [[np.zeros((1, 1, 1)) for _ in range(3)] for _ in range(2)]
    rotate = [True, False, True]
    if name == "rotary":
        for i in range(3):
            want.update({f"tensors[{i}].x": x[i], f"tensors[{i}].out": out[i], f"tensors[{i}].rotate": rotate[i]})
        got = passed(monkeypatch, name, *x, out=out, rotate=rotate, **options)
    else:
        got = passed(monkeypatch, name, **options)
    if name == "attention_layer":
        want["clears"] = False
    assert [one for one in want if one not in got] == [] and [one for one in got if one not in want] == []
    assert [one for one in want if got[one] is not want[one]] == []


def test_arguments_by_name():
    with pytest.raises(TypeError, match="gather_cos_sin needs 'cos_sin'"):
        GATHER_COS_SIN.arguments(positions=1, past_table="zero", out=2)
    with pytest.raises(TypeError, match="gather_cos_sin has no argument 'pair_axes'"):
        GATHER_COS_SIN.arguments(cos_sin=0, positions=1, pair_axes=2, past_table="zero", out=2)


@pytest.fixture
def declared():
    """Declares the arguments of gather_cos_sin, for one test."""
    yield lambda *items: _extension.declare("gather_cos_sin", *items)
    _extension.declare("gather_cos_sin", *(item.split()[1] for item in GATHER_COS_SIN.items))


def test_the_order_is_that_of_the_declaration(declared):
    table, positions = np.arange(12, dtype=np.float32).reshape(3, 4), np.array([2, 0])
    want, got = prologue.gather_cos_sin(table, positions), np.zeros((2, 4), np.float32)
    declared("out", "past_table", "pair_axis", "positions", "cos_sin")
    GATHER_COS_SIN.function(got, "record", None, positions, table)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    "items, message",
    [
        ("cos_sin positions pair_axes past_table out", "'pair_axes', which the extension does not know"),
        ("cos_sin positions past_table out", "has no 'pair_axis', which the extension reads"),
        ("cos_sin positions pair_axis past_table out window", "has 'window', which the extension does not read"),
        ("cos_sin positions pair_axis past_table out positions", "has 'positions' twice"),
    ],
)
def test_a_wrong_name_is_an_error_that_names_it(items, message, declared):
    out = np.full((2, 4), 7, np.float32)
    values = {"cos_sin": np.zeros((3, 4), np.float32), "positions": np.array([2, 0]), "past_table": "record", "out": out}
    with pytest.raises(TypeError, match=f"gather_cos_sin (has )?{message}"):
        declared(*items.split())
        GATHER_COS_SIN.function(*(values.get(item) for item in items.split()))
    assert (out == 7).all()


def test_an_argument_of_another_class():
    x = np.zeros((1, 1, 8), np.float32)
    frozen = x.copy()
    frozen.flags.writeable = False
    for one in (x, frozen):
        for rope in (HeadNorm(), "neox", (1, 2)):
            with pytest.raises(TypeError, match="is not of its class"):
                prologue.rotary(one, rope=rope)
