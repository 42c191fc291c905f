"""Measures one peer, in a process of its own: run.py calls it. The peer is a module NAME_peer with

    PACKAGE, PIP    what is imported, and what pip installs
    BATCHED         whether generate() runs the requests that it gets at the same time
    Peer(options)   loads the model: options.model, device, dtype, threads, context_length, max_seqs, dummy_weights
      version
      generate([(prompt, max_tokens), ...], temperature)   the number of tokens that each request got; end tokens are ignored
      decode_step_us(batch, prompt_length, num_tokens)     only if it is not BATCHED; None: it cannot be measured
      close()                                              may be left out
"""
import argparse
import importlib
import json
import math
import statistics
import sys
import time

import workloads


def log(*text):
    print(*text, file=sys.stderr, flush=True)


def summary(values):
    values = sorted(values)

    def rank(share):
        return values[max(1, math.ceil(share * len(values))) - 1]
    return {"mean": round(statistics.fmean(values), 3), "p50": round(rank(0.5), 3), "p99": round(rank(0.99), 3)}


class Measurement:
    """Rows with the names and members of bench_engine's."""

    def __init__(self, name, batched, peer, options):
        self.name, self.batched, self.peer, self.options = name, batched, peer, options
        self.repeats = 5 if options.device == "cuda" else 2
        self.num_runs, self.rows = 0, []

    def add(self, name, section, **values):
        row = {"name": f"{name}, {self.name}", "section": section, "peer": self.name, **values}
        self.rows.append(row)
        log(json.dumps(row))

    def seconds(self, requests, temperature=0.0):
        """Of a call with these requests, with other tokens than in any call before."""
        self.num_runs += 1
        requests = workloads.shifted(requests, self.num_runs)
        start = time.monotonic()
        counts = self.peer.generate(requests, temperature)
        seconds = time.monotonic() - start
        wanted = [max_tokens for _, max_tokens in requests]
        if counts != wanted:
            sys.exit(f"{self.name} generated {counts} tokens, not {wanted}: its times cannot be compared")
        return seconds

    def warm_up(self):
        self.seconds(workloads.equal(1, 64, 16))

    def first_token(self):
        ms = [1e3 * self.seconds(workloads.equal(1, 32, 1)) for _ in range(21)][1:]
        self.add("first token, 32 tokens", "first-token", first_token_ms=summary(ms))

    def prefill(self):
        seconds = [self.seconds(workloads.equal(16, 512, 1)) for _ in range(1 + self.repeats)][1:]
        self.add("prefill, 16 prompts of 512 tokens", "prefill", prompt_tokens_per_s=round(16 * 512 / statistics.median(seconds), 3),
                 seconds=[round(each, 3) for each in seconds])

    def decode(self):
        for batch in self.options.batches:
            context = self.options.context
            num_tokens = min(256 if self.options.device == "cuda" else 64 + batch // 2, 2 * (context - 1))
            prompt_length = context - num_tokens // 2
            us = self.decode_step_us(batch, prompt_length, num_tokens)
            if us is None:
                log(f"{self.name}: decode, batch {batch} is left out: it cannot be measured")
                continue
            self.add(f"decode, batch {batch}", "decode", batch=batch, context=context, output_tokens_per_s=round(1e6 * batch / us, 3),
                     step_us=round(us, 3))

    def decode_step_us(self, batch, prompt_length, num_tokens):
        """What the tokens after the first one add to the time of a call, divided by their number; None: nothing, so the clock says nothing."""
        if batch > 1 and not self.batched:
            return self.peer.decode_step_us(batch, prompt_length, num_tokens)
        whole, first = workloads.equal(batch, prompt_length, num_tokens), workloads.equal(batch, prompt_length, 1)
        self.seconds(whole)  # a step may be captured or compiled
        seconds = statistics.median(self.seconds(whole) - self.seconds(first) for _ in range(3))
        return 1e6 * seconds / (num_tokens - 1) if seconds > 0 else None

    def throughput(self):
        requests = workloads.mini_sglang(self.options.requests)
        if self.batched:
            seconds, num_tokens = self.seconds(requests, 0.6), sum(max_tokens for _, max_tokens in requests)
            self.add("mini-sglang", "throughput", requests=len(requests), seconds=round(seconds, 3),
                     requests_per_s=round(len(requests) / seconds, 3), output_tokens_per_s=round(num_tokens / seconds, 3),
                     prompt_tokens=sum(len(prompt) for prompt, _ in requests), output_tokens=num_tokens)
        requests = requests[:16]
        seconds = sum(self.seconds([each], 0.6) for each in requests)
        num_tokens = sum(max_tokens for _, max_tokens in requests)
        self.add("mini-sglang, one at a time", "throughput", requests=len(requests), seconds=round(seconds, 3),
                 output_tokens_per_s=round(num_tokens / seconds, 3), prompt_tokens=sum(len(prompt) for prompt, _ in requests),
                 output_tokens=num_tokens)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("module")
    parser.add_argument("options", type=json.loads)
    parser.add_argument("json")
    arguments = parser.parse_args()
    options = argparse.Namespace(**arguments.options)
    module = importlib.import_module(arguments.module)
    peer = module.Peer(options)
    try:
        measurement = Measurement(options.peer, module.BATCHED, peer, options)
        measurement.warm_up()
        for section in options.sections:
            getattr(measurement, section.replace("-", "_"))()
    finally:
        if hasattr(peer, "close"):
            peer.close()
    with open(arguments.json, "w", encoding="utf-8") as file:
        json.dump({"version": str(peer.version), "rows": measurement.rows}, file)


if __name__ == "__main__":  # vLLM and SGLang start processes that import this file
    main()
