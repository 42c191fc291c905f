"""What the peers' tests import, as fake modules over prologue_attention.compat: only as much as those tests need. A shim has
install(folder), SKIPPED (a regular expression for names of tests, and the reason why they are not run), and FIXTURES.

A test's reference is its own, or one of ours below in plain torch; never the function that is tested."""

import sys
import types
from typing import Any


def module(name: str, **members: Any) -> types.ModuleType:
    """Makes `name`, and the packages that it is in, importable."""
    parent, _, last = name.rpartition(".")
    made = sys.modules.get(name)
    if made is None:
        made = types.ModuleType(name)
        made.__path__ = []  # type: ignore[attr-defined]
        sys.modules[name] = made
        if parent:
            setattr(module(parent), last, made)
    for member, value in members.items():
        setattr(made, member, value)
    return made


def functions(compat: types.ModuleType) -> dict:
    """The public names of a module of prologue_attention.compat."""
    return {name: value for name, value in vars(compat).items() if not name.startswith("_") and callable(value)}


def rotate(x: Any, cos: Any, sin: Any, interleaved: bool) -> Any:
    """The rotation in float32, rounded once. x: [.., heads, head_dim]; cos, sin: [.., rotary_dim / 2], broadcast over heads."""
    import torch

    cos, sin, width = cos.float().unsqueeze(-2), sin.float().unsqueeze(-2), 2 * cos.shape[-1]
    part, rest = x[..., :width].float(), x[..., width:]
    a, b = (part[..., ::2], part[..., 1::2]) if interleaved else part.chunk(2, -1)
    a, b = a * cos - b * sin, a * sin + b * cos
    rotated = torch.stack([a, b], -1).flatten(-2) if interleaved else torch.cat([a, b], -1)
    return torch.cat([rotated.to(x.dtype), rest], -1)


def assert_close(a: Any, b: Any, atol: Any = None, rtol: Any = None, err_msg: str = "") -> None:
    import torch

    torch.testing.assert_close(a, b, atol=atol, rtol=rtol)


def need_triton() -> None:
    """The tests' `import triton` is for its assert_close; without it, torch's serves."""
    try:
        import triton.testing  # noqa: F401
    except ImportError:
        module("triton.testing", assert_close=assert_close)
