"""SGLang, through its class Engine. The model is a directory as on Hugging Face, or a GGUF file if this version of SGLang reads them."""
PACKAGE, PIP = "sglang", '"sglang[all]"'
BATCHED = True


class Peer:
    def __init__(self, options):
        import sglang
        self.version = sglang.__version__
        self.engine = sglang.Engine(model_path=options.model, dtype=options.dtype, device=options.device,
                                    context_length=options.context_length, max_running_requests=options.max_seqs,
                                    disable_radix_cache=True, skip_tokenizer_init=True, random_seed=0, log_level="error",
                                    **({"load_format": "dummy"} if options.dummy_weights else {}))

    def generate(self, requests, temperature):
        sampling = [{"temperature": temperature, "max_new_tokens": max_tokens, "ignore_eos": True} for _, max_tokens in requests]
        outputs = self.engine.generate(input_ids=[prompt for prompt, _ in requests], sampling_params=sampling)
        return [output["meta_info"]["completion_tokens"] for output in outputs]

    def close(self):
        self.engine.shutdown()
