#include "server/text/python_json.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace baton {
namespace {

// What json.dumps(json.loads(text), ensure_ascii=False) gives.
TEST(PythonJsonTest, PrintsAsPythonDoes) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"{}", "{}"},
      {"[ ]", "[]"},
      {R"({"b":1,"a":[true,null,{"c":"d"}]})",
       R"({"b": 1, "a": [true, null, {"c": "d"}]})"},
      {R"("\u00e9\u0001\t\"\\\u007f\/\ud83d\ude00")",
       "\"\xC3\xA9\\u0001\\t\\\"\\\\\x7F/\xF0\x9F\x98\x80\""},
      {"-9223372036854775808", "-9223372036854775808"},
      {"18446744073709551615", "18446744073709551615"},
      {"1.0", "1.0"},
      {"-0.0", "-0.0"},
      {"0.1", "0.1"},
      {"1e2", "100.0"},
      {"1e15", "1000000000000000.0"},
      {"1e16", "1e+16"},
      {"1.5e300", "1.5e+300"},
      {"0.0001", "0.0001"},
      {"0.00001", "1e-05"},
      {"-1.25e-7", "-1.25e-07"},
  };
  for (const auto& [text, expected] : cases) {
    EXPECT_EQ(PythonJson(nlohmann::ordered_json::parse(text)), expected);
  }
}

}  // namespace
}  // namespace baton
