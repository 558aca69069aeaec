// A copy of the demo model's text files that a test may spoil.
#ifndef BATON_SERVER_TEXT_MODEL_FOLDER_FOR_TEST_H_
#define BATON_SERVER_TEXT_MODEL_FOLDER_FOR_TEST_H_

#include <functional>
#include <string>
#include <string_view>

#include "nlohmann/json.hpp"

namespace baton {

inline constexpr char kDemoModelFolder[] = "models/tiny-deepseek-v3";

// tokenizer.json, tokenizer_config.json, generation_config.json and config.json
// in a folder of their own, removed with this. Thread-compatible.
class ModelFolderForTest final {
 public:
  ModelFolderForTest();
  ModelFolderForTest(const ModelFolderForTest&) = delete;
  ModelFolderForTest& operator=(const ModelFolderForTest&) = delete;
  ~ModelFolderForTest();

  const std::string& path() const { return path_; }

  std::string Read(const std::string& name) const;
  void Write(const std::string& name, std::string_view contents) const;
  void Remove(const std::string& name) const;
  // Writes the file as `edit` changes its JSON.
  void Edit(const std::string& name,
            const std::function<void(nlohmann::json&)>& edit) const;

 private:
  std::string path_;
};

}  // namespace baton

#endif  // BATON_SERVER_TEXT_MODEL_FOLDER_FOR_TEST_H_
