#!/usr/bin/env python3
"""What a chained drafter drafts, by a reference that shares no code with the engine.

DeepSeek-V3's main model and its MTP layer in plain Python floats, attention in
expanded form. Behind each greedy token of a golden case (but the last one)
stand five drafts: the first from that token and the main model's state before
it, each later one from the draft before it and the drafter's own state behind
shared_head.norm.

usage: mtp_chain.py MODEL_FOLDER CASE... > mtp_chain.json
       mtp_chain.py --check mtp_chain.json MODEL_FOLDER CASE...
"""

import array
import json
import math
import operator
import os
import struct
import sys

DEPTH = 5
NEAR_TIE = 1e-3


def dot(a, b):
  return sum(map(operator.mul, a, b))


def add(a, b):
  return [x + y for x, y in zip(a, b)]


def best(values, count):
  """Indices of the largest, ties to the lower one."""
  return sorted(range(len(values)), key=lambda i: -values[i])[:count]


def widen_bf16(data):
  words = array.array("I", [half << 16 for half in array.array("H", data)])
  return array.array("f", words.tobytes()).tolist()


def read_file(path):
  with open(path, "rb") as file:
    (size,) = struct.unpack("<Q", file.read(8))
    header = json.loads(file.read(size))
    data = file.read()
  header.pop("__metadata__", None)
  for name, entry in header.items():
    begin, end = entry["data_offsets"]
    raw = data[begin:end]
    if entry["dtype"] == "BF16":
      values = widen_bf16(raw)
    else:
      values = array.array("f", raw).tolist()
    cols = entry["shape"][-1]
    yield name, [values[i:i + cols] for i in range(0, len(values), cols)]


