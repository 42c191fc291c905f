#!/usr/bin/env python3
"""Makes the tiny random checkpoints in tests/golden/models, and the logits that transformers computes from them.

    scripts/make_reference_models.py                   # all of them
    scripts/make_reference_models.py llama3 gemma3     # only these

Each folder has, in the layout of a Hugging Face checkpoint, config.json and model.safetensors (one model in two files with an index);
and two files for the test:

  case.json   the prompts, which rows of their logits are kept, and changes of the checkpoint. A change edits config.json or fills
              tensors with a value; it switches off something that the model is there for, so it must move the logits (or, if it is
              marked "same", must not)
  logits.bin  float32, little-endian: the kept rows of each prompt; then for each change the last row of the last prompt

The reference is transformers in float32 with eager attention, loaded from the written files. The same model in float64 must agree, so
that a difference is never a matter of rounding (two experts with nearly the same score).

Made with transformers 5.23.0, torch 2.15.0 (CPU), safetensors 0.8.0, numpy 2.4.6. The files are compared by a test within a tolerance;
other versions need not write the same bytes.
"""

import copy
import json
import pathlib
import shutil
import sys
import tempfile

import numpy as np
import safetensors.torch
import torch
import transformers
from torch.overrides import TorchFunctionMode

from reference_families import FAMILIES

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden" / "models"
TOLERANCE = 1e-4  # of max - min of the logits: what the C++ test allows
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


