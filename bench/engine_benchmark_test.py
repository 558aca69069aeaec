#!/usr/bin/env python3
"""engine_benchmark_test.py BINARY: it runs, and its tokens are the golden ones, whatever
the depth and the drafts."""

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

out = subprocess.check_output([sys.argv[1], "--model=" + MODEL, "--batch=2", "--max_tokens=16", "--tokens", "--compare",
                               "--pipeline_depth=2", "--num_draft_tokens=3", "--rounds=2", "--prompts=" + prompts],
                              text=True)
print(out)
lines = [json.loads(line) for line in out.splitlines()]
assert [(line["pipeline_depth"], line["num_draft_tokens"]) for line in lines] == [(1, 0), (2, 0), (1, 3), (2, 3)]
assert lines[0]["ratio_to_first"] == 1
for line in lines:
    assert line["tokens"] == lines[0]["tokens"]
    assert line["tokens"][0] == goldens[0]["fp32"]["tokens"][:16]
    assert 0 <= line["device_idle_share"] < 1, line
    assert (line["drafts_made"] > 0) == (line["num_draft_tokens"] > 0), line
    assert line["tokens_per_sequence_step"] >= (0.5 if line["pipeline_depth"] > 1 else 1), line
