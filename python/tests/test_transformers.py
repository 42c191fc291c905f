import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
import prologue.transformers  # noqa: E402


def models(kind):
    sizes = {
        "vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    config = {
        "llama": lambda: transformers.LlamaConfig(**sizes),
        "window": lambda: transformers.MistralConfig(**sizes, sliding_window=4),
        "qwen3": lambda: transformers.Qwen3Config(**sizes, head_dim=16),
    }[kind]()
    torch.manual_seed(3)
    eager = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    ours = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="prologue").eval()
    ours.load_state_dict(eager.state_dict())
    return eager, ours


@pytest.mark.parametrize("kind", ["llama", "window", "qwen3"])
def test_the_same_logits_and_text_as_eager(kind):
    eager, ours = models(kind)
    ids = torch.randint(3, 50, (2, 9), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(ours(ids).logits, eager(ids).logits, rtol=0, atol=1e-5)
        assert torch.equal(ours.generate(ids, max_new_tokens=8, do_sample=False), eager.generate(ids, max_new_tokens=8, do_sample=False))


def test_what_is_not_supported():
    _, ours = models("llama")
    ids = torch.randint(3, 50, (2, 9))
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    with torch.no_grad(), pytest.raises(NotImplementedError, match="without padding"):
        ours(ids, attention_mask=mask)
    with pytest.raises(NotImplementedError, match="no gradients"):
        ours(ids)
