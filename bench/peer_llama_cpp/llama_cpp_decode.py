"""Runs llama.cpp on prompts of token ids and times its own decode calls, nothing else.
Feeds the tokens it is given, so that both engines compute the same rows. Prints a JSON
line for each batch size.

usage: llama_cpp_decode.py MODEL.gguf INPUT.json THREADS f32|bf16 unified|separate LOGITS
INPUT.json: {"prompts": [[id...]...], "batches": [{"batch": n, "tokens": [[id...]...]}...]}"""

import json
import os
import sys
import time

import llama_cpp as lc
import numpy as np

GGML_TYPES = {"f32": 0, "bf16": 30}
MAX_ROWS = 2048  # of one decode call


class Session:
    """A context of `sequences` sequences of at most `length` tokens each."""

    def __init__(self, model, sequences, length, threads, cache, unified):
        p = lc.llama_context_default_params()
        p.n_ctx, p.n_batch, p.n_ubatch = sequences * length, MAX_ROWS, 512
        p.n_seq_max, p.kv_unified = sequences, unified
        p.n_threads = p.n_threads_batch = threads
        p.type_k = p.type_v = GGML_TYPES[cache]
        self.context = lc.llama_init_from_model(model, p)
        if not self.context:
            raise SystemExit("llama.cpp cannot make a context")
        self.batch = lc.llama_batch_init(MAX_ROWS, 0, 1)
        self.vocab = lc.llama_vocab_n_tokens(lc.llama_model_get_vocab(model))

    def decode(self, rows):
        """Seconds for rows of (token, position, sequence, wants logits)."""
        b = self.batch
        b.n_tokens = len(rows)
        for i, (token, position, sequence, wanted) in enumerate(rows):
            b.token[i], b.pos[i], b.n_seq_id[i], b.logits[i] = token, position, 1, wanted
            b.seq_id[i][0] = sequence
        start = time.perf_counter()
        if lc.llama_decode(self.context, b) != 0:
            raise SystemExit("llama_decode failed")
        lc.llama_synchronize(self.context)
        return time.perf_counter() - start

    def logits(self, row):
        return np.ctypeslib.as_array(lc.llama_get_logits_ith(self.context, row), shape=(self.vocab,))

    def close(self):
        lc.llama_batch_free(self.batch)
        lc.llama_free(self.context)


def run_batch(session, prompts, tokens, logits_path):
    """Prefill and decode seconds, and how often the argmax is the token given."""
    prefill = 0.0
    equal = 0
    for sequence, prompt in enumerate(prompts):
        for start in range(0, len(prompt), MAX_ROWS):
            part = prompt[start:start + MAX_ROWS]
            prefill += session.decode([(t, start + i, sequence, start + i == len(prompt) - 1)
                                       for i, t in enumerate(part)])
        logits = session.logits(-1)
        equal += int(logits.argmax()) == tokens[sequence][0]
        if sequence == 0 and logits_path:
            logits.astype(np.float32).tofile(logits_path)
    steps = []
    for k in range(len(tokens[0]) - 1):
        steps.append(session.decode([(tokens[s][k], len(p) + k, s, True) for s, p in enumerate(prompts)]))
        equal += sum(int(session.logits(s).argmax()) == tokens[s][k + 1] for s in range(len(prompts)))
    return prefill, steps, equal


def main(path, input_path, threads, cache, unified, logits_path):
    log = os.open(os.devnull, os.O_WRONLY)
    os.dup2(log, 2)  # llama.cpp's log
    with open(input_path, encoding="utf-8") as f:
        work = json.load(f)
    lc.llama_backend_init()
    model_params = lc.llama_model_default_params()
    model_params.n_gpu_layers = 0
    model = lc.llama_model_load_from_file(path.encode(), model_params)
    if not model:
        raise SystemExit("llama.cpp cannot load " + path)
    for entry in work["batches"]:
        prompts = work["prompts"][:entry["batch"]]
        length = max(map(len, prompts)) + len(entry["tokens"][0]) + 8
        session = Session(model, len(prompts), length, int(threads), cache, unified == "unified")
        prefill, steps, equal = run_batch(session, prompts, entry["tokens"], logits_path)
        session.close()
        print(json.dumps({
            "batch": entry["batch"],
            "prefill_tokens_per_second": sum(map(len, prompts)) / prefill,
            # As the other side: from the end of the first decode step to the last.
            "decode_tokens_per_second": len(prompts) * (len(steps) - 1) / sum(steps[1:]),
            "equal_tokens": equal,
            "of_tokens": sum(map(len, entry["tokens"])),
        }), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
