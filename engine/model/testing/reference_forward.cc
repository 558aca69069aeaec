#include "engine/model/testing/reference_forward.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <numbers>
#include <numeric>
#include <utility>

#include "base/logging.h"
#include "engine/model/safetensors.h"

namespace baton {
namespace {

using nlohmann::json;
using Row = std::vector<double>;
using Matrix = std::vector<Row>;

class Reference {
 public:
  explicit Reference(const std::string& folder) {
    std::ifstream(folder + "/config.json") >> config_;
    absl::StatusOr<ModelTensors> tensors = ModelTensors::Open(folder);
    CHECK_OK(tensors.status());
    for (const Tensor& tensor : tensors->tensors()) Read(tensor);
    heads_ = config_["num_attention_heads"];
    nope_ = config_["qk_nope_head_dim"];
    rope_ = config_["qk_rope_head_dim"];
    v_ = config_["v_head_dim"];
    latent_ = config_["kv_lora_rank"];
    eps_ = config_["rms_norm_eps"];
    PrepareRope();
  }

  ReferenceResult Run(const std::vector<uint32_t>& token_ids) {
    Matrix x;
    for (const uint32_t token : token_ids) {
      x.push_back(Get("model.embed_tokens.weight").at(token));
    }
    const int layers = config_["num_hidden_layers"];
    for (int layer = 0; layer < layers; ++layer) Layer(layer, &x);
    const bool tied = config_.value("tie_word_embeddings", false);
    const Matrix hidden = Norm(x, "model.norm.weight");
    for (const Row& row : hidden) {
      result_.logits.push_back(
          Multiply(tied ? "model.embed_tokens.weight" : "lm_head.weight", row));
    }
    if (weights_.contains(Prefix(layers) + "eh_proj.weight")) {
      Draft(token_ids, hidden);
    }
    return result_;
  }

 private:
  static std::string Prefix(int layer) {
    return "model.layers." + std::to_string(layer) + ".";
  }

  void Layer(int layer, Matrix* x) {
    const std::string prefix = Prefix(layer);
    Matrix normed = Norm(*x, prefix + "input_layernorm.weight");
    AddTo(Attention(normed, prefix + "self_attn."), x);
    normed = Norm(*x, prefix + "post_attention_layernorm.weight");
    Matrix y;
    for (const Row& row : normed) {
      y.push_back(IsMoe(layer) ? Moe(row, prefix + "mlp.")
                               : Mlp(row, prefix + "mlp."));
    }
    AddTo(y, x);
  }

  void Draft(const std::vector<uint32_t>& token_ids, const Matrix& hidden) {
    const int layer = config_["num_hidden_layers"];
    const std::string prefix = Prefix(layer);
    Matrix x;
    for (size_t i = 0; i + 1 < token_ids.size(); ++i) {
      Row both = Norm(Get(prefix + "embed_tokens.weight").at(token_ids[i + 1]),
                      prefix + "enorm.weight");
      const Row state = Norm(hidden[i], prefix + "hnorm.weight");
      both.insert(both.end(), state.begin(), state.end());
      x.push_back(Multiply(prefix + "eh_proj.weight", both));
    }
    Layer(layer, &x);
    for (const Row& row : Norm(x, prefix + "shared_head.norm.weight")) {
      result_.draft_logits.push_back(
          Multiply(prefix + "shared_head.head.weight", row));
    }
  }

  // A vector is kept as a matrix of one row.
  void Read(const Tensor& tensor) {
    const bool bf16 = tensor.dtype == TensorDtype::kBf16;
    CHECK(bf16 || tensor.dtype == TensorDtype::kF32) << tensor.name;
    const int64_t cols = tensor.shape.back();
    const int64_t rows = tensor.shape.size() == 2 ? tensor.shape[0] : 1;
    Matrix values(rows, Row(cols));
    for (int64_t i = 0; i < rows * cols; ++i) {
      uint32_t bits = 0;
      if (bf16) {
        std::memcpy(reinterpret_cast<char*>(&bits) + 2,
                    tensor.bytes.data() + 2 * i, 2);
      } else {
        std::memcpy(&bits, tensor.bytes.data() + 4 * i, 4);
      }
      values[i / cols][i % cols] = std::bit_cast<float>(bits);
    }
    weights_[tensor.name] = std::move(values);
  }

