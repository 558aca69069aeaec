#include "server/text/python_json.h"

#include <charconv>
#include <cmath>
#include <string_view>

#include "absl/strings/match.h"

namespace baton {
namespace {

// Python's repr: the shortest digits that read back as `value`, with an
// exponent below 1e-4 and from 1e16 on.
std::string PythonFloat(double value) {
  const double magnitude = std::abs(value);
  const bool is_plain =
      magnitude == 0 || (magnitude >= 1e-4 && magnitude < 1e16);
  char buffer[64];
  const auto end = std::to_chars(
      buffer, buffer + sizeof(buffer), value,
      is_plain ? std::chars_format::fixed : std::chars_format::scientific);
  std::string text(buffer, end.ptr);
  if (is_plain && !absl::StrContains(text, '.')) text.append(".0");
  return text;
}

void Append(const nlohmann::ordered_json& json, std::string* out) {
  if (json.is_number_float()) {
    out->append(PythonFloat(json.get<double>()));
    return;
  }
  if (!json.is_structured()) {
    out->append(json.dump());
    return;
  }
  out->push_back(json.is_array() ? '[' : '{');
  std::string_view separator;
  for (const auto& [key, value] : json.items()) {
    out->append(separator);
    separator = ", ";
    if (json.is_object()) {
      out->append(nlohmann::ordered_json(key).dump()).append(": ");
    }
    Append(value, out);
  }
  out->push_back(json.is_array() ? ']' : '}');
}

}  // namespace

std::string PythonJson(const nlohmann::ordered_json& json) {
  std::string out;
  Append(json, &out);
  return out;
}

}  // namespace baton
