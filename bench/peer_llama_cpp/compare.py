#!/usr/bin/env python3
"""llama.cpp and Baton's engine in turns, in one run, on one model: same threads, same
token ids; f32 against f32 and bf16 against bf16 (weights and KV cache). llama.cpp's own
decode calls are timed against Baton's whole step: scheduling, forward, sampling and
handing out. llama.cpp gets its better KV setting for each case. With --num_draft_tokens
Baton also runs with speculation; llama.cpp does not: the loop that verifies drafts is in
its programs, not in the library that pip installs.

usage: see --help; needs the packages of requirements.txt, and engine_benchmark built by
bazel build //bench:engine_benchmark"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

import numpy as np
import to_gguf

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
SETTINGS = ("separate", "unified")


def json_lines(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit("failed: " + " ".join(command))
    return [json.loads(line) for line in done.stdout.splitlines()]


class Case:
    """One dtype: how to run either side, and what they gave."""

    def __init__(self, args, dtype, folder):
        self.args, self.dtype, self.folder = args, dtype, folder
        self.gguf = os.path.join(folder, dtype + ".gguf")
        self.prompts = os.path.join(folder, "prompts.json")
        self.input = os.path.join(folder, dtype + ".input.json")
        self.rates = {}  # (engine, batch) -> tokens per second of each round
        self.equal = None

    def baton(self, *more):
        a = self.args
        return json_lines([a.binary, "--model=" + a.model, "--prompts=" + self.prompts, "--weights=" + self.dtype,
                           "--cache=" + self.dtype, "--threads=%d" % a.threads, "--max_tokens=%d" % a.gen,
                           "--pipeline_depth=%d" % a.pipeline_depth, "--batch=" + ",".join(map(str, a.batch)), *more])

    def llama_cpp(self, setting, logits=""):
        return json_lines([sys.executable, os.path.join(HERE, "llama_cpp_decode.py"), self.gguf, self.input,
                           str(self.args.threads), self.dtype, setting, logits])

    def prepare(self):
        """Writes the model and both sides' input; returns the difference of the logits."""
        to_gguf.convert(self.args.model, self.gguf, self.dtype)
        ours, theirs = (os.path.join(self.folder, self.dtype + "." + n) for n in ("baton", "llama"))
        lines = self.baton("--tokens", "--logits_out=" + ours)
        with open(self.prompts, encoding="utf-8") as f:
            prompts = json.load(f)
        with open(self.input, "w", encoding="utf-8") as f:
            json.dump({"prompts": prompts,
                       "batches": [{"batch": l["batch"], "tokens": l["tokens"]} for l in lines]}, f)
        trials = {s: self.llama_cpp(s, theirs) for s in SETTINGS}
        self.settings = {line["batch"]: max(SETTINGS, key=lambda s, i=i: trials[s][i]["decode_tokens_per_second"])
                         for i, line in enumerate(lines)}
        self.equal = {l["batch"]: (l["equal_tokens"], l["of_tokens"]) for l in trials["separate"]}
        a, b = (np.fromfile(path, np.float32) for path in (ours, theirs))
        return float(np.abs(a - b).max()), bool(a.argmax() == b.argmax())

    def round(self):
        for line in self.baton():
            self.rates.setdefault(("baton", line["batch"]), []).append(line["decode_tokens_per_second"])
        if self.args.num_draft_tokens > 0:
            for line in self.baton("--num_draft_tokens=%d" % self.args.num_draft_tokens):
                self.rates.setdefault(("drafts", line["batch"]), []).append(line["decode_tokens_per_second"])
        for setting in sorted(set(self.settings.values())):
            for line in self.llama_cpp(setting):
                if self.settings[line["batch"]] == setting:
                    self.rates.setdefault(("llama.cpp", line["batch"]), []).append(line["decode_tokens_per_second"])

    def report(self):
        rows = []
        for batch in self.args.batch:
            ours, theirs = self.rates["baton", batch], self.rates["llama.cpp", batch]
            rows.append({"dtype": self.dtype, "batch": batch, "baton": ours, "llama_cpp": theirs,
                         "baton_with_drafts": self.rates.get(("drafts", batch), []),
                         "llama_cpp_kv": self.settings[batch],
                         "ratio": statistics.median(ours) / statistics.median(theirs),
                         "equal_tokens": self.equal[batch]})
        return rows


def table(rows):
    spread = lambda v: "%7.0f %7.0f %7.0f" % (min(v), statistics.median(v), max(v))
    print("decode tokens/s          baton                   llama.cpp")
    print("type batch     min  median     max     min  median     max  ratio  kv        equal tokens")
    for r in rows:
        print("%-4s %5d %s %s %5.2fx  %-9s %d of %d" % (r["dtype"], r["batch"], spread(r["baton"]),
                                                     spread(r["llama_cpp"]), r["ratio"], r["llama_cpp_kv"],
                                                     *r["equal_tokens"]))
    for r in rows:
        if drafts := r["baton_with_drafts"]:
            median = statistics.median(drafts)
            print("%-4s %5d with drafts: %7.0f, %.2fx llama.cpp, %.2fx without" % (
                r["dtype"], r["batch"], median, median / statistics.median(r["llama_cpp"]),
                median / statistics.median(r["baton"])))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", default=os.path.join(TOP, "models/tiny-deepseek-v3"))
    p.add_argument("--binary", default=os.path.join(TOP, ".build/bin/bench/engine_benchmark"))
    p.add_argument("--dtype", nargs="+", default=["f32", "bf16"])
    p.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    p.add_argument("--prompt", type=int, default=128, help="tokens of each prompt")
    p.add_argument("--gen", type=int, default=128, help="tokens generated for each")
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--pipeline_depth", type=int, default=1, help="Baton's steps in flight")
    p.add_argument("--num_draft_tokens", type=int, default=0, help="Baton's, in rounds of its own")
    p.add_argument("--json_out")
    args = p.parse_args()
    with open(os.path.join(args.model, "config.json"), encoding="utf-8") as f:
        vocab = json.load(f)["vocab_size"]
    with tempfile.TemporaryDirectory() as folder:
        prompts = np.random.default_rng(0).integers(16, vocab, (max(args.batch), args.prompt))
        with open(os.path.join(folder, "prompts.json"), "w", encoding="utf-8") as f:
            json.dump(prompts.tolist(), f)
        cases = [Case(args, dtype, folder) for dtype in args.dtype]
        for case in cases:
            difference, same = case.prepare()
            print("%s: greatest difference of the logits after a prompt %.2g, argmax %s" %
                  (case.dtype, difference, "equal" if same else "DIFFERENT"), flush=True)
        for number in range(args.rounds):
            for case in cases:
                case.round()
            print("round %d of %d" % (number + 1, args.rounds), flush=True)
        rows = [row for case in cases for row in case.report()]
    print("%d threads, prompts of %d, %d generated, %d rounds in turns" %
          (args.threads, args.prompt, args.gen, args.rounds))
    table(rows)
    if args.json_out:
        with open(args.json_out, "w", encoding="utf-8") as f:
            json.dump(rows, f, indent=1)


if __name__ == "__main__":
    main()