  void PrepareRope() {
    const double theta = config_.value("rope_theta", 10000.0);
    json yarn = config_.value("rope_scaling", json());
    scale_ = 1 / std::sqrt(nope_ + rope_);
    for (int i = 0; i < rope_ / 2; ++i) {
      frequencies_.push_back(std::pow(theta, -2.0 * i / rope_));
    }
    if (!yarn.is_object()) return;
    const double factor = yarn["factor"];
    const auto mscale = [&](const char* key, double absent) {
      return factor <= 1 ? 1.0
                         : 0.1 * yarn.value(key, absent) * std::log(factor) + 1;
    };
    scale_ *= std::pow(mscale("mscale_all_dim", 0), 2);
    amplitude_ = mscale("mscale", 1) / mscale("mscale_all_dim", 0);
    const double original = yarn["original_max_position_embeddings"];
    const auto corr = [&](double turns) {
      return rope_ * std::log(original / (2 * std::numbers::pi * turns)) /
             (2 * std::log(theta));
    };
    const double low =
        std::max(std::floor(corr(yarn.value("beta_fast", 32.0))), 0.0);
    const double high =
        std::min(std::ceil(corr(yarn.value("beta_slow", 1.0))), rope_ - 1.0);
    for (int i = 0; i < rope_ / 2; ++i) {
      const double ramp =
          std::clamp((i - low) / std::max(high - low, 1e-3), 0.0, 1.0);
      frequencies_[i] =
          frequencies_[i] * (1 - ramp) + frequencies_[i] / factor * ramp;
    }
  }

  const Matrix& Get(const std::string& name) const {
    const auto it = weights_.find(name);
    CHECK(it != weights_.end()) << name;
    return it->second;
  }

  Row Multiply(const std::string& name, const Row& x) const {
    Row y;
    for (const Row& w : Get(name)) {
      y.push_back(std::inner_product(w.begin(), w.end(), x.begin(), 0.0));
    }
    return y;
  }

  Row Norm(Row x, const std::string& name) const {
    const Row& w = Get(name)[0];
    const double squares =
        std::inner_product(x.begin(), x.end(), x.begin(), 0.0);
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] *= w[i] / std::sqrt(squares / x.size() + eps_);
    }
    return x;
  }

  Matrix Norm(const Matrix& x, const std::string& name) const {
    Matrix y;
    for (const Row& row : x) y.push_back(Norm(row, name));
    return y;
  }

  static void AddTo(const Matrix& y, Matrix* x) {
    for (size_t r = 0; r < y.size(); ++r) {
      for (size_t c = 0; c < y[r].size(); ++c) (*x)[r][c] += y[r][c];
    }
  }

  void Turn(double* x, int position) const {
    for (int i = 0; i < rope_ / 2; ++i) {
      const double c = amplitude_ * std::cos(position * frequencies_[i]);
      const double s = amplitude_ * std::sin(position * frequencies_[i]);
      const double even = x[2 * i];
      const double odd = x[2 * i + 1];
      x[2 * i] = even * c - odd * s;
      x[2 * i + 1] = even * s + odd * c;
    }
  }

  Matrix Attention(const Matrix& x, const std::string& prefix) const {
    const bool has_rank = weights_.contains(prefix + "q_a_proj.weight");
    Matrix queries;
    Matrix keys_values;  // Each head's key without rope, then its value.
    Matrix rope_keys;
    for (size_t p = 0; p < x.size(); ++p) {
      Row query =
          has_rank ? Multiply(prefix + "q_b_proj.weight",
                              Norm(Multiply(prefix + "q_a_proj.weight", x[p]),
                                   prefix + "q_a_layernorm.weight"))
                   : Multiply(prefix + "q_proj.weight", x[p]);
      for (int h = 0; h < heads_; ++h) {
        Turn(&query[h * (nope_ + rope_) + nope_], static_cast<int>(p));
      }
      queries.push_back(query);
      const Row a = Multiply(prefix + "kv_a_proj_with_mqa.weight", x[p]);
      const Row latent(a.begin(), a.begin() + latent_);
      Row rope_key(a.begin() + latent_, a.end());
      Turn(rope_key.data(), static_cast<int>(p));
      rope_keys.push_back(rope_key);
      keys_values.push_back(
          Multiply(prefix + "kv_b_proj.weight",
                   Norm(latent, prefix + "kv_a_layernorm.weight")));
    }
    Matrix y;
    for (size_t p = 0; p < x.size(); ++p) {
      Row concatenated;
      for (int h = 0; h < heads_; ++h) {
        const Row o = Head(queries[p], h, p, keys_values, rope_keys);
        concatenated.insert(concatenated.end(), o.begin(), o.end());
      }
      y.push_back(Multiply(prefix + "o_proj.weight", concatenated));
    }
    return y;
  }