class Model:
  """Tensors by name, each a list of rows; a vector is one row."""

  def __init__(self, folder):
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
      self.config = json.load(file)
    self.tensors = {}
    for name in sorted(os.listdir(folder)):
      if name.endswith(".safetensors"):
        self.tensors.update(read_file(os.path.join(folder, name)))
    config = self.config
    self.heads = config["num_attention_heads"]
    self.nope = config["qk_nope_head_dim"]
    self.rope = config["qk_rope_head_dim"]
    self.value = config["v_head_dim"]
    self.latent = config["kv_lora_rank"]
    self.layers = config["num_hidden_layers"]
    yarn = config["rope_scaling"]
    mscale = 0.1 * yarn["mscale_all_dim"] * math.log(yarn["factor"]) + 1
    self.scale = (self.nope + self.rope)**-0.5 * mscale**2
    self.frequencies = self.yarn_frequencies(config["rope_theta"], yarn)

  def yarn_frequencies(self, theta, yarn):
    assert yarn["mscale"] == yarn["mscale_all_dim"]  # Else amplitude is not 1.

    def dimension(turns):
      length = yarn["original_max_position_embeddings"]
      return (self.rope * math.log(length / (2 * math.pi * turns)) /
              (2 * math.log(theta)))

    low = max(math.floor(dimension(yarn["beta_fast"])), 0)
    high = min(math.ceil(dimension(yarn["beta_slow"])), self.rope - 1)
    frequencies = []
    for i in range(self.rope // 2):
      frequency = theta**(-2 * i / self.rope)
      ramp = min(max((i - low) / max(high - low, 1e-3), 0), 1)
      frequencies.append(frequency * (1 - ramp) +
                         frequency / yarn["factor"] * ramp)
    return frequencies

  def multiply(self, name, x):
    return [dot(row, x) for row in self.tensors[name + ".weight"]]

  def norm(self, name, x):
    inverse = (dot(x, x) / len(x) + self.config["rms_norm_eps"])**-0.5
    weight = self.tensors[name + ".weight"][0]
    return [w * v * inverse for w, v in zip(weight, x)]

  def turn(self, x, position):
    turned = []
    for i, frequency in enumerate(self.frequencies):
      cos = math.cos(position * frequency)
      sin = math.sin(position * frequency)
      even, odd = x[2 * i], x[2 * i + 1]
      turned += [even * cos - odd * sin, even * sin + odd * cos]
    return turned

  def attention(self, prefix, x, cache):
    """`cache` holds (keys by head, rope key, values by head) of each position
    before; this one's is appended."""
    position = len(cache)
    query = self.multiply(
        prefix + "q_b_proj",
        self.norm(prefix + "q_a_layernorm",
                  self.multiply(prefix + "q_a_proj", x)))
    down = self.multiply(prefix + "kv_a_proj_with_mqa", x)
    both = self.multiply(
        prefix + "kv_b_proj",
        self.norm(prefix + "kv_a_layernorm", down[:self.latent]))
    width = self.nope + self.value
    by_head = [both[h * width:(h + 1) * width] for h in range(self.heads)]
    cache.append(([part[:self.nope] for part in by_head],
                  self.turn(down[self.latent:], position),
                  [part[self.nope:] for part in by_head]))
    outputs = []
    width = self.nope + self.rope
    for h in range(self.heads):
      q = query[h * width:(h + 1) * width]
      q_rope = self.turn(q[self.nope:], position)
      scores = [
          self.scale * (dot(q[:self.nope], keys[h]) + dot(q_rope, rope_key))
          for keys, rope_key, _ in cache
      ]
      top = max(scores)
      weights = [math.exp(score - top) for score in scores]
      total = sum(weights)
      columns = zip(*(values[h] for _, _, values in cache))
      outputs += [dot(weights, column) / total for column in columns]
    return self.multiply(prefix + "o_proj", outputs)

  def mlp(self, prefix, x):
    gate = self.multiply(prefix + "gate_proj", x)
    up = self.multiply(prefix + "up_proj", x)
    active = [g / (1 + math.exp(-g)) * u for g, u in zip(gate, up)]
    return self.multiply(prefix + "down_proj", active)

  def choose_experts(self, prefix, scores):
    bias = self.tensors[prefix + "gate.e_score_correction_bias"][0]
    biased = add(scores, bias)
    groups = self.config["n_group"]
    size = len(biased) // groups
    group_scores = [
        sum(sorted(biased[g * size:(g + 1) * size])[-2:]) for g in range(groups)
    ]
    kept = best(group_scores, self.config["topk_group"])
    masked = [
        s if e // size in kept else -math.inf for e, s in enumerate(biased)
    ]
    return best(masked, self.config["num_experts_per_tok"])

  def mixture(self, prefix, x):
    logits = self.multiply(prefix + "gate", x)
    scores = [1 / (1 + math.exp(-logit)) for logit in logits]
    chosen = self.choose_experts(prefix, scores)
    scale = (self.config["routed_scaling_factor"] /
             sum(scores[e] for e in chosen))
    y = self.mlp(prefix + "shared_experts.", x)
    for e in chosen:
      part = self.mlp("%sexperts.%d." % (prefix, e), x)
      y = add(y, [scale * scores[e] * value for value in part])
    return y

  def layer(self, index, x, cache):
    prefix = "model.layers.%d." % index
    normed = self.norm(prefix + "input_layernorm", x)
    x = add(x, self.attention(prefix + "self_attn.", normed, cache))
    normed = self.norm(prefix + "post_attention_layernorm", x)
    if index < self.config["first_k_dense_replace"]:
      return add(x, self.mlp(prefix + "mlp.", normed))
    return add(x, self.mixture(prefix + "mlp.", normed))

  def main(self, token, caches):
    """The state behind model.norm of the next position."""
    x = self.tensors["model.embed_tokens.weight"][token]
    for index in range(self.layers):
      x = self.layer(index, x, caches[index])
    return self.norm("model.norm", x)

  def draft(self, token, hidden, cache):
    """The drafter's state of the next position, counted from 0."""
    prefix = "model.layers.%d." % self.layers
    embedded = self.tensors[prefix + "embed_tokens.weight"][token]
    u = self.multiply(
        prefix + "eh_proj",
        self.norm(prefix + "enorm", embedded) +
        self.norm(prefix + "hnorm", hidden))
    return self.norm(prefix + "shared_head.norm",
                     self.layer(self.layers, u, cache))

  def drafted(self, hidden):
    """The best token, and its logit's distance to the second."""
    name = "model.layers.%d.shared_head.head" % self.layers
    logits = self.multiply(name, hidden)
    first, second = best(logits, 2)
    return first, logits[first] - logits[second]


def chain(model, state, cache):
  drafts, margins = [], []
  provisional = list(cache)
  while True:
    token, margin = model.drafted(state)
    drafts.append(token)
    margins.append(round(margin, 5))
    if len(drafts) == DEPTH:
      return {"drafts": drafts, "margins": margins}
    state = model.draft(token, state, provisional)


def chains_of_case(model, golden):
  """The chain behind each greedy token."""
  tokens = golden["ids"] + golden["fp32"]["tokens"]
  caches = [[] for _ in range(model.layers)]
  drafter_cache = []
  chains = []
  for before, token in zip(tokens, tokens[1:-1]):
    hidden = model.main(before, caches)
    state = model.draft(token, hidden, drafter_cache)
    if len(drafter_cache) >= len(golden["ids"]):
      chains.append(chain(model, state, drafter_cache))
  for of_token, expected in zip(chains, golden["fp32"]["mtp"]["drafts"]):
    assert (of_token["drafts"][0] == expected or
            of_token["margins"][0] < NEAR_TIE)
  return chains


def compute(folder, names):
  model = Model(folder)
  for name in names:
    path = os.path.join(folder, "golden", name + ".json")
    with open(path, encoding="utf-8") as file:
      yield name, chains_of_case(model, json.load(file))


def check(stored_path, folder, names):
  with open(stored_path, encoding="utf-8") as file:
    stored = {case["name"]: case["chains"] for case in json.load(file)}
  for name, chains in compute(folder, names):
    assert len(chains) == len(stored[name]) > 0
    for ours, theirs in zip(chains, stored[name]):
      assert ours["drafts"] == theirs["drafts"], (name, ours, theirs)


def write(folder, names):
  cases = []
  for name, chains in compute(folder, names):
    lines = ",\n".join("  " + json.dumps(of_token) for of_token in chains)
    cases.append('{"name": "%s", "chains": [\n%s]}' % (name, lines))
  print("[%s]" % ",\n".join(cases))


if __name__ == "__main__":
  if sys.argv[1] == "--check":
    check(sys.argv[2], sys.argv[3], sys.argv[4:])
  else:
    write(sys.argv[1], sys.argv[2:])
