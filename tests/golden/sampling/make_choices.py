"""Writes choices.txt: tokens chosen for fixed seeds, computed from the contract of sampling.h in Python's float64.

Origin: this script (python3 make_choices.py > choices.txt); nothing of the library is involved. The logits are
((token * 7919 + row * 104729) mod 4096) / 256 - 8, exact in float32.
"""
import math

MASK = 0xFFFFFFFF


def philox(counter, key):
    for _ in range(10):
        a, b = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [(b >> 32) ^ counter[1] ^ key[0], b & MASK, (a >> 32) ^ counter[3] ^ key[1], a & MASK]
        key = [(key[0] + 0x9E3779B9) & MASK, (key[1] + 0xBB67AE85) & MASK]
    return counter


def choose(logits, temperature, top_k, top_p, min_p, seed, position):
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    if temperature == 0:
        return order[0]
    if top_k > 0:
        order = order[:top_k]
    p = {i: math.exp((logits[i] - logits[order[0]]) / temperature) for i in order}
    if top_p < 1:
        target, total, kept = top_p * math.fsum(p.values()), 0.0, []
        for i in order:
            kept.append(i)
            total += p[i]
            if total >= target:
                break
        order = kept
    order = [i for i in order if p[i] >= min_p]

    def score(i):
        word = philox([position & MASK, position >> 32, i, 0], [seed & MASK, seed >> 32])[0]
        return logits[i] / temperature - math.log(-math.log((word + 0.5) / 2**32))

    return max(order, key=lambda i: (score(i), -i))


print("# row vocab_size temperature top_k top_p min_p seed position token (origin: make_choices.py)")
filters = [(0.0, 0, 1.0, 0.0), (1.0, 0, 1.0, 0.0), (0.75, 40, 1.0, 0.0), (1.5, 0, 0.875, 0.0), (1.0, 0, 1.0, 0.125),
           (2.0, 50, 0.9375, 0.0625), (0.25, 3, 0.5, 0.0), (100.0, 0, 1.0, 0.0)]
row = 0
for vocab_size in (1, 2, 100, 5000):
    for temperature, top_k, top_p, min_p in filters:
        for seed, position in ((0, 0), (42, 7), (0xFEDCBA9876543210, 1 << 33)):
            logits = [((i * 7919 + row * 104729) % 4096) / 256 - 8 for i in range(vocab_size)]
            token = choose(logits, temperature, top_k, top_p, min_p, seed, position)
            print(row, vocab_size, temperature, top_k, top_p, min_p, seed, position, token)
            row += 1
