"""Functions with the names, signatures and results of other systems: import them from here in place of theirs.

    from prologue_attention.compat.flash_attn import apply_rotary_emb, apply_rotary_emb_qkv_

Each module names the version that it follows. Where the other system reads past a table or a cache, the rows of that token become zeros,
or are not written, unless its module says otherwise. Arithmetic is float32, rounded once: results may differ from the other system's in
the last bit. Arguments of the other system that choose one of its kernels are accepted and have no effect.
"""
