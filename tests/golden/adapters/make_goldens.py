#!/usr/bin/env python3
"""Writes the goldens of docs/coming-from.md beside this file, SYSTEM.txt each: what the other system makes of inputs that
tests/adapters/golden.h makes again (fill() below), over its options.

  pip install torch==2.15.0 triton==3.9.0 transformers==5.23.0 torchtune==0.6.1 einops==0.8.2 llama-cpp-python==0.3.36
  ./make_goldens.py SYSTEM...        (those that need sources: --sources DIR with the checkouts named below)

Those that are transcribed need numpy only.

Run for real, on a CPU:
  flash_attn          rotary_kernel of flash_attn/ops/triton/rotary.py (flash-attention 2.8.4, commit 0251105a) under Triton's
                      interpreter, launched as its apply_rotary does; checked against apply_rotary_emb_torch of
                      flash_attn/layers/rotary.py, and against its gradient for `conjugate`
  ggml                ggml_rope_ext, ggml_rope_multi and their _back of libggml 0.25.3 inside llama-cpp-python 0.3.36
  torchtune           RotaryPositionalEmbeddings of torchtune.modules.position_embeddings, 0.6.1, and its cache
  apex                the PyTorch forms that apex's own test holds its kernels against: apply_rotary_pos_emb, .._thd and .._2d of
                      tests/L0/run_transformer/test_fused_rope.py (apex, commit 16fadfe7); gradients by autograd
  huggingface         apply_rotary_pos_emb of transformers 5.23.0: models llama, gpt_neox, gptj
  transformer_engine  apply_rotary_pos_emb (fused=False) of transformer_engine/pytorch/attention/rope.py (2.20.0.dev0, commit
                      d0067d0d); gradients by autograd
Transcribed into float64 from their formulas, because the originals run on a GPU only (each function below says from what):
  paddle, oneflow, triton_tutorial, infinicore
and, index by index over flat memory, with strides, holes, mixed types and empty sequences:
  flash_attn_strides, apex_strides, triton_tutorial_strides, infinicore_strides, ggml_signs

A file: '#' lines of origin; then cases, `case NAME`, and in each `KEY number...` (decimal) or `KEY f32|f16|bf16|f64 HEX` (elements
end to end). Inputs are multiples of 1/256 with eight significant bits: exact in every type, as are all products, so that
systems which round once agree bit for bit.
"""
import argparse
import ast
import ctypes
import importlib.util
import itertools
import os
import pathlib
import sys
import types

os.environ["TRITON_INTERPRET"] = "1"
HERE = pathlib.Path(__file__).parent

import numpy as np


def fill(seed, *shape):
    i = np.arange(1, int(np.prod(shape)) + 1, dtype=np.uint64)
    k = ((i * np.uint64(2654435761) + np.uint64(seed * 40503)) % np.uint64(2**32) >> np.uint64(7)) % np.uint64(512)
    return ((k.astype(np.float64) - 256) / 256).reshape(shape)


class File:
    def __init__(self, name, origin):
        self.name, self.lines = name, [f"# {line}" for line in origin]

    def case(self, name, **values):
        self.lines.append(f"case {name}")
        for key, value in values.items():
            if isinstance(value, tuple):  # (type, array)
                self.lines.append(f"{key} {value[0]} {encode(*value)}")
            else:
                self.lines.append(" ".join([key, *(f"{v:.17g}" for v in np.atleast_1d(value).reshape(-1))]))

    def write(self):
        (HERE / f"{self.name}.txt").write_text("\n".join(self.lines) + "\n")


def encode(kind, values):
    values = np.asarray(values)
    if kind == "bf16":  # given as float32 that bfloat16 holds, or to be rounded to it
        bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
        bits = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16
        return "".join(f"{int(b):04x}" for b in bits.reshape(-1))
    dtype, bits = {"f32": (np.float32, np.uint32), "f16": (np.float16, np.uint16), "f64": (np.float64, np.uint64)}[kind]
    width = 2 * np.dtype(bits).itemsize
    return "".join(f"{int(b):0{width}x}" for b in np.ascontiguousarray(values.astype(dtype)).view(bits).reshape(-1))


def torch_types():
    import torch
    return {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "f64": torch.float64}


def tensor(values, kind="f32"):
    import torch
    return torch.from_numpy(np.ascontiguousarray(values)).to(torch_types()[kind])


def out(kind, t):
    return (kind, t.detach().to(torch_types()["f64" if kind == "f64" else "f32"]).numpy())


def functions(path, names, scope):
    """The named top-level functions of a source file, without the rest of it (which wants a GPU)."""
    tree = ast.parse(path.read_text())
    tree.body = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name in names]
    exec(compile(tree, str(path), "exec"), scope)
    return [scope[name] for name in names]


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def gradient(function, x, dy):
    x = x.clone().requires_grad_()
    function(x).backward(dy)
    return x.grad


# ---- run for real ----

