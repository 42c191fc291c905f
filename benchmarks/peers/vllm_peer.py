"""vLLM, through its class LLM. The model is a directory as on Hugging Face, or a GGUF file if this version of vLLM reads them. vLLM chooses
the device by how it was built."""
PACKAGE, PIP = "vllm", "vllm"
BATCHED = True


class Peer:
    def __init__(self, options):
        import vllm
        self.vllm, self.version = vllm, vllm.__version__
        self.llm = vllm.LLM(model=options.model, dtype=options.dtype, max_model_len=options.context_length, max_num_seqs=options.max_seqs,
                            enable_prefix_caching=False, skip_tokenizer_init=True, seed=0,
                            **({"load_format": "dummy"} if options.dummy_weights else {}))

    def generate(self, requests, temperature):
        prompts = [self.vllm.TokensPrompt(prompt_token_ids=prompt) for prompt, _ in requests]
        sampling = [self.vllm.SamplingParams(temperature=temperature, max_tokens=max_tokens, ignore_eos=True, detokenize=False)
                    for _, max_tokens in requests]
        return [len(output.outputs[0].token_ids) for output in self.llm.generate(prompts, sampling, use_tqdm=False)]
