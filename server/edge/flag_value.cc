#include "server/edge/flag_value.h"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

namespace baton {
namespace {

// 1000000000, not 1e+09.
std::string BoundText(double bound) {
  return bound == std::floor(bound) ? absl::StrFormat("%.0f", bound)
                                    : absl::StrFormat("%g", bound);
}

absl::Status CheckBounds(double value, const FlagSpec& spec) {
  if (value >= spec.min && value <= spec.max) return absl::OkStatus();
  if (std::isinf(spec.max)) {
    return absl::InvalidArgumentError("must be at least " +
                                      BoundText(spec.min));
  }
  if (std::isinf(spec.min)) {
    return absl::InvalidArgumentError("must be at most " + BoundText(spec.max));
  }
  return absl::InvalidArgumentError("must be " + BoundText(spec.min) + " .. " +
                                    BoundText(spec.max));
}

// ---- one ParseValue, FormatValue and TypeText for each type -----------------

template <typename T>
absl::Status ParseValue(const std::string& text, const FlagSpec& spec, T* v) {
  if constexpr (std::is_integral_v<T>) {
    if (!absl::SimpleAtoi(text, v)) {
      return absl::InvalidArgumentError("not a whole number in range");
    }
  } else {
    double wide = 0;
    if (!absl::SimpleAtod(text, &wide) || !std::isfinite(wide)) {
      return absl::InvalidArgumentError("not a finite number");
    }
    *v = static_cast<T>(wide);
  }
  return CheckBounds(static_cast<double>(*v), spec);
}

absl::Status ParseValue(const std::string& text, const FlagSpec&, bool* v) {
  if (text == "true" || text == "1") {
    *v = true;
  } else if (text == "false" || text == "0") {
    *v = false;
  } else {
    return absl::InvalidArgumentError("must be true or false");
  }
  return absl::OkStatus();
}

absl::Status ParseValue(const std::string& text, const FlagSpec&,
                        std::string* v) {
  *v = text;
  return absl::OkStatus();
}

absl::Status ParseValue(const std::string& text, const FlagSpec& spec,
                        absl::Duration* v) {
  if (!absl::ParseDuration(text, v) || *v == absl::InfiniteDuration() ||
      *v == -absl::InfiniteDuration()) {
    return absl::InvalidArgumentError("not a duration such as 500ms or 1m30s");
  }
  return CheckBounds(absl::ToDoubleSeconds(*v), spec);
}

absl::Status ParseValue(const std::string& text, const FlagSpec& spec,
                        ByteSize* v) {
  const size_t unit_at =
      std::min(text.find_first_not_of("0123456789"), text.size());
  const std::string unit = text.substr(unit_at);
  int shift = 0;
  if (unit == "KiB") {
    shift = 10;
  } else if (unit == "MiB") {
    shift = 20;
  } else if (unit == "GiB") {
    shift = 30;
  } else if (!unit.empty()) {
    shift = -1;
  }
  uint64_t count = 0;
  if (shift < 0 || !absl::SimpleAtoi(text.substr(0, unit_at), &count) ||
      count > (std::numeric_limits<uint64_t>::max() >> shift)) {
    return absl::InvalidArgumentError(
        "not a number of bytes such as 1048576, 512MiB or 4GiB");
  }
  v->bytes = count << shift;
  return CheckBounds(static_cast<double>(v->bytes), spec);
}

// "a\\,b,c" is "a,b" and "c".
std::vector<std::string> SplitItems(const std::string& text) {
  std::vector<std::string> items(1);
  for (size_t i = 0; i < text.size(); ++i) {
    if (text.compare(i, 2, "\\,") == 0) {
      items.back() += text[++i];
    } else if (text[i] == ',') {
      items.emplace_back();
    } else {
      items.back() += text[i];
    }
  }
  return items;
}

absl::Status ParseValue(const std::string& text, const FlagSpec& spec,
                        std::vector<std::string>* v) {
  v->clear();
  for (std::string& item : SplitItems(text)) {
    if (!spec.exact_items) absl::StripAsciiWhitespace(&item);
    if (!item.empty()) {
      v->push_back(std::move(item));
    } else if (spec.exact_items) {
      return absl::InvalidArgumentError(
          "has an empty item; a comma in one is written \\,");
    }
  }
  return absl::OkStatus();
}

template <typename T>
absl::Status ParseValue(const std::string& text, const FlagSpec& spec,
                        std::optional<T>* v) {
  return ParseValue(text, spec, &v->emplace());
}

template <typename T>
std::string FormatValue(const T& v) {
  return absl::StrCat(v);
}
std::string FormatValue(bool v) { return v ? "true" : "false"; }
std::string FormatValue(const std::string& v) { return v; }
std::string FormatValue(absl::Duration v) { return absl::FormatDuration(v); }
std::string FormatValue(ByteSize v) {
  for (const auto& [shift, unit] :
       {std::pair{30, "GiB"}, {20, "MiB"}, {10, "KiB"}}) {
    const uint64_t count = v.bytes >> shift;
    if (count > 0 && count << shift == v.bytes) {
      return absl::StrCat(count, unit);
    }
  }
  return absl::StrCat(v.bytes);
}
std::string FormatValue(const std::vector<std::string>& v) {
  return absl::StrJoin(v, ",", [](std::string* out, const std::string& item) {
    out->append(absl::StrReplaceAll(item, {{",", "\\,"}}));
  });
}
template <typename T>
std::string FormatValue(const std::optional<T>& v) {
  return v.has_value() ? FormatValue(*v) : "";
}

const char* TypeText(const int32_t*) { return "N"; }
const char* TypeText(const uint32_t*) { return "N"; }
const char* TypeText(const uint64_t*) { return "N"; }
const char* TypeText(const float*) { return "X"; }
const char* TypeText(const double*) { return "X"; }
const char* TypeText(const bool*) { return ""; }
const char* TypeText(const std::string*) { return "TEXT"; }
const char* TypeText(const absl::Duration*) { return "DURATION"; }
const char* TypeText(const ByteSize*) { return "BYTES"; }
const char* TypeText(const std::vector<std::string>*) { return "TEXT,..."; }
template <typename T>
const char* TypeText(const std::optional<T>*) {
  return TypeText(static_cast<const T*>(nullptr));
}

template <typename T>
constexpr FlagArity ArityOfType(const T*) {
  if (std::is_same_v<T, bool> || std::is_same_v<T, std::optional<bool>>) {
    return FlagArity::kSwitch;
  }
  if (std::is_same_v<T, std::vector<std::string>>) return FlagArity::kList;
  return FlagArity::kOne;
}

}  // namespace

FlagArity ArityOf(const FlagTarget& target) {
  return std::visit([](auto* v) { return ArityOfType(v); }, target);
}

std::string TypeName(const FlagTarget& target) {
  return std::visit([](auto* v) { return TypeText(v); }, target);
}

absl::Status ParseFlagValue(const std::string& text, const FlagSpec& spec,
                            const FlagTarget& target) {
  return std::visit([&](auto* v) { return ParseValue(text, spec, v); }, target);
}

absl::Status CheckHostPort(const std::string& text) {
  constexpr uint32_t kMaxPort = 65535;
  const size_t colon = std::min(text.rfind(':'), text.size());
  std::string host = text.substr(0, colon);
  const std::string port = text.substr(std::min(colon + 1, text.size()));
  const bool is_v6 =
      host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (is_v6) host = host.substr(1, host.size() - 2);
  uint32_t number = 0;
  if (host.empty() ||
      host.find_first_of(is_v6 ? "[], " : ":[], ") != std::string::npos ||
      port.find_first_not_of("0123456789") != std::string::npos ||
      !absl::SimpleAtoi(port, &number) || number > kMaxPort) {
    return absl::InvalidArgumentError(
        "must be host:port with a port of 0 .. 65535");
  }
  return absl::OkStatus();
}

std::string FormatFlagValue(const FlagTarget& target) {
  return std::visit([](auto* v) { return FormatValue(*v); }, target);
}

}  // namespace baton