def flash_attn(sources):
    import torch
    import triton
    from einops import rearrange, repeat
    kernel = load(sources / "flash-attention/flash_attn/ops/triton/rotary.py").rotary_kernel
    reference = functions(sources / "flash-attention/flash_attn/layers/rotary.py", ["rotate_half", "apply_rotary_emb_torch"],
                          {"torch": torch, "rearrange": rearrange, "repeat": repeat})[1]
    file = File("flash_attn", ["flash-attention 2.8.4 (0251105a), rotary_kernel under Triton 3.9.0's interpreter: make_goldens.py",
                               "offset_kind: 0 none, 1 a number, 2 an array of int32, 3 of int64"])
    batch, seqlen, heads, headdim, seqlen_ro = 2, 3, 2, 12, 8
    cu = [0, 2, 5]
    kinds = itertools.cycle(["f32", "bf16", "f16"])
    for varlen, offset_kind, rotary_dim, interleaved, conjugate in itertools.product(
            [0, 1], [0, 1, 2, 3], [12, 8], [0, 1], [0, 1]):
        kind = next(kinds)
        offsets = {0: 0, 1: 3, 2: torch.tensor([5, 1], dtype=torch.int32), 3: torch.tensor([0, 4])}[offset_kind]
        x = tensor(fill(1, cu[-1], heads, headdim) if varlen else fill(1, batch, seqlen, heads, headdim), kind)
        cos, sin = (tensor(fill(seed, seqlen_ro, rotary_dim // 2), kind) for seed in (2, 3))
        y = torch.empty_like(x, dtype=torch.float32 if kind == "bf16" else x.dtype)  # the interpreter truncates to bfloat16
        y[..., rotary_dim:] = x[..., rotary_dim:]
        strides = [y.stride(0) if not varlen else 0, *y.stride()[-3:]]
        kernel[(triton.cdiv(heads, 2), triton.cdiv(seqlen, 8), batch)](
            y, x, cos, sin, torch.tensor(cu, dtype=torch.int32) if varlen else None, offsets, seqlen, heads, seqlen_ro, *strides,
            *strides, rotary_dim, offset_kind >= 2, bool(varlen), bool(interleaved), bool(conjugate), BLOCK_M=8, BLOCK_H=2)
        for b in range(batch):  # against the PyTorch form, in float32 and rounded once, as flash-attention's own test does
            start = int(offsets[b]) if offset_kind >= 2 else offsets
            rows = slice(cu[b], cu[b + 1]) if varlen else b
            turn = lambda v: reference(v[None], *(t[start:start + v.shape[0]].float() for t in (cos, sin)), bool(interleaved))[0]
            want = gradient(turn, x[rows].float(), x[rows].float()) if conjugate else turn(x[rows].float())
            assert torch.equal(y[rows].to(x.dtype), want.to(x.dtype)), (varlen, offset_kind, rotary_dim, interleaved, conjugate)
        file.case(f"varlen{varlen}_offsets{offset_kind}_dim{rotary_dim}_interleaved{interleaved}_conjugate{conjugate}_{kind}",
                  batch=batch, seqlen=seqlen, heads=heads, headdim=headdim, seqlen_ro=seqlen_ro, rotary_dim=rotary_dim,
                  varlen=varlen, cu_seqlens=cu, offset_kind=offset_kind, offsets=offsets, interleaved=interleaved,
                  conjugate=conjugate, out=out(kind, y))
    file.write()


NORMAL, NEOX, MROPE, VISION, IMROPE = 0, 2, 8, 24, 40


def ggml(_):
    import llama_cpp
    folder = pathlib.Path(llama_cpp.__file__).parent / "lib"
    base = ctypes.CDLL(str(folder / "libggml-base.so"), mode=ctypes.RTLD_GLOBAL)
    cpu = ctypes.CDLL(str(folder / "libggml-cpu.so"), mode=ctypes.RTLD_GLOBAL)
    pointer, i32, i64, f32 = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_float

    class Init(ctypes.Structure):
        _fields_ = [("size", ctypes.c_size_t), ("buffer", pointer), ("no_alloc", ctypes.c_bool)]

    def declare(name, *arguments, result=pointer):
        function = getattr(cpu if name == "ggml_graph_compute_with_ctx" else base, name)
        function.argtypes, function.restype = list(arguments), result
        return function

    init, free = declare("ggml_init", Init), declare("ggml_free", pointer, result=None)
    new = declare("ggml_new_tensor", pointer, i32, i32, ctypes.POINTER(i64))
    data = declare("ggml_get_data", pointer)
    graph, expand = declare("ggml_new_graph", pointer), declare("ggml_build_forward_expand", pointer, pointer, result=None)
    compute = declare("ggml_graph_compute_with_ctx", pointer, pointer, i32, result=i32)
    view = declare("ggml_view_4d", pointer, pointer, *[i64] * 4, *[ctypes.c_size_t] * 4)
    tail = [i32, i32, f32, f32, f32, f32, f32, f32]
    ext, ext_back = (declare(n, *[pointer] * 4, i32, *tail) for n in ("ggml_rope_ext", "ggml_rope_ext_back"))
    multi, multi_back = (declare(n, *[pointer] * 4, i32, pointer, *tail) for n in ("ggml_rope_multi", "ggml_rope_multi_back"))
    set_offset = declare("ggml_rope_set_offset", pointer, i32)

    def run(c):
        ctx = init(Init(1 << 22, None, False))
        kind, size = (1, 2) if c["f16"] else (0, 4)

        def make(kind, shape, values):
            t = new(ctx, kind, len(shape), (i64 * len(shape))(*shape))
            ctypes.memmove(data(t), values.ctypes.data, values.nbytes)
            return t

        ne, width = c["ne"], c["row"]  # rows of `row` channels, of which ne[0] are the tensor's
        x = fill(1, ne[3], ne[2], ne[1], width).astype(np.float16 if c["f16"] else np.float32)
        a = make(kind, [width, *ne[1:]], x)
        if width != ne[0]:
            a = view(ctx, a, *ne, width * size, width * ne[1] * size, width * ne[1] * ne[2] * size, 0)
        b = make(26, [len(c["positions"])], np.array(c["positions"], dtype=np.int32))
        factors = make(0, [len(c["freq_factors"])], np.array(c["freq_factors"], dtype=np.float32)) if c["freq_factors"] else None
        rest = [c[k] for k in ("mode", "n_ctx_orig", "freq_base", "freq_scale", "ext_factor", "attn_factor", "beta_fast", "beta_slow")]
        if c["mode"] in (NORMAL, NEOX):
            y = (ext if c["forward"] else ext_back)(ctx, a, b, factors, c["n_dims"], *rest)
        else:
            sections = (i32 * 4)(*c["sections"])
            y = (multi if c["forward"] else multi_back)(ctx, a, b, factors, c["n_dims"], sections, *rest)
        if c["offset"]:
            set_offset(y, c["offset"])
        g = graph(ctx)
        expand(g, y)
        assert compute(ctx, g, 1) == 0
        count = int(np.prod(ne))
        result = np.frombuffer(ctypes.string_at(data(y), count * size), dtype=x.dtype).copy()
        free(ctx)
        return result

    file = File("ggml", ["libggml 0.25.3 of llama-cpp-python 0.3.36, its CPU backend: make_goldens.py",
                         "ne: head_dim, heads, tokens, batch; row: channels from one head to the next; mode: GGML_ROPE_TYPE_*"])
    plain = {"ne": [16, 2, 3, 1], "row": 16, "f16": 0, "positions": [0, 7, 61], "freq_factors": [], "n_dims": 16, "mode": NEOX,
             "sections": [0, 0, 0, 0], "n_ctx_orig": 0, "freq_base": 10000.0, "freq_scale": 1.0, "ext_factor": 0.0,
             "attn_factor": 1.0, "beta_fast": 0.0, "beta_slow": 0.0, "offset": 0, "forward": 1}
    yarn = {"n_ctx_orig": 64, "freq_scale": 0.25, "ext_factor": 1.0, "beta_fast": 32.0, "beta_slow": 1.0}
    factors = [1.0, 1.25, 1.5, 2.0, 3.0, 4.5, 6.0, 8.0]
    streams = [3, 9, 20, 1, 2, 5, 40, 7, 0, 11, 12, 13]  # [4, tokens]
    cases = {}
    for mode, name in ((NORMAL, "normal"), (NEOX, "neox")):
        for forward in (1, 0):
            base_name = f"{name}_{'forward' if forward else 'back'}"
            more = {"mode": mode, "forward": forward}
            cases[base_name] = more
            cases[base_name + "_partial"] = {**more, "n_dims": 12}
            cases[base_name + "_base"] = {**more, "freq_base": 500000.0, "freq_scale": 0.5, "attn_factor": 1.5}
            cases[base_name + "_yarn"] = {**more, **yarn}
            cases[base_name + "_factors"] = {**more, "freq_factors": factors}
            cases[base_name + "_everything_f16"] = {**more, **yarn, "freq_factors": factors[:6], "n_dims": 12, "f16": 1,
                                                    "attn_factor": 0.75, "ext_factor": 0.5}
        cases[f"{name}_strided_batch"] = {"mode": mode, "ne": [16, 2, 3, 2], "row": 20}
        cases[f"{name}_offset"] = {"mode": mode, "n_dims": 8, "offset": 4}
        cases[f"{name}_negative"] = {"mode": mode, "positions": [-3, 0, 40]}
    for mode, name in ((MROPE, "mrope"), (IMROPE, "imrope")):
        for forward in (1, 0):
            more = {"mode": mode, "forward": forward, "positions": streams, "sections": [3, 3, 2, 0]}
            cases[f"{name}_{'forward' if forward else 'back'}"] = more
            cases[f"{name}_{'forward' if forward else 'back'}_four_partial"] = {**more, "n_dims": 12, "sections": [2, 2, 1, 1], **yarn}
    for forward in (1, 0):
        more = {"mode": VISION, "forward": forward, "positions": streams, "n_dims": 8, "sections": [4, 4, 0, 0]}
        cases[f"vision_{'forward' if forward else 'back'}"] = more
        cases[f"vision_{'forward' if forward else 'back'}_factors"] = {**more, "freq_factors": factors}
    for name, more in cases.items():
        c = {**plain, **more}
        file.case(name, **c, out=("f16" if c["f16"] else "f32", run(c)))
    file.write()


def torchtune(_):
    folder = pathlib.Path(importlib.util.find_spec("torchtune").submodule_search_locations[0])  # importing it wants torchao
    Embeddings = load(folder / "modules/position_embeddings.py").RotaryPositionalEmbeddings
    file = File("torchtune", ["torchtune 0.6.1, RotaryPositionalEmbeddings: make_goldens.py", "input_pos: none = no such line"])
    b, s, n_h, h_d, max_seq_len = 2, 3, 2, 12, 20
    for base in (10000, 500000):
        module = Embeddings(h_d, max_seq_len, base)
        file.case(f"cache{base}", h_d=h_d, max_seq_len=max_seq_len, base=base, cache=out("f32", module.cache))
        for (kind, positions) in itertools.product(["f32", "bf16", "f16"], [None, [4, 0, 19], [2, 0, 7, 19, 1, 1]]):
            x = tensor(fill(1, b, s, n_h, h_d), kind)
            pos = None if positions is None else tensor(np.array(positions).reshape(-1, s)).long()
            name = "none" if positions is None else "shared" if len(positions) == s else "per_batch"
            more = {} if positions is None else {"input_pos": positions}
            file.case(f"base{base}_{name}_{kind}", b=b, s=s, n_h=n_h, h_d=h_d, max_seq_len=max_seq_len, base=base, **more,
                      out=out(kind, module(x, input_pos=pos)))
    file.write()


def apex(sources):
    import torch
    _, sbhd, thd, two = functions(sources / "apex/test_fused_rope.py",
                                  ["_rotate_half", "apply_rotary_pos_emb", "apply_rotary_pos_emb_thd", "apply_rotary_pos_emb_2d"],
                                  {"torch": torch})
    file = File("apex", ["apex 16fadfe7, the PyTorch forms of tests/L0/run_transformer/test_fused_rope.py: make_goldens.py",
                         "Backward: the gradient (autograd), with freqs whose two halves are alike, as a model's are."])
    s, b, h, d = 3, 2, 2, 12
    for (kind, d2, form, backward) in itertools.product(["f32", "bf16", "f16"], [12, 8], ["freqs", "cached", "thd"], [0, 1]):
        cu = [0, 3, 4, 6]
        freqs = 3 * (np.tile(fill(2, s, 1, 1, d2 // 2), 2) if backward else fill(2, s, 1, 1, d2))
        angles = tensor(freqs)
        t = tensor(fill(1, s * b, h, d) if form == "thd" else fill(1, s, b, h, d), kind)
        turn = (lambda v: thd(v, torch.tensor(cu, dtype=torch.int32), angles)) if form == "thd" else lambda v: sbhd(v, angles)
        y = gradient(turn, t, t) if backward else turn(t)
        tables = {"cos": out("f32", torch.cos(angles)), "sin": out("f32", torch.sin(angles))} if form == "cached" else {}
        file.case(f"{form}_dim{d2}_{'backward' if backward else 'forward'}_{kind}", s=s, b=b, h=h, d=d, d2=d2, thd=form == "thd",
                  cu_seqlens=cu, backward=backward, **tables, out=out(kind, y))
    img_h, img_w, margin = 2, 3, 1
    for kind, backward in itertools.product(["f32", "f16"], [0, 1]):
        tables = {}
        for name, length, seed in (("h", img_h, 2), ("w", img_w, 4)):
            for part in ("cos", "sin"):
                seed += 1
                half = fill(seed, 1, length + margin, 1, d // 4)
                tables[f"{part}_{name}"] = tensor(np.tile(half, 2), kind)
        t = tensor(fill(1, b, img_h * img_w, h, d), kind)
        turn = lambda v: two(v, img_h, img_w, tables["cos_h"], tables["sin_h"], tables["cos_w"], tables["sin_w"])
        y = gradient(turn, t, t) if backward else turn(t)
        file.case(f"2d_{'backward' if backward else 'forward'}_{kind}", img_h=img_h, img_w=img_w, b=b, h=h, d=d, backward=backward,
                  rows_h=img_h + margin, rows_w=img_w + margin, **{k: out(kind, v) for k, v in tables.items()}, out=out(kind, y))
    file.write()


def huggingface(_):
    import torch
    from transformers.models.gpt_neox.modeling_gpt_neox import apply_rotary_pos_emb as neox
    from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb as gptj
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as llama
    file = File("huggingface", ["transformers 5.23.0, apply_rotary_pos_emb of llama, gpt_neox and gptj: make_goldens.py"])
    b, s, hq, hk, d = 2, 3, 2, 1, 12
    for kind, unsqueeze, shared in itertools.product(["f32", "bf16"], [1, 2], [0, 1]):
        for model, r in (("llama", d), ("gpt_neox", 8)):
            shape = (lambda h: (b, h, s, d)) if unsqueeze == 1 else (lambda h: (b, s, h, d))
            q, k = tensor(fill(1, *shape(hq)), kind), tensor(fill(2, *shape(hk)), kind)
            cos, sin = (tensor(np.tile(fill(seed, 1 if shared else b, s, r // 2), 2), kind) for seed in (3, 4))
            q_out, k_out = (llama if model == "llama" else neox)(q, k, cos, sin, unsqueeze_dim=unsqueeze)
            file.case(f"{model}_unsqueeze{unsqueeze}_shared{shared}_{kind}", b=b, s=s, hq=hq, hk=hk, d=d, rotary_ndims=r,
                      unsqueeze_dim=unsqueeze, shared=shared, q_out=out(kind, q_out), k_out=out(kind, k_out))
    for kind, r in itertools.product(["f32", "bf16"], [d, 8]):
        q, k = tensor(fill(1, b, s, hq, d), kind), tensor(fill(2, b, s, hk, d), kind)
        embed_positions = tensor(fill(3, 30, r), kind)  # [max_positions, rotary_dim], sin then cos
        position_ids = torch.tensor([[0, 5, 29], [7, 8, 9]])
        sin, cos = torch.split(embed_positions[position_ids], r // 2, dim=-1)
        turned = [torch.cat((gptj(t[..., :r], sin, cos), t[..., r:]), dim=-1) for t in (q, k)]
        file.case(f"gptj_dim{r}_{kind}", b=b, s=s, hq=hq, hk=hk, d=d, rotary_dim=r, max_positions=30,
                  position_ids=position_ids.numpy(), q_out=out(kind, turned[0]), k_out=out(kind, turned[1]))
    file.write()


def transformer_engine(sources):
    import torch
    for name in ("transformer_engine", "transformer_engine.pytorch", "transformer_engine.pytorch.cpp_extensions"):
        sys.modules[name] = types.ModuleType(name)  # the compiled parts, which the unfused path does not call
    sys.modules["transformer_engine_torch"] = types.ModuleType("transformer_engine_torch")
    fused = types.ModuleType("transformer_engine.pytorch.cpp_extensions.fused_attn")
    fused.QKVFormat = {}
    sys.modules[fused.__name__] = fused
    apply = load(sources / "TransformerEngine/transformer_engine/pytorch/attention/rope.py").apply_rotary_pos_emb
    file = File("transformer_engine", ["TransformerEngine 2.20.0.dev0 (d0067d0d), apply_rotary_pos_emb(fused=False): make_goldens.py",
                                       "backward: the gradient (autograd)"])
    s, b, h, d, s2 = 4, 2, 2, 12, 20
    kinds = itertools.cycle(["f32", "bf16", "f16"])
    for form, interleaved, backward, starts, cp in itertools.product(["sbhd", "bshd", "thd"], [0, 1], [0, 1], [0, 1], [1, 2]):
        if starts and cp > 1:
            continue  # not supported there
        d2 = 12 if (interleaved + backward + starts + cp) % 2 else 8
        kind = next(kinds)
        half = 3 * fill(2, s2, 1, 1, d2 // 2)
        freqs = tensor(np.repeat(half, 2, axis=-1) if interleaved else np.tile(half, 2))
        start_positions = torch.tensor([5, 1, 9][:3 if form == "thd" else b], dtype=torch.int32) if starts else None
        cu = np.array([0, 4, 6, 10]) * (cp if form == "thd" else 1)
        cp_rank = cp - 1
        t = tensor(fill(1, *{"sbhd": (s, b, h, d), "bshd": (b, s, h, d), "thd": (10, h, d)}[form]), kind)
        turn = lambda v: apply(v, freqs, form, start_positions, bool(interleaved), False,
                               torch.tensor(cu, dtype=torch.int32) if form == "thd" else None, cp, cp_rank)
        y = gradient(turn, t, t) if backward else turn(t)
        file.case(f"{form}_dim{d2}_interleaved{interleaved}_backward{backward}_start{starts}_cp{cp}_{kind}", s=s, b=b, h=h, d=d,
                  s2=s2, d2=d2, tensor_format=["sbhd", "bshd", "thd"].index(form), interleaved=interleaved, backward=backward,
                  start_positions=[] if start_positions is None else start_positions.numpy(), cu_seqlens=cu, cp_size=cp,
                  cp_rank=cp_rank, out=out(kind, y))
    file.write()


# ---- transcribed in float64 ----

def turn(x, cos, sin, interleaved):
    """x [..., r]; cos and sin [..., r], those of each channel: x cos + rotate(x) sin."""
    y = np.empty_like(x)
    if interleaved:
        y[..., 0::2], y[..., 1::2] = -x[..., 1::2], x[..., 0::2]
    else:
        half = x.shape[-1] // 2
        y[..., :half], y[..., half:] = -x[..., half:], x[..., :half]
    return x * cos + y * sin


def paddle(_):
    """fused_rotary_position_embedding (Paddle 3.3.1 registers no CPU kernel for it), from paddle/phi/kernels/fusion/gpu/
    fused_rope_kernel.cu and fused_rope_utils.h (02ecffcb): channel i of token (b, s) turns by column i of row position_ids[b, s]
    (or s); use_neox_rotary_style=True pairs neighbours. Without sin and cos the angle of channel i is s * base^(-2 (i / 2) / d),
    allowed by Paddle's Python for neighbours without position_ids. q, k and v alike; rounded once."""
    file = File("paddle", ["float64 transcription of Paddle's fused_rotary_position_embedding: make_goldens.py",
                           "Backward (grad 1): the same with -sin."])
    batch, seq_len, head_dim, heads, max_len = 2, 3, 8, [2, 1, 1], 9
    kinds = itertools.cycle(["f32", "bf16", "f16", "f64"])
    for count, neox, time_major, source, grad in itertools.product([1, 2, 3], [0, 1], [0, 1], ["tables", "ids", "base"], [0, 1]):
        if source == "base" and not neox or count == 2 and grad:
            continue
        kind = next(kinds)
        rows = max_len if source == "ids" else seq_len
        ids = np.array([[8, 0, 3], [1, 1, 6]]) if source == "ids" else np.tile(np.arange(seq_len), (batch, 1))
        base = 10000.0 if time_major else 500000.0
        if source == "base":
            angle = np.arange(rows)[:, None] * base**(-2.0 * (np.arange(head_dim) // 2) / head_dim)
            cos, sin = np.cos(angle), np.sin(angle)
        else:
            cos, sin = ((np.repeat(t, 2, axis=-1) if neox else np.tile(t, 2)) for t in (fill(s, rows, head_dim // 2) for s in (4, 5)))
        results = {}
        for n in range(count):
            x = fill(n + 1, *((seq_len, batch) if time_major else (batch, seq_len)), heads[n], head_dim)
            x = x.transpose(1, 0, 2, 3) if time_major else x
            y = turn(x, cos[ids][:, :, None], (-sin if grad else sin)[ids][:, :, None], bool(neox))
            results["out_" + "qkv"[n]] = (kind, y.transpose(1, 0, 2, 3) if time_major else y)
        more = {"position_ids": ids} if source == "ids" else {}
        file.case(f"{'qkv'[:count]}_neox{neox}_time_major{time_major}_{source}_grad{grad}_{kind}", batch=batch, seq_len=seq_len,
                  head_dim=head_dim, heads=heads[:count], rows=rows, use_neox_rotary_style=neox, time_major=time_major,
                  rotary_emb_base=base, tables=source != "base", grad=grad, **more, **results)
    # Tables with a value of its own in every column: rotate_half and rotate_every_two, statement by statement.
    for neox, time_major, grad, kind in itertools.product([0, 1], [0, 1], [0, 1], ["f32", "bf16"]):
        cos, sin = (fill(s, seq_len, head_dim) for s in (4, 5))
        shape = (seq_len, batch) if time_major else (batch, seq_len)
        x = fill(1, *shape, heads[0], head_dim).reshape(-1)
        y, sign = np.empty_like(x), -1 if grad else 1
        for index in range(x.size):
            column = index % head_dim
            token = index // (head_dim * heads[0])
            s = token // batch if time_major else token % seq_len
            if neox:  # rotate_every_two
                pr, ls = column // 2 * 2, column // 2 * 2 + 1
                p0, p1 = x[index - column + pr], x[index - column + ls]
                if sign == 1:
                    y[index] = cos[s, pr] * p0 - sin[s, pr] * p1 if column == pr else sin[s, ls] * p0 + cos[s, ls] * p1
                else:
                    y[index] = cos[s, pr] * p0 + sin[s, ls] * p1 if column == pr else cos[s, ls] * p1 - sin[s, pr] * p0
            else:  # rotate_half
                first = column < head_dim // 2
                index_r = index + head_dim // 2 if first else index - head_dim // 2
                sign_r = -1 if first else 1
                y[index] = cos[s, column] * x[index] + sign * sign_r * sin[s, column] * x[index_r]
        file.case(f"uneven_neox{neox}_time_major{time_major}_grad{grad}_{kind}", batch=batch, seq_len=seq_len, head_dim=head_dim,
                  heads=heads[:1], rows=seq_len, use_neox_rotary_style=neox, time_major=time_major, rotary_emb_base=10000.0,
                  tables=1, uneven=1, grad=grad, out_q=(kind, y))
    file.write()


ONEFLOW_LAYOUTS = ["BMHK", "BHMK", "MBHK", "BM(HK)", "MB(HK)", "BM(H2K)", "MB(H2K)", "BM(H3K)", "MB(H3K)"]


def oneflow(_):
    """fused_apply_rotary_emb, from oneflow/user/kernels/fused_attention_kernels.cu (05ec5c10), PlaneKernel and IntervalKernel, as
    its host code calls them: the rotated rotary_size channels are rotary_emb_dim (1 or 2) blocks of w channels, block a turns by
    position_ids[b, a, m] (or m), pairs within the block; given tables have w columns; else the angle of pair i is position *
    (1 / base)^(2 i / w), the kernel's theta being 1 / base. Rounded once here; the kernel rounds angle, cos and sin to T."""
    file = File("oneflow", ["float64 transcription of OneFlow's fused_apply_rotary_emb: make_goldens.py",
                            "x_layout, output_layout: index into " + " ".join(ONEFLOW_LAYOUTS)])
    b, m, h, k, rows = 2, 3, 2, 16, 9

    def order(layout):  # of [B, M, H, packed, K] in memory, and back
        return (0, 2, 1, 3, 4) if layout == "BHMK" else (1, 0, 2, 3, 4) if layout.startswith("MB") else (0, 1, 2, 3, 4)

    cases = []
    for plane, dim, source in itertools.product([1, 0], [1, 2], ["tables", "base"]):
        for rotary_size in (16, 8):
            cases.append((plane, dim, source, rotary_size, "BMHK", "BMHK", 0, True))
        cases.append((plane, dim, source, 12, "BMHK", "BHMK", 0, True))
    for i, layout in enumerate(ONEFLOW_LAYOUTS):
        for index in {"2": [1, 2], "3": [0, 1, 2]}.get(layout[4:5], [0]):
            cases.append((i % 2, 1 + i % 2, "tables", 8, layout, "MBHK" if i % 2 else "BMHK", index, i % 2 == 1))
    for n, (plane, dim, source, rotary_size, x_layout, out_layout, index, with_ids) in enumerate(cases):
        kind = ["f32", "bf16", "f16"][n % 3] if source == "tables" else "f32"
        packed = {"2": 2, "3": 3}.get(x_layout[4:5], 1)
        base, w = (10000.0, 500.0)[n % 2], rotary_size // dim
        ids = np.array([[[8, 0, 3], [1, 2, 6]], [[4, 4, 5], [0, 7, 8]]])[:, :dim] if with_ids or dim == 2 else np.tile(np.arange(m), (b, 1, 1))
        shape = [(b, m, h, packed, k)[i] for i in order(x_layout)]
        dense = fill(1, *shape).transpose(order(x_layout))
        which = index - 1 if packed == 2 else index
        x = dense[:, :, :, which]
        if source == "base":
            pairs = np.arange(w) % (w // 2) if plane else np.arange(w) // 2
            angle = np.arange(rows)[:, None] * (1 / base)**(2.0 * pairs / w)
            cos, sin = np.cos(angle), np.sin(angle)
        else:
            cos, sin = ((np.tile(t, 2) if plane else np.repeat(t, 2, axis=-1)) for t in (fill(s, rows, w // 2) for s in (2, 3)))
        y = x.copy()
        for a in range(dim):
            block = slice(a * w, (a + 1) * w)
            y[..., block] = turn(x[..., block], cos[ids[:, a]][:, :, None], sin[ids[:, a]][:, :, None], not plane)
        more = {"position_ids": ids} if with_ids or dim == 2 else {}
        file.case(f"{'plane' if plane else 'interval'}_{dim}d_{source}_{rotary_size}_{n}_{kind}", b=b, m=m, h=h, k=k,
                  x_layout=ONEFLOW_LAYOUTS.index(x_layout), output_layout=ONEFLOW_LAYOUTS.index(out_layout), plane=plane, base=base,
                  rotary_size=rotary_size, rotary_emb_dim=dim, tensor_index=index, rows=rows,
                  tables=source == "tables", **more, out=(kind, y[:, :, :, None].transpose(order(out_layout))))
    file.write()


def triton_tutorial(_):
    """rope_forward_kernel_v4 of the Triton RoPE tutorial, from its listing: for head_dim channels of token s, i < head_dim / 2,
    y[i] = x[i] cos[s, i] + x[i + half] sin[s, i], y[i + half] = -x[i] sin[s, i] + x[i + half] cos[s, i]."""
    file = File("triton_tutorial", ["float64 transcription of the tutorial's rope_forward_kernel_v4: make_goldens.py"])
    batch, heads, seq, head_dim = 2, 2, 3, 12
    for kind, columns in itertools.product(["f32", "bf16", "f16"], [6, 12]):
        x = fill(1, batch, heads, seq, head_dim)
        cos, sin = (np.tile(fill(s, seq, 6), columns // 6) for s in (2, 3))
        y = turn(x, np.tile(cos[:, :6], 2), -np.tile(sin[:, :6], 2), False)
        file.case(f"columns{columns}_{kind}", batch=batch, n_heads=heads, seq_len=seq, head_dim=head_dim, columns=columns,
                  out=(kind, y))
    file.write()


def infinicore(_):
    """op::rope, from its documentation of the nvidia backend and src/infiniop/ops/rope/rope.h (d1ae29d6): token (b, s) turns by row
    pos_ids[s] or pos_ids[b, s]; GPT-J pairs neighbours, GPT-NeoX halves. Rounded once."""
    file = File("infinicore", ["float64 transcription of InfiniCore's op::rope: make_goldens.py"])
    batch, seqlen, nhead, table_dim, table_len = 2, 3, 2, 6, 9
    for kind, gptj, ndim, pos_2d in itertools.product(["f32", "f16", "bf16", "f64"], [0, 1], [3, 4], [0, 1]):
        if pos_2d and ndim == 3:
            continue
        shape = ([batch] if ndim == 4 else [1]) + [seqlen, nhead, 2 * table_dim]
        ids = np.array([[8, 0, 3], [1, 2, 6]] if pos_2d else [[5, 0, 8]])
        cos, sin = (fill(s, table_len, table_dim) for s in (2, 3))
        wide = (lambda t: np.repeat(t, 2, axis=-1)) if gptj else (lambda t: np.tile(t, 2))
        y = turn(fill(1, *shape), wide(cos)[ids][:, :, None], wide(sin)[ids][:, :, None], bool(gptj))
        file.case(f"{'gptj' if gptj else 'neox'}_{ndim}d_pos{1 + pos_2d}d_{kind}", batch=shape[0], seqlen=seqlen, nhead=nhead,
                  ndim=ndim, pos_2d=pos_2d, gptj=gptj, table_len=table_len, table_dim=table_dim, pos_ids=ids, out=(kind, y))
    file.write()


# ---- transcribed over flat memory: strides, holes, mixed types, empty sequences ----
# `out` is the whole output memory: what the kernel does not write stays fill(9). Sizes and strides count elements.

def flat(*dims):
    """The elements from the first to past the last, of (count, stride) each."""
    return 1 + sum((count - 1) * stride for count, stride in dims)


def flash_attn_strides(_):
    """rotary_kernel of FlashAttention: the pointers X + rh * stride_x_nheads + rm * stride_x_seqlen + rk * stride_x_headdim after
    pid_batch * stride_x_batch, or start_idx * stride_x_seqlen (IS_VARLEN, seqlen = the difference of CU_SEQLENS); cos and sin of
    row rm + SEQLEN_OFFSETS. apply_rotary copies the channels past ROTARY_DIM."""
    file = File("flash_attn_strides", ["float64 transcription of FlashAttention's rotary_kernel over flat memory: make_goldens.py",
                                       "strides: batch, seqlen, nheads, headdim; sequence 1 of cu_seqlens is empty"])
    heads, headdim, rotary_dim, seqlen_ro = 2, 12, 8, 12
    half = rotary_dim // 2
    kinds = itertools.cycle([("f16", "f32"), ("bf16", "f64"), ("f32", "bf16"), ("f64", "f16")])
    for varlen, interleaved, conjugate in itertools.product([0, 1], [0, 1], [0, 1]):
        kind, cos_kind = next(kinds)
        cu, offsets = ([0, 2, 2, 5], [5, 1, 7]) if varlen else ([], [5, 1])
        batch, seqlen = (3, 5) if varlen else (2, 3)
        x_strides, out_strides = [190, 26, 90, 2], [130, 40, 17, 1]  # heads outside tokens and every other channel; holes
        memory = 1 if varlen else batch
        x = fill(1, flat((memory, x_strides[0]), (seqlen, x_strides[1]), (heads, x_strides[2]), (headdim, x_strides[3])))
        out = fill(9, flat((memory, out_strides[0]), (seqlen, out_strides[1]), (heads, out_strides[2]), (headdim, out_strides[3])))
        cos, sin = (fill(seed, seqlen_ro * half) for seed in (2, 3))
        for pid_batch in range(batch):
            if varlen:
                start, length = cu[pid_batch], cu[pid_batch + 1] - cu[pid_batch]
                x_base, out_base = start * x_strides[1], start * out_strides[1]
            else:
                length, x_base, out_base = seqlen, pid_batch * x_strides[0], pid_batch * out_strides[0]
            for rm, rh in itertools.product(range(length), range(heads)):
                at = lambda base, strides, rk: base + rh * strides[2] + rm * strides[1] + rk * strides[3]
                for rk in range(half):
                    row = (rm + offsets[pid_batch]) * half
                    c, s = cos[row + rk], -sin[row + rk] if conjugate else sin[row + rk]
                    k0, k1 = (2 * rk, 2 * rk + 1) if interleaved else (rk, rk + half)
                    x0, x1 = x[at(x_base, x_strides, k0)], x[at(x_base, x_strides, k1)]
                    out[at(out_base, out_strides, k0)] = x0 * c - x1 * s
                    out[at(out_base, out_strides, k1)] = x0 * s + x1 * c
                for rk in range(rotary_dim, headdim):
                    out[at(out_base, out_strides, rk)] = x[at(x_base, x_strides, rk)]
        file.case(f"varlen{varlen}_interleaved{interleaved}_conjugate{conjugate}_{kind}_{cos_kind}", batch=batch, seqlen=seqlen,
                  heads=heads, headdim=headdim, rotary_dim=rotary_dim, seqlen_ro=seqlen_ro, cu_seqlens=cu, offsets=offsets,
                  interleaved=interleaved, conjugate=conjugate, x_size=x.size, x_strides=x_strides, out_strides=out_strides,
                  cos_type=["f32", "f16", "bf16", "f64"].index(cos_kind), out=(kind, out))
    file.write()


def apex_strides(_):
    """fused_rope_forward of apex (in GPT-NeoX): src at s_id * stride_s + b_id * stride_b + h_id * stride_h + d_id * stride_d, float32
    freqs[s_id * d2 + d_id], the tail copied; dst dense, [s, b, h, d] or (transpose_output_memory) [b, s, h, d]. In float64."""
    file = File("apex_strides", ["float64 transcription of apex's fused_rope_forward over flat memory: make_goldens.py",
                                 "t_strides: s, b, h, d"])
    s, b, h, d, d2 = 3, 2, 2, 12, 8
    for kind, transpose in itertools.product(["f32", "bf16"], [0, 1]):
        strides = [25, 160, 80, 2]
        src = fill(1, flat((s, strides[0]), (b, strides[1]), (h, strides[2]), (d, strides[3])))
        freqs = 3 * fill(2, s * d2)
        out = np.empty(s * b * h * d)
        for s_id, b_id, h_id, d_id in itertools.product(range(s), range(b), range(h), range(d)):
            offset_src = s_id * strides[0] + b_id * strides[1] + h_id * strides[2] + d_id * strides[3]
            offset_dst = ((b_id * s + s_id if transpose else s_id * b + b_id) * h + h_id) * d + d_id
            if d_id >= d2:
                out[offset_dst] = src[offset_src]
                continue
            rotate = -src[offset_src + d2 // 2 * strides[3]] if d_id + d2 // 2 < d2 else src[offset_src + (d2 // 2 - d2) * strides[3]]
            angle = freqs[s_id * d2 + d_id]
            out[offset_dst] = src[offset_src] * np.cos(angle) + rotate * np.sin(angle)
        file.case(f"transpose{transpose}_{kind}", s=s, b=b, h=h, d=d, d2=d2, t_size=src.size, t_strides=strides,
                  transpose_output_memory=transpose, out=(kind, out))
    file.write()


def triton_tutorial_strides(_):
    """rope_forward_kernel_v4 of the Triton tutorial: its base pointers, x of one type and cos and sin of another. It adds channels
    without their stride, so these are 1 here."""
    file = File("triton_tutorial_strides",
                ["float64 transcription of the tutorial's rope_forward_kernel_v4 over flat memory: make_goldens.py",
                 "x_strides, out_strides: batch, head, seq"])
    batch, heads, seq, head_dim = 2, 2, 3, 12
    half = head_dim // 2
    for kind, cos_kind in (("f16", "f32"), ("bf16", "f64"), ("f32", "bf16"), ("f32", "f16")):
        x_strides, out_strides, cos_stride, sin_stride = [100, 13, 30], [110, 45, 15], 7, 9
        x = fill(1, flat((batch, x_strides[0]), (heads, x_strides[1]), (seq, x_strides[2]), (head_dim, 1)))
        out = fill(9, flat((batch, out_strides[0]), (heads, out_strides[1]), (seq, out_strides[2]), (head_dim, 1)))
        cos, sin = fill(2, seq * cos_stride), fill(3, seq * sin_stride)
        for pid_bh, pid_s in itertools.product(range(batch * heads), range(seq)):
            pid_batch, pid_head = pid_bh // heads, pid_bh % heads
            x_base = pid_batch * x_strides[0] + pid_head * x_strides[1] + pid_s * x_strides[2]
            out_base = pid_batch * out_strides[0] + pid_head * out_strides[1] + pid_s * out_strides[2]
            for i in range(half):
                x1, x2 = x[x_base + i], x[x_base + half + i]
                c, s = cos[pid_s * cos_stride + i], sin[pid_s * sin_stride + i]
                out[out_base + i] = x1 * c + x2 * s
                out[out_base + half + i] = -x1 * s + x2 * c
        file.case(f"{kind}_{cos_kind}", batch=batch, n_heads=heads, seq_len=seq, head_dim=head_dim, x_size=x.size, x_strides=x_strides,
                  out_strides=out_strides, cos_stride=cos_stride, sin_stride=sin_stride,
                  cos_type=["f32", "f16", "bf16", "f64"].index(cos_kind), out=(kind, out))
    file.write()


def infinicore_strides(_):
    """ropeThreadPerItemBlock of InfiniCore: x and y at batch_idx * stride_batch + seq_idx * stride_seqlen + head_idx * stride_nhead,
    row pos_ids[seq_idx] or pos_ids[batch_idx * pos_stride_batch + seq_idx]."""
    file = File("infinicore_strides", ["float64 transcription of InfiniCore's ropeThreadPerItemBlock over flat memory: make_goldens.py",
                                       "x_strides, y_strides: batch, seqlen, nhead"])
    seqlen, nhead, table_dim, table_len = 3, 2, 6, 9
    for kind, gptj, ndim in itertools.product(["f32", "f16", "bf16", "f64"], [0, 1], [3, 4]):
        batch = 2 if ndim == 4 else 1
        pos_2d = ndim == 4
        x_strides, y_strides = [90, 13, 42], [100, 30, 14]
        size = lambda strides: flat((batch, strides[0]), (seqlen, strides[1]), (nhead, strides[2]), (2 * table_dim, 1))
        x, y = fill(1, size(x_strides)), fill(9, size(y_strides))
        cos, sin = (fill(s, table_len * table_dim) for s in (2, 3))
        pos_ids = [8, 0, 3, 1, 2, 6][:batch * seqlen]
        for batch_idx, seq_idx, head_idx, i in itertools.product(range(batch), range(seqlen), range(nhead), range(table_dim)):
            pos_id = pos_ids[batch_idx * seqlen + seq_idx if pos_2d else seq_idx]
            c, s = cos[pos_id * table_dim + i], sin[pos_id * table_dim + i]
            x_offset, y_offset = (batch_idx * st[0] + seq_idx * st[1] + head_idx * st[2] for st in (x_strides, y_strides))
            i0, i1 = (2 * i, 2 * i + 1) if gptj else (i, i + table_dim)
            x0, x1 = x[x_offset + i0], x[x_offset + i1]
            y[y_offset + i0] = x0 * c - x1 * s
            y[y_offset + i1] = x0 * s + x1 * c
        file.case(f"{'gptj' if gptj else 'neox'}_{ndim}d_{kind}", batch=batch, seqlen=seqlen, nhead=nhead, ndim=ndim, pos_2d=pos_2d,
                  gptj=gptj, table_len=table_len, table_dim=table_dim, pos_ids=pos_ids, x_size=x.size, x_strides=x_strides,
                  y_strides=y_strides, out=(kind, y))
    file.write()


def ggml_signs(_):
    """rope_neox of llama.cpp's CUDA backend (and, pairs aside, rope_norm) with attn_factor, freq_scale and freq_factors, where
    positions have both signs: theta = freq_scale * pos * theta_scale^i / freq_factor, cos and sin times attn_factor, -sin backward."""
    file = File("ggml_signs", ["float64 transcription of llama.cpp's rope_neox and rope_norm: make_goldens.py",
                               "ne: head_dim, heads, tokens, batch; row: channels from one head to the next; mode: GGML_ROPE_TYPE_*"])
    ne0, heads, n_dims = 16, 2, 12
    positions, factors = [-3, 0, 40, -41, 0, 7], [1.0, 1.25, 1.5, 2.0, 3.0, 4.5]
    freq_base, freq_scale, attn_factor = 500.0, 0.5, 1.5
    for (mode, name), forward in itertools.product(((NORMAL, "normal"), (NEOX, "neox")), [1, 0]):
        x = fill(1, len(positions), heads, ne0)
        dst = x.copy()
        for token, head, i in itertools.product(range(len(positions)), range(heads), range(n_dims // 2)):
            theta = freq_scale * positions[token] * freq_base**(-2.0 * i / n_dims) / factors[i]
            c, s = np.cos(theta) * attn_factor, np.sin(theta) * attn_factor * (1 if forward else -1)
            a, b = (2 * i, 2 * i + 1) if mode == NORMAL else (i, i + n_dims // 2)
            x0, x1 = x[token, head, a], x[token, head, b]
            dst[token, head, a] = x0 * c - x1 * s
            dst[token, head, b] = x0 * s + x1 * c
        file.case(f"{name}_negative_{'forward' if forward else 'back'}", ne=[ne0, heads, len(positions), 1], row=ne0, f16=0,
                  positions=positions, freq_factors=factors, n_dims=n_dims, mode=mode, sections=[0] * 4, n_ctx_orig=0,
                  freq_base=freq_base, freq_scale=freq_scale, ext_factor=0.0, attn_factor=attn_factor, beta_fast=0.0, beta_slow=0.0,
                  offset=0, forward=forward, out=("f32", dst))
    file.write()


SYSTEMS = {f.__name__: f for f in (flash_attn, ggml, paddle, oneflow, torchtune, apex, triton_tutorial, infinicore, huggingface,
                                   transformer_engine, flash_attn_strides, apex_strides, triton_tutorial_strides,
                                   infinicore_strides, ggml_signs)}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sources", type=pathlib.Path)
    parser.add_argument("systems", nargs="+", choices=SYSTEMS)
    arguments = parser.parse_args()
    for system in arguments.systems:
        SYSTEMS[system](arguments.sources)
