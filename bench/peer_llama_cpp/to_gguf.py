"""Writes a DeepSeek-V2 or V3 folder (bf16 or float32 safetensors) as a GGUF file of
llama.cpp's architecture deepseek2. Token texts are placeholders: the model is driven by
ids. MTP layers are left out.

usage: to_gguf.py MODEL_DIR OUT.gguf f32|bf16"""

import json
import pathlib
import struct
import sys

import gguf
import numpy as np

MATRIX_TYPES = {"f32": gguf.GGMLQuantizationType.F32, "bf16": gguf.GGMLQuantizationType.BF16}
PLACEHOLDER_TYPE = 1  # normal


def read_safetensors(folder):
    """{name: float32 array} of all shards."""
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        raw = path.read_bytes()
        (header_bytes,) = struct.unpack("<Q", raw[:8])
        start = 8 + header_bytes
        for name, entry in json.loads(raw[8:start]).items():
            if name == "__metadata__":
                continue
            begin, end = entry["data_offsets"]
            data = raw[start + begin:start + end]
            if entry["dtype"] == "BF16":
                values = (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
            elif entry["dtype"] == "F32":
                values = np.frombuffer(data, np.float32)
            else:
                sys.exit("%s: dtype %s is not supported" % (name, entry["dtype"]))
            tensors[name] = values.reshape(entry["shape"])
    return tensors


def write_config(writer, c, name):
    kv_rank, rope = c["kv_lora_rank"], c["qk_rope_head_dim"]
    vocab = c["vocab_size"]
    writer.add_name(name)
    writer.add_vocab_size(vocab)
    writer.add_context_length(c["max_position_embeddings"])
    writer.add_block_count(c["num_hidden_layers"])
    writer.add_embedding_length(c["hidden_size"])
    writer.add_feed_forward_length(c["intermediate_size"])
    writer.add_head_count(c["num_attention_heads"])
    writer.add_head_count_kv(1)  # one latent
    writer.add_layer_norm_rms_eps(c["rms_norm_eps"])
    writer.add_rope_freq_base(c["rope_theta"])
    writer.add_leading_dense_block_count(c["first_k_dense_replace"])
    if c.get("q_lora_rank"):
        writer.add_q_lora_rank(c["q_lora_rank"])
    writer.add_kv_lora_rank(kv_rank)
    writer.add_key_length(kv_rank + rope)
    writer.add_value_length(kv_rank)
    writer.add_key_length_mla(c["qk_nope_head_dim"] + rope)
    writer.add_value_length_mla(c["v_head_dim"])
    writer.add_expert_feed_forward_length(c["moe_intermediate_size"])
    writer.add_expert_count(c["n_routed_experts"])
    writer.add_expert_used_count(c["num_experts_per_tok"])
    writer.add_expert_shared_count(c.get("n_shared_experts") or 0)
    writer.add_expert_weights_scale(c["routed_scaling_factor"])
    writer.add_expert_weights_norm(bool(c.get("norm_topk_prob")))
    gating = gguf.ExpertGatingFuncType
    writer.add_expert_gating_func(gating.SIGMOID if c.get("scoring_func") == "sigmoid" else gating.SOFTMAX)
    if (c.get("n_group") or 1) > 1 and c.get("topk_method") != "greedy":
        writer.add_expert_group_count(c["n_group"])
        writer.add_expert_group_used_count(c["topk_group"])
    writer.add_rope_dimension_count(rope)
    if scaling := c.get("rope_scaling"):
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(scaling["factor"])
        writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_log_mul(0.1 * scaling["mscale_all_dim"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(["[T%d]" % i for i in range(vocab)])
    writer.add_token_types([PLACEHOLDER_TYPE] * vocab)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(c.get("bos_token_id") or 0)
    writer.add_eos_token_id(c.get("eos_token_id") or 1)
    writer.add_add_bos_token(False)


def layer_tensors(c, t, layer):
    """(GGUF name below blk.N, array) of one layer."""
    hf = "model.layers.%d." % layer
    attention = hf + "self_attn."
    yield "attn_norm", t[hf + "input_layernorm.weight"]
    yield "ffn_norm", t[hf + "post_attention_layernorm.weight"]
    if c.get("q_lora_rank"):
        yield "attn_q_a", t[attention + "q_a_proj.weight"]
        yield "attn_q_a_norm", t[attention + "q_a_layernorm.weight"]
        yield "attn_q_b", t[attention + "q_b_proj.weight"]
    else:
        yield "attn_q", t[attention + "q_proj.weight"]
    yield "attn_kv_a_mqa", t[attention + "kv_a_proj_with_mqa.weight"]
    yield "attn_kv_a_norm", t[attention + "kv_a_layernorm.weight"]
    nope, v = c["qk_nope_head_dim"], c["v_head_dim"]
    kv_b = t[attention + "kv_b_proj.weight"].reshape(c["num_attention_heads"], nope + v, c["kv_lora_rank"])
    yield "attn_k_b", kv_b[:, :nope].transpose(0, 2, 1)
    yield "attn_v_b", kv_b[:, nope:]
    yield "attn_output", t[attention + "o_proj.weight"]
    if layer < c["first_k_dense_replace"]:
        for part in ("gate", "up", "down"):
            yield "ffn_" + part, t[hf + "mlp.%s_proj.weight" % part]
        return
    yield "ffn_gate_inp", t[hf + "mlp.gate.weight"]
    for part in ("gate", "up", "down"):
        experts = [t[hf + "mlp.experts.%d.%s_proj.weight" % (e, part)] for e in range(c["n_routed_experts"])]
        yield "ffn_%s_exps" % part, np.stack(experts)
        if c.get("n_shared_experts"):
            yield "ffn_%s_shexp" % part, t[hf + "mlp.shared_experts.%s_proj.weight" % part]


def convert(model_dir, out, matrix_type):
    folder = pathlib.Path(model_dir)
    c = json.loads((folder / "config.json").read_text())
    t = read_safetensors(folder)
    writer = gguf.GGUFWriter(out, "deepseek2")
    write_config(writer, c, folder.name)

    def put(name, array, exact=False):
        # Norms, biases and the router stay float32, as llama.cpp has them.
        kind = MATRIX_TYPES["f32" if exact or array.ndim == 1 else matrix_type]
        data = np.ascontiguousarray(array).astype(np.float32)
        writer.add_tensor(name, gguf.quants.quantize(data, kind), raw_dtype=kind)

    put("token_embd.weight", t["model.embed_tokens.weight"])
    put("output_norm.weight", t["model.norm.weight"])
    put("output.weight", t.get("lm_head.weight", t["model.embed_tokens.weight"]))
    for layer in range(c["num_hidden_layers"]):
        for name, array in layer_tensors(c, t, layer):
            put("blk.%d.%s.weight" % (layer, name), array, exact=name == "ffn_gate_inp")
        bias = t.get("model.layers.%d.mlp.gate.e_score_correction_bias" % layer)
        if bias is not None:
            put("blk.%d.exp_probs_b.bias" % layer, bias)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    convert(*sys.argv[1:])
