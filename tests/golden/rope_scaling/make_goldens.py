#!/usr/bin/env python3
"""Writes rope_scaling.json beside this file: what Hugging Face transformers itself makes of the rope parameters of real models.

  pip install transformers torch; ./make_goldens.py

frequencies  ROPE_INIT_FUNCTIONS[rope_type](config, seq_len=...) of transformers.modeling_rope_utils, and for "default" the
             model's own compute_default_rope_parameters, on the CPU; seq_len is a Python int. (A model's forward
             pass hands it over as a tensor, and the base of dynamic scaling is then formed in float32: ulps_of_a_forward_pass,
             up to 3 where we looked.)
tables       the forward of LlamaRotaryEmbedding (unwrapped from dynamic_rope_update) with these frequencies
axes         recomposition_frequencies of Qwen2-VL and Qwen3-VL, fed with the number of each axis
softmax      yarn_apply_mscale of DeepSeek-V3

inv_freq_scalar stands where torch's scalar code (ATEN_CPU_CAPABILITY=default: the C library's powf) gives other frequencies than
its vector code, which is off by an ulp here and there.

Arrays are float32, eight hexadecimal digits each, end to end. The versions, and the instruction set that torch chose (its powf,
cos and sin differ between them in the last bit), stand in the file. The parameters are those of the models' config.json, except
where the name says synthetic; the LongRoPE factors are Phi-3-mini-128k's.
"""
import inspect
import json
import os
import pathlib
import subprocess
import sys

import torch
import transformers
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.deepseek_v3.modeling_deepseek_v3 import yarn_apply_mscale
from transformers.models.gemma4.configuration_gemma4 import Gemma4TextConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLRotaryEmbedding
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextRotaryEmbedding

PHI3_SHORT = [1.05, 1.05, 1.05, 1.1, 1.1, 1.1, 1.2500000000000002, 1.2500000000000002, 1.4000000000000004, 1.4500000000000004,
              1.5500000000000005, 1.8500000000000008, 1.9000000000000008] + [2.000000000000001] * 19 + [
                  2.1000000000000005, 2.1000000000000005, 2.2, 2.3499999999999996, 2.3499999999999996, 2.3499999999999996,
                  2.3499999999999996, 2.3999999999999995, 2.3999999999999995, 2.6499999999999986, 2.6999999999999984,
                  2.8999999999999977, 2.9499999999999975, 3.049999999999997, 3.049999999999997, 3.049999999999997]
PHI3_LONG = [1.0299999713897705, 1.0499999523162842, 1.0499999523162842, 1.0799999237060547, 1.2299998998641968,
             1.2299998998641968, 1.2999999523162842, 1.4499999284744263, 1.5999999046325684, 1.6499998569488525,
             1.8999998569488525, 2.859999895095825, 3.68999981880188, 5.419999599456787, 5.489999771118164, 5.489999771118164,
             9.09000015258789, 11.579999923706055, 15.65999984741211, 15.769999504089355, 15.789999961853027,
             18.360000610351562, 21.989999771118164, 23.079999923706055, 30.009998321533203, 32.35000228881836,
             32.590003967285156, 35.56000518798828, 39.95000457763672, 53.840003967285156, 56.20000457763672,
             57.95000457763672, 59.29000473022461, 59.77000427246094, 59.920005798339844, 61.190006256103516,
             61.96000671386719, 62.50000762939453, 63.3700065612793, 63.48000717163086, 63.48000717163086, 63.66000747680664,
             63.850006103515625, 64.08000946044922, 64.760009765625, 64.80001068115234, 64.81001281738281, 64.81001281738281]
assert len(PHI3_SHORT) == len(PHI3_LONG) == 48


def yarn(factor, original, **more):
    return {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original, **more}


