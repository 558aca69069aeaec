"""Replays a trace against a llama-server, as `baton bench --trace` does against a router:
open loop, random token ids, equal ids for blocks of the same name.

One process; requests are coroutines over plain sockets, so that the client costs little of
the CPU that it measures."""

import asyncio
import csv
import datetime
import json
import random
import time

BLOCK_TOKENS = 512  # Of the Mooncake traces.
FIRST_PLAIN_TOKEN = 16


def read_trace(path, limit, divisor, max_prompt, max_output):
    """[(seconds from the start, prompt length, output length, block names)]"""
    def fit(length, bound):
        return min(max(length // divisor, 1), bound)

    requests = []
    with open(path, encoding="utf-8") as f:
        if path.endswith(".csv"):
            lines = ((datetime.datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp(), int(row["ContextTokens"]),
                      int(row["GeneratedTokens"]), []) for row in csv.DictReader(f))
        else:
            lines = ((j["timestamp"] / 1000, j["input_length"], j["output_length"], j.get("hash_ids", []))
                     for j in map(json.loads, f))
        for at, prompt, output, blocks in lines:
            if len(requests) == limit:
                break
            requests.append((at, fit(prompt, max_prompt), fit(output, max_output), blocks))
    first = requests[0][0]
    return [(at - first, *rest) for at, *rest in requests]


def scale_to_rate(requests, rate):
    mean = (len(requests) - 1) / requests[-1][0]
    return [(at * mean / rate, *rest) for at, *rest in requests]


def make_prompt(length, blocks, divisor, vocab, seed, index):
    block = max(1, BLOCK_TOKENS // divisor)
    if len(blocks) * block < length:
        blocks, block = ["request %d" % index], length
    ids = []
    for name in blocks[:(length + block - 1) // block]:
        draw = random.Random("%s %s" % (seed, name))
        ids += [draw.randrange(FIRST_PLAIN_TOKEN, vocab) for _ in range(min(block, length - len(ids)))]
    return ids


async def generate(port, ids, output, sent):
    """Arrival times of the tokens; raises if the answer is not whole."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    body = json.dumps({"prompt": ids, "n_predict": output, "stream": True, "ignore_eos": True, "temperature": 0,
                       "top_k": 1, "cache_prompt": True, "return_tokens": True}).encode()
    writer.write(b"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
                 b"Connection: close\r\n\r\n" % len(body) + body)
    arrivals = []
    try:
        async for line in reader:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            arrivals += [time.monotonic() - sent] * len(event.get("tokens", []))
            if event.get("stop"):
                break
    finally:
        writer.close()
    if len(arrivals) != output:
        raise RuntimeError("%d tokens of %d" % (len(arrivals), output))
    return arrivals


def percentile(values, percent):
    values = sorted(values)
    rank = -(-len(values) * percent // 100)
    return values[min(max(rank, 1), len(values)) - 1] if values else 0.0


def summarise(answers, failed, wall, ttft_limit, tpot_limit):
    """The figures of `baton bench`'s JSON, under the same names."""
    ttft = [a[0] for a in answers]
    tpot = [(a[-1] - a[0]) / (len(a) - 1) if len(a) > 1 else 0 for a in answers]
    good = sum(t <= ttft_limit and p <= tpot_limit for t, p in zip(ttft, tpot))
    tokens = sum(map(len, answers))
    several = [p for p, a in zip(tpot, answers) if len(a) > 1]
    ttst = [a[1] - a[0] for a in answers if len(a) > 1]
    return {"requests": len(answers), "failed_requests": failed, "output_tokens": tokens, "wall_seconds": wall,
            "tokens_per_second": tokens / wall, "good_share": good / (len(answers) + failed),
            "goodput_per_second": good / wall,
            **{name + "_seconds": {"p%d" % p: percentile(values, p) for p in (50, 90, 99)}
               for name, values in (("ttft", ttft), ("tpot", several), ("ttst", ttst))}}


async def replay(port, requests, divisor, vocab, seed, ttft_limit, tpot_limit):
    prompts = [make_prompt(length, blocks, divisor, vocab, seed, i) for i, (_, length, _, blocks) in enumerate(requests)]
    start = time.monotonic()

    async def one(i):
        at, _, output, _ = requests[i]
        await asyncio.sleep(max(0.0, start + at - time.monotonic()))
        return await generate(port, prompts[i], output, start + at)

    answers = await asyncio.gather(*(one(i) for i in range(len(requests))), return_exceptions=True)
    wall = time.monotonic() - start
    good = [a for a in answers if isinstance(a, list)]
    errors = [a for a in answers if not isinstance(a, list)]
    if errors:
        print("first error of llama-server: %r" % errors[0])
    return summarise(good, len(errors), wall, ttft_limit, tpot_limit)
