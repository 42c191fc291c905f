"""The operations in plain NumPy float64, from their formulas. Shares no code with the library."""

import numpy as np


def rotate(x, positions, inv_freq, style="neox", offset=0, inverse=False):
    """x [.., tokens, heads, head_dim]; positions [.., tokens]; pairs of the channels from `offset` on."""
    x = np.array(x, dtype=np.float64)
    half = len(inv_freq)
    angle = np.asarray(positions, np.float64)[..., None, None] * np.asarray(inv_freq, np.float64)
    cos, sin = np.cos(angle), np.sin(angle) * (-1 if inverse else 1)
    part = x[..., offset : offset + 2 * half]
    first, second = (part[..., :half], part[..., half:]) if style == "neox" else (part[..., 0::2], part[..., 1::2])
    a, b = first * cos - second * sin, first * sin + second * cos
    if style == "neox":
        x[..., offset : offset + half], x[..., offset + half : offset + 2 * half] = a, b
    else:
        x[..., offset : offset + 2 * half : 2], x[..., offset + 1 : offset + 2 * half : 2] = a, b
    return x


def frequencies(rotary_dim, theta=10000.0):
    return theta ** (-2.0 * np.arange(rotary_dim // 2) / rotary_dim)


def table(rows, rotary_dim, theta=10000.0, dtype=np.float32):
    """[rows, rotary_dim]: cos, then sin."""
    angle = np.arange(rows)[:, None] * frequencies(rotary_dim, theta)
    return np.concatenate([np.cos(angle), np.sin(angle)], 1).astype(dtype)


def rms_norm(x, weight=None, eps=1e-6, weight_offset=0.0):
    x = np.asarray(x, np.float64)
    y = x / np.sqrt(np.mean(x * x, -1, keepdims=True) + eps)
    return y if weight is None else y * (weight_offset + np.asarray(weight, np.float64))


def layer_norm(x, weight, bias, eps):
    x = np.asarray(x, np.float64)
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt(np.mean(centred**2, -1, keepdims=True) + eps) * np.asarray(weight, np.float64) + np.asarray(bias, np.float64)


def gather(cache, block_table, length, layout="nhd"):
    """The first `length` tokens of a sequence: [length, heads, head_dim]."""
    cache = cache if layout == "nhd" else cache.swapaxes(1, 2)
    return np.concatenate([cache[page] for page in block_table])[:length]


def attention(q, k_cache, v_cache, block_tables, cu_seqlens_q, seq_lens, scale=None, window=0, soft_cap=0.0, sinks=None, layout="nhd"):
    """Row by row: causal, grouped-query."""
    q = np.asarray(q, np.float64)
    heads = q.shape[1]
    out = np.zeros((q.shape[0], heads, v_cache.shape[-1]))
    scale = q.shape[2] ** -0.5 if scale is None else scale
    for s, length in enumerate(seq_lens):
        keys = gather(k_cache, block_tables[s], length, layout).astype(np.float64)
        values = gather(v_cache, block_tables[s], length, layout).astype(np.float64)
        begin, end = cu_seqlens_q[s], cu_seqlens_q[s + 1]
        for row in range(begin, end):
            last = length - (end - row)
            first = 0 if window == 0 else max(0, last - window + 1)
            for h in range(heads):
                kv = h // (heads // keys.shape[1])
                score = scale * (keys[first : last + 1, kv] @ q[row, h])
                if soft_cap:
                    score = soft_cap * np.tanh(score / soft_cap)
                top = max(score.max(), -np.inf if sinks is None else sinks[h])
                weight = np.exp(score - top)
                total = weight.sum() + (0 if sinks is None else np.exp(sinks[h] - top))
                out[row, h] = weight @ values[first : last + 1, kv] / total
    return out
