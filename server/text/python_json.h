// JSON as Python's json.dumps prints it, which is what chat templates hold.
#ifndef BATON_SERVER_TEXT_PYTHON_JSON_H_
#define BATON_SERVER_TEXT_PYTHON_JSON_H_

#include <string>

#include "nlohmann/json.hpp"

namespace baton {

// json.dumps(json, ensure_ascii=False): keys in their order, ", " and ": ".
// Whole numbers beyond 64 bits are printed as the nearest float.
// REQUIRES: shallow (ParseOrderedJson sees to it); recurses.
std::string PythonJson(const nlohmann::ordered_json& json);

}  // namespace baton

#endif  // BATON_SERVER_TEXT_PYTHON_JSON_H_
