#!/usr/bin/env python3
"""The requests of bench_engine's workload mini-sglang through llama.cpp, one at a time, for comparison.

    pip install llama-cpp-python
    benchmarks/llama_cpp_bench.py --model FILE.gguf [--requests 32] [--threads N] [--json FILE]

Prompts, lengths and the temperature are those of bench_engine. Times to the first token and per token as there; loading the model is not
counted. llama.cpp computes in the types of the file: write it in the type that bench_engine runs in (--dtype).
"""
import argparse
import datetime
import itertools
import json
import math
import os
import random
import sys
import time


def make_workload(num_requests):
    """The tokens of each prompt, and how many to generate: nano-vllm's and mini-sglang's benchmark."""
    random.seed(0)
    prompts = [[random.randint(0, 10000) for _ in range(random.randint(100, 1024))] for _ in range(num_requests)]
    return [(prompt, random.randint(100, 1024)) for prompt in prompts]


def summary(values):
    values = sorted(values)
    rank = lambda share: values[max(1, math.ceil(share * len(values))) - 1]
    return {"mean": round(sum(values) / len(values), 3), "p50": round(rank(0.5), 3), "p99": round(rank(0.99), 3)}


def run(llama, prompt, max_tokens):
    """Seconds from the start to each token."""
    llama.reset()  # nothing of an earlier prompt is used again
    start = time.monotonic()
    tokens = llama.generate(prompt, top_k=0, top_p=1.0, min_p=0.0, temp=0.6, repeat_penalty=1.0)  # goes on after end tokens
    return [time.monotonic() - start for _ in itertools.islice(tokens, max_tokens)]


def cpu_name():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        names = [line.split(": ", 1)[1].strip() for line in file if line.startswith("model name")]
    return names[0] if names else "CPU"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--json")
    options = parser.parse_args()
    try:
        import llama_cpp
    except ImportError:
        sys.exit("llama_cpp_bench.py: the package llama-cpp-python is not installed: pip install llama-cpp-python")

    llama = llama_cpp.Llama(options.model, n_ctx=2048, n_batch=512, n_threads=options.threads, n_threads_batch=options.threads, verbose=False)
    run(llama, [1] * 64, 16)  # warm-up
    workload = make_workload(options.requests)
    times = [run(llama, prompt, max_tokens) for prompt, max_tokens in workload]
    seconds = sum(each[-1] for each in times)
    output_tokens = sum(len(each) for each in times)
    row = {"name": "mini-sglang, one at a time, llama.cpp", "section": "throughput", "requests": len(workload),
           "seconds": round(seconds, 3), "requests_per_s": round(len(workload) / seconds, 3),
           "output_tokens_per_s": round(output_tokens / seconds, 3),
           "prompt_tokens": sum(len(prompt) for prompt, _ in workload), "output_tokens": output_tokens,
           "first_token_ms": summary([1e3 * each[0] for each in times]),
           "per_token_ms": summary([1e3 * (each[-1] - each[0]) / (len(each) - 1) for each in times])}
    print(f"{row['requests']} requests one at a time: {row['output_tokens_per_s']:.1f} output tokens/s")
    if options.json:
        result = {"date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
                  "device": f"{cpu_name()}, {options.threads} threads", "model": os.path.basename(options.model),
                  "peer": f"llama-cpp-python {llama_cpp.__version__}", "command": " ".join(sys.argv), "rows": [row]}
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)
            file.write("\n")


main()