class InFloat64(TorchFunctionMode):
    """Models ask for float32 in norms, softmax and rope. In here they get float64."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        def widen(value):
            return torch.float64 if value is torch.float32 else value

        if func is torch.Tensor.float:
            func = torch.Tensor.double
        return func(*[widen(a) for a in args], **{k: widen(v) for k, v in (kwargs or {}).items()})


def random_weights(model, family, rng):
    gains = {"q_proj": 1.5, "k_proj": 1.5, "qkv_proj": 1.5, "query_key_value": 1.5, "o_proj": 1.5, "dense.weight": 1.5, "lm_head": 2.0,
             "embed_out": 2.0, "router": 2.0, "mlp.gate.weight": 2.0} | family.gains
    for name, p in model.named_parameters():
        parts = name.rsplit(".", 2)
        if "sinks" in name:
            value = rng.uniform(-2, 2, p.shape)
        elif "bias" in parts[-1]:
            value = rng.uniform(-0.3, 0.3, p.shape)
        elif "norm" in name or "ln_" in name:
            value = rng.uniform(0.5, 1.5, p.shape) - family.norm_offset
        elif "embed_tokens" in name or "embed_in" in name or "wte" in name:
            value = rng.standard_normal(p.shape)
        else:
            fan_in = p.shape[1] if p.ndim == 3 and family.experts_are_in_out else p.shape[-1]
            gain = next((g for key, g in gains.items() if key in name), 1.0)
            value = rng.standard_normal(p.shape) * gain / np.sqrt(fan_in)
        p.data = torch.tensor(value, dtype=torch.float32)


def write_checkpoint(family, folder, seed):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(family.config, indent=2) + "\n")
    model = model_class(family)(transformers.AutoConfig.from_pretrained(folder))
    random_weights(model, family, np.random.default_rng(seed))
    model.tie_weights()
    model.to(DTYPES[family.dtype]).save_pretrained(folder, **({"max_shard_size": family.max_shard_size} if family.max_shard_size else {}))
    if family.buffers:
        path = folder / "model.safetensors"
        tensors = safetensors.torch.load_file(path)
        values = {"rotary_emb.inv_freq": torch.ones(2), "masked_bias": torch.tensor(-1e9), "bias": torch.ones(1, 1, 8, 8, dtype=torch.bool)}
        for buffer in family.buffers:
            for i in range(family.config["num_hidden_layers"]):
                tensors[buffer.format(i)] = next(v for end, v in values.items() if buffer.endswith("." + end)).clone()
        safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})
    (folder / "generation_config.json").unlink(missing_ok=True)
    for path in folder.iterdir():
        path.chmod(0o644)
    (folder / "config.json").write_text(json.dumps(family.config, indent=2) + "\n")


def model_class(family):
    return getattr(transformers, family.config["architectures"][0])


def load(family, folder, dtype):
    model, info = model_class(family).from_pretrained(folder, dtype=dtype, attn_implementation="eager", experts_implementation="eager",
                                                        output_loading_info=True)
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        if info.get(what):
            raise SystemExit(f"{family.name}: {what}: {info[what]}")
    return model.eval()


def run(family, folder, prompts, dtype=torch.float32):
    """The logits of each prompt, from a model that has seen nothing else: dynamic RoPE remembers the longest prompt."""
    results = []
    loaded = load(family, folder, dtype)
    for prompt in prompts:
        model = copy.deepcopy(loaded)
        ids = torch.tensor([prompt["ids"]])
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "use_cache": False}
        if "positions" in prompt:
            inputs["position_ids"] = torch.tensor(prompt["positions"])[:, None, :]
        with torch.no_grad():
            if dtype == torch.float64:
                with InFloat64():
                    logits = model(**inputs).logits
            else:
                logits = model(**inputs).logits
        results.append(logits[0].numpy())
    return results


def apply(edits, folder, prompts):
    """Edits the checkpoint in `folder`; returns the prompts, also edited. tests/support/reference_model.cpp does the same."""
    config = json.loads((folder / "config.json").read_text())
    for edit in edits:
        if "config" in edit:
            at = config
            for key in edit["config"][:-1]:
                at = at[key]
            if "value" in edit:
                at[edit["config"][-1]] = edit["value"]
            else:
                del at[edit["config"][-1]]
        elif "tensor_suffix" in edit:
            found = False
            for path in folder.glob("*.safetensors"):
                tensors = safetensors.torch.load_file(path)
                for name, t in tensors.items():
                    if name.endswith(edit["tensor_suffix"]):
                        found = True
                        t.fill_(edit["fill"])
                        if t.dtype != torch.float32 and float(t.flatten()[0]) != edit["fill"]:
                            raise SystemExit(f"{edit}: not exact in {t.dtype}")
                safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})
            if not found:
                raise SystemExit(f"{edit}: no such tensor")
        else:
            assert edit == {"positions": "text"}
            prompts = [{k: v for k, v in p.items() if k != "positions"} | (
                {"positions": [list(range(len(p["ids"])))] * 3} if "positions" in p else {}) for p in prompts]
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    return prompts


def kept_rows(length):
    step = {64: 9, 200: 13}.get(length, 1)
    return sorted({*range(0, length, step), length - 1, max(length - 2, 0)}) if length <= 17 or step > 1 else [length - 2, length - 1]


def make_prompts(family):
    rng = np.random.default_rng(7)
    prompts = []
    for length in (1, 17, 64, *family.extra_lengths, 200):
        prompt = {"ids": rng.integers(0, 60, length).tolist(), "rows": kept_rows(length)}
        if family.rope_length:  # every position was rotated with the frequencies for this total length
            prompt["rope_length"] = length
        if family.mrope:
            rows = mrope_rows(length)
            prompt |= {"positions": rows, "position_delta": max(map(max, rows)) + 1 - length}
        prompts.append(prompt)
    return prompts


def mrope_rows(length):
    """Text, an image of 3 x 4 tokens, text, a video of 2 frames of 5 x 7 tokens, text: as far as they fit."""
    rows = [[], [], []]

    def text(count):
        start = max(map(max, rows)) + 1 if rows[0] else 0
        for row in rows:
            row += range(start, start + count)

    def grid(frames, height, width):
        if len(rows[0]) + frames * height * width > length:
            return
        start = max(map(max, rows)) + 1
        for t in range(frames):
            for y in range(height):
                for x in range(width):
                    for row, at in zip(rows, (t, y, x)):
                        row.append(start + at)

    text(1 if length == 1 else 3)
    grid(1, 3, 4)
    text(0 if length < 64 else 20)
    grid(2, 5, 7)
    text(length - len(rows[0]))
    return rows


def layout_edits(family, folder):
    """The same rope in the layout of transformers 5 (rope_parameters), if the file has the older one (rope_theta, rope_scaling)."""
    path = family.rope_at
    config = family.config
    for key in path:
        config = config[key]
    old = [k for k in ("rope_theta", "rope_scaling", "rope_local_base_freq", "partial_rotary_factor", "rotary_pct", "rotary_emb_base") if k in config]
    if not old or "rope_parameters" in config:
        return []
    loaded = transformers.AutoConfig.from_pretrained(folder)
    standard = getattr(loaded, "text_config", loaded).rope_parameters
    edits = [{"config": [*path, key]} for key in old] + [{"config": [*path, "rope_parameters"], "value": standard}]
    return [{"name": "the layout of transformers 5", "same": True, "edits": edits}]


def span(results, prompts):
    kept = np.concatenate([r[p["rows"]] for r, p in zip(results, prompts)])
    return kept, float(kept.max() - kept.min())


def make(family, seed):
    folder = OUT / family.name
    shutil.rmtree(folder, ignore_errors=True)
    write_checkpoint(family, folder, seed)
    prompts = make_prompts(family)
    kept, width = span(run(family, folder, prompts), prompts)
    exact, _ = span(run(family, folder, prompts, torch.float64), prompts)
    rounding = float(np.abs(kept - exact).max()) / width
    if rounding > TOLERANCE / 10:
        print(f"{family.name}: float32 and float64 differ by {rounding:.1e}: seed {seed} is not taken")
        return False
    binary = [kept]
    changes = []
    for change in layout_edits(family, folder) + copy.deepcopy(family.changes):
        with tempfile.TemporaryDirectory() as scratch:
            changed = pathlib.Path(scratch) / "model"
            shutil.copytree(folder, changed)
            changed_prompts = apply(change["edits"], changed, prompts)
            logits = run(family, changed, changed_prompts)
            exact = run(family, changed, changed_prompts[-1:], torch.float64)[-1][-1]
        changed_kept, _ = span(logits, prompts)
        effect = float(np.abs(changed_kept - kept).max()) / width
        change_rounding = float(np.abs(logits[-1][-1] - exact).max()) / float(np.ptp(exact))
        change["effect"] = round(effect, 6)
        ok = effect == 0 if change.get("same") else effect >= 100 * TOLERANCE
        print(f"  {change['name']:48} {effect:9.4f}  {'' if ok else 'NOT AS EXPECTED'}{'' if change_rounding < TOLERANCE / 10 else f'ROUNDING {change_rounding:.1e}'}")
        if not ok or change_rounding >= TOLERANCE / 10:
            family.problems += 1
        changes.append(change)
        binary.append(logits[-1][-1:])
    case = {"name": family.name, "exercises": family.exercises, "dtype": family.dtype, "vocab_size": kept.shape[1],
            "made_with": f"transformers {transformers.__version__}, torch {torch.__version__.split('+')[0]}", "prompts": prompts, "changes": changes}
    (folder / "case.json").write_text(compact(case))
    (folder / "logits.bin").write_bytes(np.concatenate(binary).astype("<f4").tobytes())
    size = sum(f.stat().st_size for f in folder.iterdir())
    print(f"{family.name}: seed {seed}, {size / 1024:.0f} KiB, logits {kept.min():.2f} .. {kept.max():.2f}, float32 against float64 {rounding:.1e}")
    return True


def compact(case):
    """JSON with one prompt, or one change, on a line."""
    lines = []
    for key, value in case.items():
        if isinstance(value, list):
            text = "[\n" + ",\n".join("    " + json.dumps(v) for v in value) + "\n  ]"
        else:
            text = json.dumps(value)
        lines.append(f"  {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main():
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    wanted = sys.argv[1:] or [f.name for f in FAMILIES]
    unknown = set(wanted) - {f.name for f in FAMILIES}
    if unknown:
        raise SystemExit(f"no such model: {', '.join(sorted(unknown))}; there are {', '.join(f.name for f in FAMILIES)}")
    problems = 0
    for family in FAMILIES:
        if family.name in wanted:
            seed = family.seed
            while not make(family, seed):
                seed += 1
            problems += family.problems
    if problems:
        raise SystemExit(f"{problems} problems, see above")


if __name__ == "__main__":
    main()
