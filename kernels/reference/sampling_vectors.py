#!/usr/bin/env python3
"""An independent sampler, in double precision, and the vectors that it gives.

usage: sampling_vectors.py write FILE   writes the vectors
       sampling_vectors.py check FILE   fails unless FILE holds what it would write

No decision of a vector (an order, a truncation's edge, a draw) is nearer than
MARGIN to falling otherwise, but for exact ties, which the lower id wins.
"""

import json
import math
import random
import struct
import sys

MARGIN = 1e-3
NUM_CASES = 160
MAX_TOP = 20
PROMPT_BIT = 1 << 31
MASK = 0xFFFFFFFF


def philox(counter, key):
    """Philox4x32-10: four random words of four counter words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        a, b = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (b >> 32) ^ c1 ^ k0, b & MASK, (a >> 32) ^ c3 ^ k1, a & MASK
        k0, k1 = (k0 + 0x9E3779B9) & MASK, (k1 + 0xBB67AE85) & MASK
    return c0, c1, c2, c3


def float32(x):
    return struct.unpack("f", struct.pack("f", x))[0]


def gumbel(case, token):
    seed, position = int(case["seed"]), case["position"]
    words = philox((token // 4, case["sample_index"], position & MASK, position >> 32),
                   (seed & MASK, seed >> 32))
    v = min(float32((words[token % 4] + 0.5) / 2**32), 1 - 2**-24)
    return -math.log(-math.log1p(-v))


class TooClose(Exception):
    """A decision lies within the margin."""


def modified_logits(case):
    """Bias, then the penalties, then what is forbidden."""
    biases = {b["token_id"]: b["bias"] for b in case["logit_bias"]}
    result = []
    for token, logit in enumerate(case["logits"]):
        x = logit + biases.get(token, 0)
        if case["token_counts"]:
            word = case["token_counts"][token]
            generated = word % PROMPT_BIT + case["uncounted"].count(token)
            if word >= PROMPT_BIT or generated > 0:
                r = case["repetition_penalty"]
                x = x / r if x > 0 else x * r
            x -= generated * case["frequency_penalty"]
            x -= case["presence_penalty"] if generated > 0 else 0
        result.append(-math.inf if token in case["forbidden"] else x)
    return result


def ranked(values):
    """Tokens above -infinity, falling, lower ids first of equals."""
    order = sorted((t for t, v in enumerate(values) if v > -math.inf), key=lambda t: (-values[t], t))
    for one, next_one in zip(order, order[1:]):
        if 0 < values[one] - values[next_one] < MARGIN:
            raise TooClose
    return order


def kept_tokens(case, z):
    """What top-k, top-p and min-p leave, in order."""
    order = ranked(z)
    total = math.fsum(math.exp(z[t] - z[order[0]]) for t in order)
    before, kept = 0.0, []
    for token in order:
        ratio = math.exp(z[token] - z[order[0]])
        if kept:
            if case["top_k"] and len(kept) >= case["top_k"]:
                break
            edges = [before / total - case["top_p"]] if case["top_p"] < 1 else []
            if case["min_p"]:
                edges.append(case["min_p"] - ratio)
            # Ratios of 1 are exact: ties with the best.
            if any(abs(e) < MARGIN * max(case["top_p"], MARGIN) for e in edges) and ratio < 1:
                raise TooClose
            if any(e > 0 for e in edges):
                break
        kept.append(token)
        before += ratio
    return kept


def draw(case, z, kept):
    rated = sorted(((z[t] + gumbel(case, t), t) for t in kept), reverse=True)
    if len(rated) > 1 and rated[0][0] - rated[1][0] < MARGIN:
        raise TooClose
    return rated[0][1]


def log_softmax(values, tokens):
    """{token: log-probability} among `tokens`."""
    top = max(values[t] for t in tokens)
    log_sum = math.log(math.fsum(math.exp(values[t] - top) for t in tokens))
    return {t: values[t] - top - log_sum for t in tokens}


def listed(logprobs, order):
    return [[t, round(logprobs[t], 7)] for t in order[:MAX_TOP]]


def solve(case):
    """Adds the results to the case."""
    logits = modified_logits(case)
    order = ranked(logits)
    if case["temperature"] == 0:
        z, kept = logits, order[:1]
        token = kept[0]
    else:
        z = [x / case["temperature"] for x in logits]
        kept = kept_tokens(case, z)
        token = draw(case, z, kept)
    raw = log_softmax(case["logits"], range(len(logits)))
    of_kept = log_softmax(z, kept)
    case["token"] = token
    case["logprob_raw"] = round(raw[token], 7)
    case["logprob_kept"] = round(of_kept[token], 7)
    case["num_kept"] = len(kept)
    case["top_raw"] = listed(raw, ranked(case["logits"]))
    case["top_kept"] = listed(of_kept, kept)


def some_counts(rng, vocab):
    """Prompt bits and counts, most of them none."""
    return [(PROMPT_BIT if rng.random() < 0.3 else 0) + (rng.randrange(1, 5) if rng.random() < 0.3 else 0)
            for _ in range(vocab)]


def some_logits(rng, vocab):
    """Multiples of a power of two, so exact in float32; few ties, or many."""
    grid, width = rng.choice([(1024, 2.0), (1024, 6.0), (4, 2.0)])
    return [round(grid * width * (rng.random() + rng.random() + rng.random() - 1.5)) / grid
            for _ in range(vocab)]


def some_case(rng, number):
    """Each feature by itself first, then any of them together."""
    vocab = rng.choice([1, 2, 5, 16, 17, 31, 40])
    alone = number % 8

    def uses(feature):
        return alone == feature or (alone >= 6 and rng.random() < 0.7)

    ids = range(vocab)
    case = {
        "seed": str(rng.getrandbits(64)), "sample_index": rng.randrange(3),
        "position": rng.getrandbits(rng.choice([8, 20, 40])),
        "temperature": rng.choice([0, 0.75, 1, 1, 1.5]),
        "top_p": rng.choice([1, 1, 0.875, 0.5]), "top_k": rng.choice([0, 0, 1, 3, 25]),
        "min_p": rng.choice([0, 0, 0.0625]),
        "repetition_penalty": rng.choice([0.5, 1.25, 2]) if uses(0) else 1,
        "frequency_penalty": rng.choice([-1.5, 0.25, 0.625, 2]) if uses(1) else 0,
        "presence_penalty": rng.choice([-2, 0.5, 1.375]) if uses(2) else 0,
        "logits": some_logits(rng, vocab), "token_counts": [], "uncounted": [],
        "logit_bias": [{"token_id": t, "bias": rng.randrange(-100, 101) / 16}
                       for t in rng.sample(ids, rng.randrange(1, vocab + 1))] if uses(3) else [],
        "forbidden": rng.sample(ids, rng.randrange((vocab + 1) // 2)) if uses(4) else [],
        "num_top_logprobs": rng.choice([0, 1, 5, MAX_TOP]),
    }
    if alone < 3 or alone >= 5:
        case["token_counts"] = some_counts(rng, vocab)
    if alone == 5:
        case["frequency_penalty"], case["presence_penalty"], case["repetition_penalty"] = 0.75, 0.25, 1.5
    if uses(5):
        case["uncounted"] = [rng.randrange(vocab) for _ in range(rng.randrange(1, 9))]
    return case


def vectors():
    """The file's text: cases until there are enough, a line each."""
    rng = random.Random(20261130)
    lines = []
    while len(lines) < NUM_CASES:
        case = some_case(rng, len(lines))
        try:
            solve(case)
        except TooClose:
            continue
        lines.append(json.dumps(case))
    return '{"cases": [\n' + ",\n".join(lines) + "\n]}\n"


def main():
    command, path = sys.argv[1:]
    if command == "write":
        with open(path, "w", encoding="ascii") as file:
            file.write(vectors())
        return
    with open(path, encoding="ascii") as file:
        if file.read() != vectors():
            sys.exit(f"{path} is not what this script writes")
    print(f"{path}: {NUM_CASES} cases, as this script writes them")


if __name__ == "__main__":
    main()
