#!/usr/bin/env python3
"""Golden values of the dequantisation: random blocks of every quantised GGUF type and what the `gguf` package makes of them.

    pip install gguf numpy && python3 make_goldens.py

writes TYPE.bin beside this script: uint32 number of blocks, the blocks, then their values as float32, all little-endian.
Made with gguf 0.19.0 and numpy 2.4; the random blocks are seeded, so that a rerun gives the same files.
"""

import pathlib
import struct

import gguf
import numpy as np

# The 16-bit floats of each block: byte offsets in the order of the format.
SCALES = {
    "Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2],
    "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
    "Q2_K": [80, 82], "Q3_K": [108], "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": [], "NVFP4": [],
}
# Zero, the smallest and largest subnormals, the smallest and largest normals, one and its neighbours, a common size.
EXTREME = [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x83FF, 0x0400, 0x8400, 0x7BFF, 0xFBFF, 0x3C00, 0x3BFF, 0x3C01, 0x2135]


def finite_halves(rng, count):
    halves = rng.integers(0, 1 << 16, count, dtype=np.uint16)
    return np.where((halves & 0x7C00) == 0x7C00, halves & 0xBFFF, halves)  # no infinities, no NaN


def main():
    folder = pathlib.Path(__file__).parent
    for number, (name, scales) in enumerate(SCALES.items()):
        kind = gguf.GGMLQuantizationType[name]
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        rng = np.random.default_rng(1000 + number)
        blocks_of_random_scale = 48 if elements < 256 else 6
        num_blocks = len(EXTREME) + blocks_of_random_scale
        blocks = rng.integers(0, 256, (num_blocks, size), dtype=np.uint8)
        blocks[0, :] = 0
        for place, offset in enumerate(scales):
            halves = np.concatenate([np.roll(EXTREME, 3 * place).astype(np.uint16), finite_halves(rng, blocks_of_random_scale)])
            blocks[:, offset:offset + 2] = halves.reshape(-1, 1).view(np.uint8)
        if name == "MXFP4":  # exponents of powers of two, of which the last ones would give infinities
            blocks[:, 0] = np.concatenate([np.arange(8), [126, 127, 128, 250, 251, 252], rng.integers(0, 253, blocks_of_random_scale)])
        if name == "NVFP4":  # every scale that is a number, without a sign
            blocks[:, :4] = (np.arange(4 * num_blocks) % 127).reshape(num_blocks, 4)
        values = gguf.quants.dequantize(blocks, kind).astype("<f4")
        assert values.size == num_blocks * elements and np.isfinite(values).all()
        data = struct.pack("<I", num_blocks) + blocks.tobytes() + values.tobytes()
        (folder / f"{name}.bin").write_bytes(data)
        print(f"{name}: {num_blocks} blocks, {len(data)} bytes")


if __name__ == "__main__":
    main()
