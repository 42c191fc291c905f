"""kernels-community/rotary of the Hugging Face kernels hub: apply_rotary and apply_rotary_transformers."""

from typing import Any, Tuple

from .. import Rope, rotary
from .._frameworks import framework_of


def apply_rotary(x1: Any, x2: Any, cos: Any, sin: Any, out1: Any, out2: Any, conj: bool) -> None:
    """out1 = x1 cos - x2 sin, out2 = x1 sin + x2 cos; with conj the inverse. x1, x2: the two halves of the rotated channels,
    [batch, seqlen, heads, rotary_dim / 2]; cos, sin: [seqlen, 1, rotary_dim / 2], or with a batch axis before. out1 and out2 may be x1
    and x2.

    Halves of one tensor in each of x and out are rotated where they are; otherwise through copies."""
    framework = framework_of(x1)
    rope = Rope(cos=_rows(cos), sin=_rows(sin), per_token=True, inverse=bool(conj))
    x, y = framework.join_halves(x1, x2), framework.join_halves(out1, out2)
    if x is None:
        x = framework.concatenate(x1, x2)
    if y is not None:
        rotary(x, rope=rope, out=y)
        return
    result = rotary(x, rope=rope)
    half = x1.shape[-1]
    out1[...] = result[..., :half]
    out2[...] = result[..., half:]


def _rows(table: Any) -> Any:
    """[.., seqlen, 1, columns] without the axis of the heads."""
    if len(table.shape) not in (3, 4) or table.shape[-2] != 1:
        raise ValueError(f"cos or sin has the shape {list(table.shape)}: it must be [seqlen, 1, columns] or [batch, seqlen, 1, columns]")
    return table[..., 0, :]


def apply_rotary_transformers(q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> Tuple[Any, Any]:
    """As apply_rotary_pos_emb of transformers. q, k: [batch, heads, seq_len, head_dim] (unsqueeze_dim 1) or [batch, seq_len, heads,
    head_dim] (2); cos, sin: [batch or 1, seq_len, head_dim] or half as many columns, of which the first half is read. Returns both in
    new arrays."""
    if unsqueeze_dim not in (1, 2):
        raise ValueError(f"unsqueeze_dim is {unsqueeze_dim}: it must be 1 or 2")
    half = q.shape[-1] // 2
    rope = Rope(cos=cos[..., :half], sin=sin[..., :half], per_token=True)
    return rotary(q, k, rope=rope, layout="bhsd" if unsqueeze_dim == 1 else "bshd")
