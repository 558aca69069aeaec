#!/usr/bin/env python3
"""A trace replayed against Baton unified, Baton split and llama.cpp's server, in turns, in
one run: TTFT, TPOT and goodput at limits for both. The same model, dtype, CPUs and shape of
load; all prompts are token ids. Baton unified and llama-server have all threads; of a split
Baton, prefill and decode share them.

usage: see --help; needs requirements.txt, a llama-server, and
  bazel build //server:batond //server/router:baton-router //server/cli:baton"""

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

import llama_server_load as load
import to_gguf

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
START_SECONDS = 120


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def await_start(process, ready, what):
    end = time.monotonic() + START_SECONDS
    while not ready():
        if process.poll() is not None or time.monotonic() > end:
            sys.exit("%s did not start" % what)
        time.sleep(0.1)


def run_baton(a, flags, parent, number):
    folder = tempfile.mkdtemp(dir=parent)  # Its own: figures of another run are never read again.
    ready, out = (os.path.join(folder, name) for name in ("ready.json", "bench.json"))
    up = subprocess.Popen([a.baton, "local", "up", "--model=" + a.model, "--ready_file=" + ready,
                           "--bin_dir=" + a.bin_dir, *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        await_start(up, lambda: os.path.exists(ready), "baton local up")
        with open(ready, encoding="utf-8") as f:
            started = json.load(f)
        subprocess.run([a.baton, "bench", "--router=" + started["router"], "--trace=" + a.trace,
                        "--requests=%d" % a.requests, "--rate=%g" % a.rate, "--divide_lengths=%d" % a.divide_lengths,
                        "--prompt_tokens=%d" % a.prompt_tokens, "--max_tokens=%d" % a.max_tokens,
                        "--ttft_limit=%gms" % a.ttft_limit_ms, "--tpot_limit=%gms" % a.tpot_limit_ms,
                        "--seed=%d" % number, "--json_out=" + out],
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        with open(out, encoding="utf-8") as f:
            return json.load(f)["levels"][0]
    finally:
        up.terminate()
        up.wait()


def run_llama(a, gguf, number):
    port = free_port()
    # One KV buffer of the same number of tokens for all slots.
    server = subprocess.Popen([a.llama_server, "-m", gguf, "--port", str(port), "-t", str(a.threads), "-tb",
                               str(a.threads), "-np", str(a.slots), "-c", str(a.slots * a.slot_tokens), "--kv-unified",
                               "-ctk", a.dtype, "-ctv", a.dtype], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def healthy():
        try:
            with urllib.request.urlopen("http://127.0.0.1:%d/health" % port, timeout=5) as answer:
                return answer.status == 200
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    try:
        await_start(server, healthy, "llama-server")
        requests = load.read_trace(a.trace, a.requests, a.divide_lengths, a.prompt_tokens, a.max_tokens)
        return asyncio.run(load.replay(port, load.scale_to_rate(requests, a.rate), a.divide_lengths, a.vocab, number,
                                       a.ttft_limit_ms / 1000, a.tpot_limit_ms / 1000))
    finally:
        server.kill()
        server.wait()


def report(name, rounds):
    def median(of):
        return statistics.median(map(of, rounds))

    tpot = [r["tpot_seconds"] for r in rounds]
    print("| %s | %d of %d | %.1f %% | %.2f/s | %.0f | %.1f / %.1f | %.2f / %.2f | %.2f | %.2f |" % (
        name, median(lambda r: r["requests"]), median(lambda r: r["requests"] + r["failed_requests"]),
        100 * median(lambda r: r["good_share"]), median(lambda r: r["goodput_per_second"]),
        median(lambda r: r["tokens_per_second"]), *(1000 * median(lambda r, p=p: r["ttft_seconds"][p])
                                                    for p in ("p50", "p99")),
        *(1000 * statistics.median(t[p] for t in tpot) for p in ("p50", "p99")),
        statistics.median(t["p99"] / t["p50"] for t in tpot if t["p50"] > 0),
        1000 * median(lambda r: r["ttst_seconds"]["p50"])), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", required=True, help="an Azure .csv or a Mooncake .jsonl")
    parser.add_argument("--rate", type=float, required=True, help="requests a second")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--divide_lengths", type=int, default=1)
    parser.add_argument("--prompt_tokens", type=int, default=1024, help="at most")
    parser.add_argument("--max_tokens", type=int, default=128, help="at most")
    parser.add_argument("--ttft_limit_ms", type=float, default=1000)
    parser.add_argument("--tpot_limit_ms", type=float, default=50)
    parser.add_argument("--model", default=os.path.join(TOP, "models/tiny-deepseek-v3"))
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="bf16", help="of weights and KV cache")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--slots", type=int, default=32, help="of llama-server")
    parser.add_argument("--slot_tokens", type=int, default=2048, help="of llama-server's KV buffer, for each slot")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--llama_server", default="", help="its path; absent: Baton alone")
    parser.add_argument("--baton", default=os.path.join(TOP, ".build/bin/server/cli/baton"))
    parser.add_argument("--bin_dir", required=True, help="folder of batond and baton-router")
    a = parser.parse_args()
    with open(os.path.join(a.model, "config.json"), encoding="utf-8") as f:
        a.vocab = json.load(f)["vocab_size"]
    kinds = "--weights=%s,--cache_dtype=%s" % (a.dtype, a.dtype)
    half = max(1, a.threads // 2)
    cases = {"Baton unified": ["--unified", "--worker_flags=%s,--threads=%d" % (kinds, a.threads)],
             "Baton split": ["--worker_flags=%s,--threads=%d,--pin_threads=false" % (kinds, half)]}
    results = {name: [] for name in cases}
    with tempfile.TemporaryDirectory() as folder:
        gguf = os.path.join(folder, "model.gguf")
        if a.llama_server:
            results["llama-server"] = []
            to_gguf.convert(a.model, gguf, a.dtype)
        for number in range(a.rounds):
            for name, flags in cases.items():
                results[name].append(run_baton(a, flags, folder, number))
            if a.llama_server:
                results["llama-server"].append(run_llama(a, gguf, number))
    print("%d requests of %s at %g/s, lengths divided by %d and at most %d and %d; goodput within TTFT %g ms and "
          "TPOT %g ms; %s, %d threads; medians of %d rounds; times in ms" % (
              a.requests, os.path.basename(a.trace), a.rate, a.divide_lengths, a.prompt_tokens, a.max_tokens,
              a.ttft_limit_ms, a.tpot_limit_ms, a.dtype, a.threads, a.rounds))
    print("| | answered | good | goodput | tokens/s | TTFT p50 / p99 | TPOT p50 / p99 | p99 over p50 | to the second |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, rounds in results.items():
        report(name, rounds)


if __name__ == "__main__":
    main()
