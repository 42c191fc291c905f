"""TransformerEngine. The tests compare the fused function (fused=True), which is ours, with the unfused one, which is taken from
FOLDER/transformer_engine/transformer_engine/pytorch/attention/rope.py."""

import importlib.util
from pathlib import Path
from typing import Any

from shims import module

SKIPPED = [
    ("test_unfused_rope_thd_vs_bshd", "compares TransformerEngine's unfused functions with each other"),
    ("test_rotary_position_embedding_forward_with_autocast", "tests TransformerEngine's own table of angles"),
]


def install(folder: str) -> None:
    from prologue_attention.compat import transformer_engine

    reference = Path(folder) / "transformer_engine" / "pytorch" / "attention" / "rope.py"
    if not reference.exists():
        raise SystemExit(f"{reference} is missing: the tests need its unfused functions as their reference")
    module("transformer_engine_torch")
    module("transformer_engine.pytorch.cpp_extensions.fused_attn", QKVFormat={})
    spec = importlib.util.spec_from_file_location("transformer_engine_reference", reference)
    theirs = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    spec.loader.exec_module(theirs)  # type: ignore[union-attr]

    def apply_rotary_pos_emb(*args: Any, fused: bool = False, **options: Any) -> Any:
        function = transformer_engine.apply_rotary_pos_emb if fused else theirs.apply_rotary_pos_emb
        return function(*args, **options)

    module(
        "transformer_engine.pytorch.attention.rope",
        RotaryPositionEmbedding=theirs.RotaryPositionEmbedding,
        apply_rotary_pos_emb=apply_rotary_pos_emb,
        apply_fused_qkv_rotary_pos_emb=transformer_engine.apply_fused_qkv_rotary_pos_emb,
    )