def llama3(factor, original=8192):
    return {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": original}


def longrope(original=4096, **more):
    return {"rope_type": "longrope", "short_factor": PHI3_SHORT, "long_factor": PHI3_LONG,
            "original_max_position_embeddings": original, **more}


DEFAULT = {"rope_type": "default"}
STATIC = [0]

# name, rotary_dim, theta, max_position_embeddings, parameters, sequence lengths
CASES = [
    ("Llama-2-7B", 128, 10000.0, 4096, DEFAULT, STATIC),
    ("Qwen3-8B", 128, 1000000.0, 40960, DEFAULT, STATIC),
    ("StableLM-2 (20 of 80)", 20, 10000.0, 4096, DEFAULT, STATIC),
    ("deepseek-coder-6.7b", 128, 100000.0, 16384, {"rope_type": "linear", "factor": 4.0}, STATIC),
    ("gemma-3-4b, full attention", 256, 1000000.0, 131072, {"rope_type": "linear", "factor": 8.0}, STATIC),
    ("synthetic, factor 3", 72, 10000.0, 4096, {"rope_type": "linear", "factor": 3.0}, STATIC),
    ("internlm2-chat-7b", 128, 1000000.0, 32768, {"rope_type": "dynamic", "factor": 2.0},
     [0, 32767, 32768, 32769, 65536, 200000]),
    ("synthetic, Llama-2 with dynamic 2.5", 128, 10000.0, 4096, {"rope_type": "dynamic", "factor": 2.5}, [4096, 4097, 106191]),
    ("Qwen2.5-7B-Instruct", 128, 1000000.0, 131072, yarn(4.0, 32768), STATIC),
    ("DeepSeek-V3", 64, 10000.0, 163840, yarn(40, 4096, beta_fast=32, beta_slow=1, mscale=1.0, mscale_all_dim=1.0), STATIC),
    ("DeepSeek-V2", 64, 10000.0, 163840, yarn(40, 4096, beta_fast=32, beta_slow=1, mscale=0.707, mscale_all_dim=0.707), STATIC),
    ("synthetic, mscale ratio", 64, 10000.0, 163840, yarn(40, 4096, mscale=1.0, mscale_all_dim=0.8), STATIC),
    ("gpt-oss-20b", 64, 150000.0, 131072, yarn(32.0, 4096, beta_fast=32.0, beta_slow=1.0, truncate=False), STATIC),
    ("synthetic, gpt-oss truncated", 64, 150000.0, 131072, yarn(32.0, 4096, beta_fast=32.0, beta_slow=1.0), STATIC),
    ("synthetic, attention_factor", 96, 500000.0, 65536, yarn(8.0, 8192, beta_fast=16.0, beta_slow=2.0, attention_factor=0.9),
     STATIC),
    ("synthetic, empty ramp", 8, 10000.0, 65536, yarn(8.0, 8192, beta_fast=2.0, beta_slow=2.0, truncate=False), STATIC),
    ("Phi-3-mini-128k", 96, 10000.0, 131072, longrope(), [0, 4095, 4096, 4097, 131072]),
    ("synthetic, attention_factor", 96, 10000.0, 131072, longrope(factor=32.0, attention_factor=1.25), [4096, 4097]),
    ("Llama-3.1-8B", 128, 500000.0, 131072, llama3(8.0), STATIC),
    ("Llama-3.2-1B", 64, 500000.0, 131072, llama3(32.0), STATIC),
    ("synthetic, wide blend", 256, 500000.0, 131072,
     {**llama3(8.0, 6000), "low_freq_factor": 0.3, "high_freq_factor": 100.0}, STATIC),
    ("gemma-4, full attention", 512, 1000000.0, 131072, {"rope_type": "proportional", "partial_rotary_factor": 0.25}, STATIC),
    ("synthetic, proportional with factor", 128, 10000.0, 8192,
     {"rope_type": "proportional", "partial_rotary_factor": 0.33, "factor": 2.0}, STATIC),
]
POSITIONS = [1, 77, 4095, 16383]


def hexadecimal(tensor):
    assert tensor.dtype == torch.float32
    return "".join(f"{bits & 0xffffffff:08x}" for bits in tensor.contiguous().view(torch.int32).flatten().tolist())


def llama_config(rotary_dim, theta, max_position, parameters):
    return LlamaConfig(head_dim=rotary_dim, hidden_size=rotary_dim * 8, num_attention_heads=8,
                       max_position_embeddings=max_position, rope_parameters={**parameters, "rope_theta": theta})


def frequencies(config, parameters, sequence_length):
    if parameters["rope_type"] == "default":
        return LlamaRotaryEmbedding.compute_default_rope_parameters(config)
    return ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, seq_len=sequence_length or None)


