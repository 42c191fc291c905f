"""python/peer_tests with small stand-ins for the tests of other libraries: they import the same names, and use NumPy where they can."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).parents[1] / "peer_tests" / "run.py"
NEEDS_TORCH = {"vllm", "transformer_engine"}

STANDINS = {
    "kernels_rotary/tests/utils.py": "DIM = 8\n",
    "kernels_rotary/tests/test_rotary.py": """
import numpy as np, pytest, rotary
from tests.utils import DIM

@pytest.mark.parametrize("conj", [False, True])
@pytest.mark.flaky(max_runs=2, min_passes=1)
def test_rotary(conj):
    x = np.ones((1, 3, 2, DIM), np.float32)
    cos, sin = np.zeros((3, 1, DIM // 2), np.float32), np.ones((3, 1, DIM // 2), np.float32)
    half = x[..., : DIM // 2], x[..., DIM // 2 :]
    rotary.apply_rotary(*half, cos, sin, *half, conj)
    assert (half[0] == (1 if conj else -1)).all() and (half[1] == (-1 if conj else 1)).all()
""",
    "flash_attn/tests/test_rotary.py": """
import numpy as np, pytest
from flash_attn.layers.rotary import apply_rotary_emb, apply_rotary_emb_kv_, apply_rotary_emb_qkv_, apply_rotary_emb_torch
from flash_attn.bert_padding import pad_input, unpad_input
from flash_attn.ops.triton.rotary import apply_rotary

def test_rotary_emb_func():
    x, cos, sin = np.ones((1, 3, 2, 8), np.float32), np.zeros((3, 4), np.float32), np.ones((3, 4), np.float32)
    np.testing.assert_array_equal(apply_rotary_emb(x, cos, sin), np.concatenate([-x[..., :4], x[..., 4:]], -1))

def test_compilation_count():
    raise AssertionError("is skipped")

@pytest.mark.parametrize("number", [1, 2, 3])
def test_that_fails(number):
    raise AssertionError(f"there are {number} of 5.5")
""",
    "flashinfer/tests/test_helpers/rope_reference.py": "HEADS = 2\n",
    "flashinfer/tests/attention/test_page.py": """
import numpy as np
import flashinfer
from flashinfer.utils import get_compute_capability
from flashinfer.fp4_quantization import e2m1_and_ufp8sf_scale_to_float
from tests.test_helpers.rope_reference import *

def test_append_paged_kv_cache():
    k, pages = np.ones((3, HEADS, 8), np.float32), np.zeros((2, 2, 4, HEADS, 8), np.float32)
    indptr, indices, last = np.array([0, 1], np.int32), np.array([1], np.int32), np.array([3], np.int32)
    seq_lens = flashinfer.get_seq_lens(indptr, last, 4)
    batch, positions = flashinfer.get_batch_indices_positions(np.array([0, 3], np.int32), seq_lens, 3)
    flashinfer.page.append_paged_kv_cache(k, 2 * k, batch, positions, pages, indices, indptr, last)
    assert pages.sum() == 3 * k.size and (pages[1, 1, :3] == 2).all()

def test_nvfp4_cache():
    flashinfer.nvfp4_quantize_append_paged_kv_cache()
""",
    "sglang/test/test_rope.py": """
import numpy as np, pytest
from sglang.kernels.jit import get_ci_test_range
from sglang.srt.utils import is_hip
from sglang.test.ci.ci_register import register_amd_ci, register_cuda_ci
register_cuda_ci(est_time=64, stage="base")

@pytest.mark.parametrize("tokens", get_ci_test_range([1, 2, 3, 4, 5], [1]))
def test_rope(tokens):
    from sglang.jit_kernel.rope import apply_rope_inplace
    q, k, table = np.ones((tokens, 2, 8), np.float32), np.ones((tokens, 1, 8), np.float32), np.zeros((9, 8), np.float32)
    apply_rope_inplace(q, k, table, np.arange(tokens), is_neox=True)
    assert (q == 0).all() and (k == 0).all() and is_hip()
""",
    "vllm/tests/kernels/allclose_default.py": "ATOL = 1e-5\n",
    "vllm/tests/kernels/core/test_rotary_embedding.py": """
import pytest, torch
from tests.kernels.allclose_default import ATOL
from tests.kernels.utils import opcheck
from vllm import _custom_ops as ops
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.rotary_embedding import RotaryEmbedding, get_rope
from vllm.platforms import current_platform
from vllm.utils.torch_utils import set_random_seed

@pytest.mark.parametrize("neox", [False, True])
def test_rotary_embedding(default_vllm_config, dist_init, neox):
    rope = get_rope(8, 32, neox, {"rope_theta": 1e4, "partial_rotary_factor": 0.5})
    positions, query = torch.randint(0, 32, (2, 5), device="cuda"), torch.randn(2, 5, 3, 8, device="cuda")
    opcheck(torch.ops._C.rotary_embedding, (positions, query, None, 8, rope.cos_sin_cache, neox))
    want, _ = rope.forward_native(positions, query)
    torch.testing.assert_close(rope(positions, query)[0], want, atol=ATOL, rtol=0)

def test_cache(kv_cache_factory_flashinfer):
    (k,), (v,) = kv_cache_factory_flashinfer(4, 8, 1, 2, 16, "fp8", torch.float, device="cuda", cache_layout="HND")
    x, slots, scale = torch.randn(3, 2, 16), torch.tensor([5, -1, 17]), torch.ones(1)
    before = k.clone()
    ops.reshape_and_cache_flash(x, x, k, v, slots, "fp8", scale, scale)
    assert (k != before).any() and torch.equal(k[2, 1], v[2, 1]) and torch.equal(k[3], before[3])

def test_swap_blocks():
    ops.swap_blocks()
""",
    "transformer_engine/transformer_engine/pytorch/attention/rope.py": """
import torch
import transformer_engine_torch as tex
from transformer_engine.pytorch.cpp_extensions.fused_attn import QKVFormat
class RotaryPositionEmbedding(torch.nn.Module):
    pass
def apply_rotary_pos_emb(t, freqs, tensor_format="sbhd"):
    a, b = t.chunk(2, -1)
    return t * freqs.cos() + torch.cat([-b, a], -1) * freqs.sin()
""",
    "transformer_engine/tests/pytorch/test_fused_rope.py": """
import torch
from transformer_engine.pytorch.attention.rope import RotaryPositionEmbedding, apply_rotary_pos_emb, apply_fused_qkv_rotary_pos_emb

def test_fused_rope():
    t, freqs = torch.randn(3, 2, 4, 8, device="cuda", requires_grad=True), torch.randn(3, 1, 1, 4, device="cuda").repeat(1, 1, 1, 2)
    torch.testing.assert_close(apply_rotary_pos_emb(t, freqs, fused=True), apply_rotary_pos_emb(t, freqs, fused=False))
""",
}


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """The counts of all files: one run with every peer."""
    folder = tmp_path_factory.mktemp("peers")
    has_torch = subprocess.run([sys.executable, "-c", "import torch"], capture_output=True).returncode == 0
    peers = {name.partition("/")[0] for name in STANDINS} - (set() if has_torch else NEEDS_TORCH)
    for name, text in STANDINS.items():
        if name.partition("/")[0] in peers:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    killed = folder / "kernels_rotary" / "tests" / "test_killed.py"
    killed.write_text("import os, pytest\n\n\n@pytest.mark.parametrize('i', [0, 1, 2])\ndef test_killed(i):\n    if i == 1: os.kill(os.getpid(), 15)\n")
    options = ["--jobs", "2", "--json", str(folder / "table.json"), "--logs", str(folder / "logs"), *(["--cpu"] if has_torch else [])]
    ran = subprocess.run([sys.executable, RUN, folder, *options], capture_output=True, text=True)
    assert ran.returncode == 1, ran.stderr  # some fail
    return json.loads((folder / "table.json").read_text()), ran.stdout


def counts(table, name):
    if name not in table:
        pytest.skip("needs torch")
    return tuple(table[name][key] for key in ("tests", "passed", "skipped", "failed", "not run"))


def test_what_passes_and_what_is_skipped(table):
    table, text = table
    assert counts(table, "kernels_rotary: test_rotary.py") == (2, 2, 0, 0, 0)
    assert counts(table, "flashinfer: test_page.py") == (2, 1, 1, 0, 0)
    assert counts(table, "sglang: test_rope.py") == (5, 5, 0, 0, 0)
    assert table["flashinfer: test_page.py"]["reasons"] == [["skipped", "test_nvfp4_cache", "NVFP4 caches: not covered", 1]]
    assert "| sglang: test_rope.py | 5 | 5 | 0 | 0 | 0 |" in text


def test_failures_are_in_groups(table):
    table, text = table
    assert counts(table, "flash_attn: test_rotary.py") == (5, 1, 1, 3, 0)
    assert ["failed", "test_that_fails", "AssertionError: there are N of N", 3] in table["flash_attn: test_rotary.py"]["reasons"]
    assert "| flash_attn: test_rotary.py test_that_fails | failed | 3 | AssertionError: there are N of N |" in text


def test_a_process_that_ends(table):
    assert counts(table[0], "kernels_rotary: test_killed.py") == (3, 1, 0, 0, 2)
    assert ["not run", "", "the process ended with 143", 2] in table[0]["kernels_rotary: test_killed.py"]["reasons"]


def test_a_time_limit(tmp_path):
    test = tmp_path / "kernels_rotary" / "tests" / "test_slow.py"
    test.parent.mkdir(parents=True)
    test.write_text("def test_slow(): pass\n")
    ran = subprocess.run([sys.executable, RUN, tmp_path, "--timeout", "0"], capture_output=True, text=True)
    assert ran.returncode == 1 and "time limit" in ran.stdout


def test_a_part_of_the_cases(tmp_path):
    test = tmp_path / "kernels_rotary" / "tests" / "test_numbers.py"
    test.parent.mkdir(parents=True)
    test.write_text("import pytest\n\n\n@pytest.mark.parametrize('i', range(7))\ndef test_number(i):\n    assert i % 3 == 1\n")
    command = [sys.executable, RUN, tmp_path, "--sample", "3", "--first"]
    ran = subprocess.run([*command, "1"], capture_output=True, text=True)
    assert ran.returncode == 0 and "| kernels_rotary: test_numbers.py | 2 | 2 | 0 | 0 | 0 |" in ran.stdout
    ran = subprocess.run([*command, "3"], capture_output=True, text=True)
    assert ran.returncode == 2 and "--first is 3: with --sample 3 and --shards 1 it must be 0 to 2" in ran.stderr


def test_vllm(table):
    assert counts(table[0], "vllm: test_rotary_embedding.py") == (4, 3, 1, 0, 0)


def test_transformer_engine(table):
    assert counts(table[0], "transformer_engine: test_fused_rope.py") == (1, 1, 0, 0, 0)


def test_an_empty_folder(tmp_path):
    ran = subprocess.run([sys.executable, RUN, tmp_path, "vllm"], capture_output=True, text=True)
    assert ran.returncode == 2 and "has no PEER/tests/test_*.py for any of vllm" in ran.stderr
