"""The requests of bench_engine (benchmarks/engine/workload.h), token for token. Token ids are 0 to 10000: a model needs so many."""
import random

LARGEST_TOKEN = 10000


def mini_sglang(num_requests):
    """(prompt, tokens to generate) of each request: the offline benchmark of mini-sglang and nano-vllm."""
    generator = random.Random(0)
    prompts = [[generator.randint(0, LARGEST_TOKEN) for _ in range(generator.randint(100, 1024))] for _ in range(num_requests)]
    return [(prompt, generator.randint(100, 1024)) for prompt in prompts]


def equal(count, prompt_length, max_tokens):
    generator = random.Random(1)
    return [([generator.randint(0, LARGEST_TOKEN) for _ in range(prompt_length)], max_tokens) for _ in range(count)]


def shifted(requests, run):
    """The same requests with other tokens, so that nothing of an earlier run is in a prefix cache."""
    return [([(token + run) % (LARGEST_TOKEN + 1) for token in prompt], max_tokens) for prompt, max_tokens in requests]