  Row Head(const Row& query, int head, size_t position,
           const Matrix& keys_values, const Matrix& rope_keys) const {
    const double* q = &query[head * (nope_ + rope_)];
    Row scores;
    for (size_t t = 0; t <= position; ++t) {
      const double* key = &keys_values[t][head * (nope_ + v_)];
      const double score = std::inner_product(q, q + nope_, key, 0.0) +
                           std::inner_product(q + nope_, q + nope_ + rope_,
                                              rope_keys[t].begin(), 0.0);
      scores.push_back(scale_ * score);
    }
    const double max = *std::ranges::max_element(scores);
    double sum = 0;
    for (double& score : scores) sum += score = std::exp(score - max);
    Row o(v_, 0.0);
    for (size_t t = 0; t <= position; ++t) {
      const double* value = &keys_values[t][head * (nope_ + v_) + nope_];
      for (int i = 0; i < v_; ++i) o[i] += scores[t] / sum * value[i];
    }
    return o;
  }

  Row Mlp(const Row& x, const std::string& prefix) const {
    Row gate = Multiply(prefix + "gate_proj.weight", x);
    const Row up = Multiply(prefix + "up_proj.weight", x);
    for (size_t i = 0; i < gate.size(); ++i) {
      gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
    }
    return Multiply(prefix + "down_proj.weight", gate);
  }

  bool IsMoe(int layer) const {
    return config_.value("n_routed_experts", json()).is_number() &&
           layer >= config_["first_k_dense_replace"].get<int>() &&
           layer % config_.value("moe_layer_freq", 1) == 0;
  }

  // Indices of the `count` largest; what decided is noted.
  std::vector<int> Top(const Row& scores, int count) {
    std::vector<int> order(scores.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(
        order, [&](int a, int b) { return scores[a] > scores[b]; });
    if (count < static_cast<int>(order.size())) {
      result_.min_route_margin =
          std::min(result_.min_route_margin,
                   scores[order[count - 1]] - scores[order[count]]);
    }
    order.resize(count);
    return order;
  }

  Row Moe(const Row& x, const std::string& prefix) {
    Row scores = Multiply(prefix + "gate.weight", x);
    if (config_["scoring_func"] == "sigmoid") {
      for (double& s : scores) s = 1 / (1 + std::exp(-s));
    } else {
      double sum = 0;
      for (double& s : scores) sum += s = std::exp(s);
      for (double& s : scores) s /= sum;
    }
    const std::vector<int> chosen = Choose(scores, prefix);
    double total = 0;
    for (const int e : chosen) total += scores[e];
    double scale = config_["routed_scaling_factor"];
    if (config_["norm_topk_prob"].get<bool>()) scale /= total;
    Row y(x.size(), 0.0);
    const auto add = [&y](double weight, const Row& part) {
      for (size_t i = 0; i < y.size(); ++i) y[i] += weight * part[i];
    };
    for (const int e : chosen) {
      add(scale * scores[e],
          Mlp(x, prefix + "experts." + std::to_string(e) + "."));
    }
    if (weights_.contains(prefix + "shared_experts.gate_proj.weight")) {
      add(1, Mlp(x, prefix + "shared_experts."));
    }
    return y;
  }

  std::vector<int> Choose(Row scores, const std::string& prefix) {
    const std::string method = config_["topk_method"];
    const int top_k = config_["num_experts_per_tok"];
    if (method == "greedy") return Top(scores, top_k);
    if (method == "noaux_tc") {
      const Row& bias = Get(prefix + "gate.e_score_correction_bias")[0];
      for (size_t e = 0; e < scores.size(); ++e) scores[e] += bias[e];
    }
    const int groups = config_["n_group"];
    const size_t size = scores.size() / groups;
    Row group_scores;
    for (int g = 0; g < groups; ++g) {
      Row members(scores.begin() + g * size, scores.begin() + (g + 1) * size);
      std::ranges::sort(members, std::greater());
      group_scores.push_back(
          members[0] + (method == "noaux_tc" && size > 1 ? members[1] : 0));
    }
    const std::vector<int> kept = Top(group_scores, config_["topk_group"]);
    for (size_t e = 0; e < scores.size(); ++e) {
      if (std::ranges::find(kept, static_cast<int>(e / size)) == kept.end()) {
        scores[e] = -std::numeric_limits<double>::infinity();
      }
    }
    return Top(scores, top_k);
  }

  json config_;
  std::map<std::string, Matrix> weights_;
  int heads_ = 0;
  int nope_ = 0;
  int rope_ = 0;
  int v_ = 0;
  int latent_ = 0;
  double eps_ = 0;
  double scale_ = 0;
  double amplitude_ = 1;
  Row frequencies_;
  ReferenceResult result_;
};

}  // namespace

ReferenceResult ReferenceForward(const std::string& folder,
                                 const std::vector<uint32_t>& token_ids) {
  return Reference(folder).Run(token_ids);
}

}  // namespace baton
