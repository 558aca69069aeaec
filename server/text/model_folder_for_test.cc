#include "server/text/model_folder_for_test.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include "gtest/gtest.h"

namespace baton {
namespace {

constexpr const char* kFiles[] = {"tokenizer.json", "tokenizer_config.json",
                                  "generation_config.json", "config.json"};

}  // namespace

ModelFolderForTest::ModelFolderForTest() {
  path_ = testing::TempDir() + "model_XXXXXX";
  EXPECT_NE(mkdtemp(path_.data()), nullptr);
  for (const char* name : kFiles) {
    std::filesystem::copy_file(std::string(kDemoModelFolder) + "/" + name,
                               path_ + "/" + name);
  }
}

ModelFolderForTest::~ModelFolderForTest() {
  std::filesystem::remove_all(path_);
}

std::string ModelFolderForTest::Read(const std::string& name) const {
  std::ostringstream contents;
  contents << std::ifstream(path_ + "/" + name, std::ios::binary).rdbuf();
  return contents.str();
}

void ModelFolderForTest::Write(const std::string& name,
                               std::string_view contents) const {
  // The model's files may be read-only, and so may their copies.
  Remove(name);
  std::ofstream(path_ + "/" + name, std::ios::binary) << contents;
}

void ModelFolderForTest::Remove(const std::string& name) const {
  std::filesystem::remove(path_ + "/" + name);
}

void ModelFolderForTest::Edit(
    const std::string& name,
    const std::function<void(nlohmann::json&)>& edit) const {
  nlohmann::json json = nlohmann::json::parse(Read(name));
  edit(json);
  Write(name, json.dump());
}

}  // namespace baton
