#!/usr/bin/env python3
"""Writes rotary_goldens.h beside this file: float32 values of the two reference formulas of rotary embedding.

neox:        Hugging Face transformers, models/llama/modeling_llama.py (LlamaRotaryEmbedding, rotate_half,
             apply_rotary_pos_emb; partial rotary as in models/gpt_neox), transcribed to numpy: every tensor is float32
             there and here, and numpy rounds each product and sum as torch's CPU kernels do.
interleaved: Meta's original Llama (llama/model.py: precompute_freqs_cis, apply_rotary_emb), complex64, transcribed alike.
"""
import pathlib

import numpy as np

f32 = np.float32


def inv_freq(dim, base):
    return f32(1.0) / np.power(f32(base), np.arange(0, dim, 2).astype(f32) / f32(dim), dtype=f32)


def rotate_half(x):
    half = x.shape[-1] // 2
    return np.concatenate((-x[..., half:], x[..., :half]), axis=-1)


def hf_apply(x, positions, rotary_dim, base):
    freqs = positions.astype(f32)[:, None] * inv_freq(rotary_dim, base)[None, :]
    emb = np.concatenate((freqs, freqs), axis=-1)
    cos, sin = np.cos(emb, dtype=f32), np.sin(emb, dtype=f32)
    rotated, passed = x[..., :rotary_dim], x[..., rotary_dim:]
    rotated = (rotated * cos[:, None, :]) + (rotate_half(rotated) * sin[:, None, :])
    half = rotary_dim // 2
    return np.concatenate((rotated, passed), axis=-1), np.concatenate((cos[:, :half], sin[:, :half]), axis=-1)


def meta_apply(x, positions, rotary_dim, base):
    freqs = np.outer(positions.astype(f32), inv_freq(rotary_dim, base)).astype(f32)
    cos, sin = np.cos(freqs, dtype=f32), np.sin(freqs, dtype=f32)
    freqs_cis = (cos + 1j * sin).astype(np.complex64)
    rotated, passed = x[..., :rotary_dim], x[..., rotary_dim:]
    pairs = np.ascontiguousarray(rotated).view(np.complex64)
    out = (pairs * freqs_cis[:, None, :]).astype(np.complex64).view(f32)
    return np.concatenate((out, passed), axis=-1), np.concatenate((cos, sin), axis=-1)


def literal(values):
    text = [f"{v:.9g}" for v in values.reshape(-1)]
    text = [t if any(c in t for c in ".en") else t + ".0" for t in text]
    lines = [", ".join(t + "f" for t in text[i:i + 10]) for i in range(0, len(text), 10)]
    return ",\n    ".join(lines)


def main():
    random = np.random.default_rng(20261121)
    positions = np.array([0, 1, 7, 300, 4095], dtype=np.int64)
    heads = 2
    cases = []
    for name, interleaved, head_dim, rotary_dim, base in [
        ("neox_full", False, 16, 16, 10000.0), ("neox_partial", False, 24, 12, 500000.0),
        ("interleaved_full", True, 16, 16, 10000.0), ("interleaved_partial", True, 24, 12, 500000.0),
    ]:
        x = random.standard_normal((len(positions), heads, head_dim)).astype(f32)
        y, table = (meta_apply if interleaved else hf_apply)(x, positions, rotary_dim, base)
        cases.append((name, interleaved, heads, head_dim, rotary_dim, table.astype(f32), x, y.astype(f32)))
    out = ["// Written by make_goldens.py, which states the origin of the formulas. Row t of the table belongs to token t.",
           "// clang-format off", "#pragma once", "", "#include <cstdint>", "#include <vector>", "", "namespace prologue::golden {", "",
           "struct RotaryGolden {", "  const char* name;", "  bool interleaved;", "  int64_t num_heads, head_dim, rotary_dim;",
           "  std::vector<float> table, x, y;", "};", "", "inline const std::vector<RotaryGolden> kRotaryGoldens = {"]
    for name, interleaved, heads, head_dim, rotary_dim, table, x, y in cases:
        out.append(f'    {{"{name}", {str(interleaved).lower()}, {heads}, {head_dim}, {rotary_dim},')
        out += [f"    {{{literal(a)}}}," for a in (table, x)] + [f"    {{{literal(y)}}}}},"]
    out += ["};", "", "}  // namespace prologue::golden", ""]
    pathlib.Path(__file__).with_name("rotary_goldens.h").write_text("\n".join(out))


if __name__ == "__main__":
    main()