def table(config, inv_freq, attention_factor):
    rotary = LlamaRotaryEmbedding(config)
    rotary.inv_freq, rotary.attention_scaling = inv_freq, attention_factor
    cos, sin = inspect.unwrap(LlamaRotaryEmbedding.forward)(rotary, torch.zeros(1), torch.tensor([POSITIONS]))
    half = inv_freq.shape[0]
    return torch.cat((cos[0, :, :half], sin[0, :, :half]), dim=-1)


def dynamic_drift(config, sequence_length, inv_freq):
    theirs = ROPE_INIT_FUNCTIONS["dynamic"](config, seq_len=torch.tensor(sequence_length))[0]
    return int((theirs.view(torch.int32) - inv_freq.view(torch.int32)).abs().max())


def axes(cls, sections):
    half = sum(sections)
    rotary = cls.__new__(cls)
    torch.nn.Module.__init__(rotary)
    rotary.mrope_section = sections
    numbers = torch.arange(3, dtype=torch.float32)[:, None, None, None].expand(3, 1, 1, half).clone()
    return "".join(str(int(axis)) for axis in rotary.recomposition_frequencies(numbers)[0, 0, :half])


def scalar_frequencies():
    """inv_freq of every case and length in order, from a torch that uses no vector instructions."""
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": "default"}
    return subprocess.run([sys.executable, __file__, "--frequencies"], env=environment, check=True, text=True,
                          stdout=subprocess.PIPE).stdout.split()


def print_frequencies():
    for _, rotary_dim, theta, max_position, parameters, lengths in CASES:
        for length in lengths:
            print(hexadecimal(frequencies(llama_config(rotary_dim, theta, max_position, parameters), parameters, length)[0]))


def main():
    scalar = iter(scalar_frequencies())
    gemma4 = Gemma4TextConfig().rope_parameters["full_attention"]
    assert gemma4 == {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0}, gemma4
    cases = []
    for name, rotary_dim, theta, max_position, parameters, lengths in CASES:
        config = llama_config(rotary_dim, theta, max_position, parameters)
        case = {"name": name, "rotary_dim": rotary_dim, "theta": theta, "max_position": max_position, **parameters, "lengths": []}
        for length in lengths:
            inv_freq, attention_factor = frequencies(config, parameters, length)
            entry = {"sequence_length": length, "attention_factor": attention_factor, "inv_freq": hexadecimal(inv_freq)}
            if (other := next(scalar)) != entry["inv_freq"]:
                entry["inv_freq_scalar"] = other
            if length == lengths[-1]:
                entry["table"] = hexadecimal(table(config, inv_freq, attention_factor))
            if parameters["rope_type"] == "dynamic" and length:
                entry["ulps_of_a_forward_pass"] = dynamic_drift(config, length, inv_freq)
            case["lengths"].append(entry)
        cases.append(case)
    golden = {
        "origin": "make_goldens.py, beside this file",
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "positions": POSITIONS,
        "cases": cases,
        "axes": [{"sections": s, "interleaved": interleaved, "axes": axes(cls, s)}
                 for cls, interleaved in ((Qwen2VLRotaryEmbedding, False), (Qwen3VLTextRotaryEmbedding, True))
                 for s in ([16, 24, 24], [24, 20, 20], [2, 1, 1], [4, 30, 30])],
        "softmax": [{"factor": p["factor"], "mscale_all_dim": p.get("mscale_all_dim", 0), "scale": yarn_apply_mscale(p, 1.0)}
                    for p in (yarn(40, 4096, mscale_all_dim=1.0), yarn(40, 4096, mscale_all_dim=0.707), yarn(32, 4096),
                              yarn(1, 4096, mscale_all_dim=1.0))],
    }
    text = json.dumps(golden, separators=(",", ":"))
    text = text.replace('{"name"', '\n{"name"').replace('{"sequence_length"', '\n {"sequence_length"')
    pathlib.Path(__file__).with_name("rope_scaling.json").write_text(text + "\n")


print_frequencies() if "--frequencies" in sys.argv else main()
