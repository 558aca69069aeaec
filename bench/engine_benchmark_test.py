#!/usr/bin/env python3
"""engine_benchmark_test.py BINARY: it runs, and its tokens are the golden ones."""

import json
import os
import subprocess
import sys

MODEL = "models/tiny-deepseek-v3"
CASES = ("once", "fox")

goldens = []
for name in CASES:
    with open("%s/golden/%s.json" % (MODEL, name), encoding="utf-8") as f:
        goldens.append(json.load(f))
prompts = os.path.join(os.environ["TEST_TMPDIR"], "prompts.json")
logits = os.path.join(os.environ["TEST_TMPDIR"], "logits")
with open(prompts, "w", encoding="utf-8") as f:
    json.dump([g["ids"] for g in goldens], f)
out = subprocess.check_output([sys.argv[1], "--model=" + MODEL, "--batch=1,2", "--max_tokens=16", "--tokens",
                               "--prompts=" + prompts, "--logits_out=" + logits], text=True)
print(out)
lines = [json.loads(line) for line in out.splitlines()]
assert [line["batch"] for line in lines] == [1, 2]
for line in lines:
    assert line["decode_tokens_per_second"] > 0 and line["prefill_tokens_per_second"] > 0
    for tokens, golden in zip(line["tokens"], goldens):
        assert tokens == golden["fp32"]["tokens"][:16], (tokens, golden["fp32"]["tokens"][:16])
assert os.path.getsize(logits) == 4 * 4096
