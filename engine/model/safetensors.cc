#include "engine/model/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/json_text.h"
#include "base/status_macros.h"

namespace baton {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr size_t kMaxHeaderBytes = 100'000'000;
constexpr size_t kMaxIndexBytes = 100'000'000;
constexpr size_t kMaxDimensions = 8;
constexpr size_t kMaxShards = 10'000;

struct DtypeRow {
  std::string_view name;
  TensorDtype dtype;
  uint64_t bytes;
};
constexpr DtypeRow kDtypes[] = {
    {"BOOL", TensorDtype::kBool, 1},      {"U8", TensorDtype::kU8, 1},
    {"I8", TensorDtype::kI8, 1},          {"F8_E4M3", TensorDtype::kF8E4M3, 1},
    {"F8_E5M2", TensorDtype::kF8E5M2, 1}, {"I16", TensorDtype::kI16, 2},
    {"U16", TensorDtype::kU16, 2},        {"F16", TensorDtype::kF16, 2},
    {"BF16", TensorDtype::kBf16, 2},      {"I32", TensorDtype::kI32, 4},
    {"U32", TensorDtype::kU32, 4},        {"F32", TensorDtype::kF32, 4},
    {"I64", TensorDtype::kI64, 8},        {"U64", TensorDtype::kU64, 8},
    {"F64", TensorDtype::kF64, 8},
};

absl::Status Malformed(const std::string& file, const std::string& problem) {
  return absl::InvalidArgumentError(absl::StrCat(file, ": ", problem));
}

const nlohmann::json* Member(const nlohmann::json& object, const char* key) {
  const auto it = object.find(key);
  return it == object.end() ? nullptr : &*it;
}

absl::StatusOr<const DtypeRow*> ReadDtype(const nlohmann::json& entry) {
  const nlohmann::json* dtype = Member(entry, "dtype");
  if (dtype == nullptr || !dtype->is_string()) {
    return absl::InvalidArgumentError("dtype is not a string");
  }
  const auto& name = dtype->get_ref<const std::string&>();
  for (const DtypeRow& row : kDtypes) {
    if (row.name == name) return &row;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("dtype '", name, "' is not known"));
}

absl::StatusOr<std::vector<int64_t>> ReadShape(const nlohmann::json& entry) {
  const nlohmann::json* shape = Member(entry, "shape");
  if (shape == nullptr || !shape->is_array() ||
      shape->size() > kMaxDimensions) {
    return absl::InvalidArgumentError(absl::StrCat(
        "shape is not a list of at most ", kMaxDimensions, " sizes"));
  }
  std::vector<int64_t> sizes;
  for (const nlohmann::json& size : *shape) {
    if (!size.is_number_unsigned() ||
        size.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
      return absl::InvalidArgumentError("shape has something else than a size");
    }
    sizes.push_back(size.get<int64_t>());
  }
  return sizes;
}

// bytes_per_element * the product of the sizes, if that is at most `limit`.
std::optional<uint64_t> ShapeBytes(std::span<const int64_t> shape,
                                   uint64_t bytes_per_element, uint64_t limit) {
  if (std::ranges::find(shape, 0) != shape.end()) return 0;
  uint64_t bytes = bytes_per_element;
  for (const int64_t size : shape) {
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(size), &bytes)) {
      return std::nullopt;
    }
  }
  return bytes <= limit ? std::optional(bytes) : std::nullopt;
}

absl::StatusOr<Tensor> ReadTensor(const nlohmann::json& entry,
                                  std::span<const std::byte> data) {
  if (!entry.is_object()) return absl::InvalidArgumentError("not an object");
  Tensor tensor;
  ASSIGN_OR_RETURN(const DtypeRow* dtype, ReadDtype(entry));
  tensor.dtype = dtype->dtype;
  ASSIGN_OR_RETURN(tensor.shape, ReadShape(entry));
  const nlohmann::json* offsets = Member(entry, "data_offsets");
  if (offsets == nullptr || !offsets->is_array() || offsets->size() != 2 ||
      !(*offsets)[0].is_number_unsigned() ||
      !(*offsets)[1].is_number_unsigned()) {
    return absl::InvalidArgumentError("data_offsets are not two offsets");
  }
  const auto begin = (*offsets)[0].get<uint64_t>();
  const auto end = (*offsets)[1].get<uint64_t>();
  if (begin > end || end > data.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("data_offsets [", begin, ", ", end, "] do not lie in the ",
                     data.size(), " bytes of data"));
  }
  if (ShapeBytes(tensor.shape, dtype->bytes, data.size()) != end - begin) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data_offsets give ", end - begin, " bytes, which is not the size of ",
        std::string(dtype->name), " ", ShapeText(tensor.shape)));
  }
  tensor.bytes = data.subspan(begin, end - begin);
  return tensor;
}

bool IsGoodMetadata(const nlohmann::json& metadata) {
  return metadata.is_object() &&
         std::ranges::all_of(
             metadata, [](const auto& value) { return value.is_string(); });
}

absl::StatusOr<std::vector<Tensor>> ReadHeader(const nlohmann::json& header,
                                               std::span<const std::byte> data,
                                               const std::string& file) {
  const char* const metadata_key = "__metadata__";
  if (!header.is_object()) return Malformed(file, "header is not an object");
  const nlohmann::json* metadata = Member(header, metadata_key);
  if (metadata != nullptr && !IsGoodMetadata(*metadata)) {
    return Malformed(file, "__metadata__ is not an object of strings");
  }
  std::vector<Tensor> tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == metadata_key) continue;
    absl::StatusOr<Tensor> tensor = ReadTensor(entry, data);
    if (!tensor.ok()) {
      return Malformed(
          file, absl::StrCat("tensor ", name, ": ", tensor.status().message()));
    }
    tensor->name = name;
    tensor->file = file;
    tensors.push_back(*std::move(tensor));
  }
  return tensors;
}

// Sorted tensors follow each other without gap or overlap and end the data.
absl::Status CheckLayout(const std::vector<Tensor>& tensors,
                         std::span<const std::byte> data,
                         const std::string& file) {
  const std::byte* end = data.data();
  for (const Tensor& tensor : tensors) {
    if (tensor.bytes.data() != end) {
      return Malformed(file, absl::StrCat("tensor ", tensor.name,
                                          tensor.bytes.data() < end
                                              ? ": overlaps the one before"
                                              : ": a hole lies before it"));
    }
    end = tensor.bytes.data() + tensor.bytes.size();
  }
  const size_t unused = data.data() + data.size() - end;
  if (unused == 0) return absl::OkStatus();
  return Malformed(file, absl::StrCat(unused, " bytes behind the last tensor"));
}

bool LiesIn(const std::filesystem::path& folder,
            const std::filesystem::path& path) {
  return std::mismatch(folder.begin(), folder.end(), path.begin(), path.end())
             .first == folder.end();
}

// A shard is a plain name. Where it is a symbolic link it must lead into the
// model folder, or to a place beside the index's own file: caches keep all
// files of a model elsewhere in one folder and link to them.
absl::Status CheckShardPath(const std::string& folder,
                            const std::string& index_path,
                            const std::string& shard) {
  if (shard.empty() || absl::StrContains(shard, '/') ||
      absl::StrContains(shard, '\0') || shard == "." || shard == "..") {
    return Malformed(index_path,
                     absl::StrCat("'", shard, "' is not a file name"));
  }
  const std::string path = absl::StrCat(folder, "/", shard);
  std::error_code error;
  const auto real = std::filesystem::canonical(path, error);
  if (error) {
    return absl::NotFoundError(absl::StrCat(path, ": ", error.message()));
  }
  const auto real_folder = std::filesystem::canonical(folder, error);
  const auto real_index = std::filesystem::canonical(index_path, error);
  if (error || (!LiesIn(real_folder, real) &&
                real.parent_path() != real_index.parent_path())) {
    return Malformed(
        path, absl::StrCat("leads out of the model folder, to ", real.string(),
                           "; put the file itself here"));
  }
  return absl::OkStatus();
}

using NamesOfShards = std::map<std::string, std::vector<std::string>>;

absl::StatusOr<NamesOfShards> ReadIndex(const std::string& index_path) {
  ASSIGN_OR_RETURN(const std::string text,
                   ReadTextFile(index_path, kMaxIndexBytes));
  ASSIGN_OR_RETURN(const nlohmann::json index, ParseJson(text, index_path));
  const nlohmann::json* weight_map =
      index.is_object() ? Member(index, "weight_map") : nullptr;
  if (weight_map == nullptr || !weight_map->is_object()) {
    return Malformed(index_path, "weight_map is not an object");
  }
  NamesOfShards names;
  for (const auto& [name, shard] : weight_map->items()) {
    if (!shard.is_string()) {
      return Malformed(index_path,
                       absl::StrCat("weight_map: ", name, " has no file name"));
    }
    names[shard.get<std::string>()].push_back(name);
  }
  if (names.size() > kMaxShards) {
    return Malformed(index_path, absl::StrCat(names.size(), " shards, at most ",
                                              kMaxShards, " are allowed"));
  }
  return names;
}

// Adds those of `shard` that are named to `tensors`.
absl::Status PickTensors(std::vector<Tensor> shard, const std::string& path,
                         const std::vector<std::string>& names,
                         std::vector<Tensor>* tensors) {
  std::ranges::sort(shard, {}, &Tensor::name);
  for (const std::string& name : names) {
    const auto it = std::ranges::lower_bound(shard, name, {}, &Tensor::name);
    if (it == shard.end() || it->name != name) {
      return absl::NotFoundError(
          absl::StrCat(path, ": tensor ", name,
                       " is missing, which the index says is here"));
    }
    tensors->push_back(*it);
  }
  return absl::OkStatus();
}

}  // namespace

std::string_view TensorDtypeName(TensorDtype dtype) {
  for (const DtypeRow& row : kDtypes) {
    if (row.dtype == dtype) return row.name;
  }
  return "?";
}

FileStamp FileStamp::Of(const struct stat& status) {
  return {.device = status.st_dev,
          .inode = status.st_ino,
          .bytes = status.st_size,
          .modified_seconds = status.st_mtim.tv_sec,
          .modified_nanoseconds = status.st_mtim.tv_nsec};
}

std::string ShapeText(std::span<const int64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape.begin(), shape.end(), ", "),
                      "]");
}

absl::StatusOr<std::vector<Tensor>> ParseSafetensors(
    std::span<const std::byte> content, const std::string& file) {
  uint64_t header_bytes = 0;
  if (content.size() < sizeof(header_bytes)) {
    return Malformed(file, "too short for a safetensors file");
  }
  std::memcpy(&header_bytes, content.data(), sizeof(header_bytes));
  content = content.subspan(sizeof(header_bytes));
  if (header_bytes > std::min(content.size(), kMaxHeaderBytes)) {
    return Malformed(
        file, absl::StrCat("header of ", header_bytes, " bytes; the file has ",
                           content.size(), " and at most ", kMaxHeaderBytes,
                           " are allowed"));
  }
  const std::span<const std::byte> data = content.subspan(header_bytes);
  ASSIGN_OR_RETURN(
      const nlohmann::json header,
      ParseJson({reinterpret_cast<const char*>(content.data()), header_bytes},
                absl::StrCat(file, ": header")));
  ASSIGN_OR_RETURN(std::vector<Tensor> tensors, ReadHeader(header, data, file));
  std::ranges::sort(tensors, {}, [](const Tensor& tensor) {
    return std::pair(tensor.bytes.data(), tensor.bytes.size());
  });
  RETURN_IF_ERROR(CheckLayout(tensors, data, file));
  uint64_t offset = sizeof(header_bytes) + header_bytes;
  for (Tensor& tensor : tensors) {
    tensor.offset = offset;
    offset += tensor.bytes.size();
  }
  return tensors;
}

// Read-only and private; unmapped by the destructor.
class ModelTensors::MappedFile {
 public:
  static absl::StatusOr<std::unique_ptr<const MappedFile>> Open(
      const std::string& path) {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
      return absl::NotFoundError(absl::StrCat(path, ": ", strerror(errno)));
    }
    struct stat status = {};
    const bool is_file = fstat(fd, &status) == 0 && S_ISREG(status.st_mode) &&
                         status.st_size > 0;
    void* address =
        is_file ? mmap(nullptr, status.st_size, PROT_READ, MAP_PRIVATE, fd, 0)
                : MAP_FAILED;
    close(fd);
    if (address == MAP_FAILED) {
      return Malformed(path, "empty, or not a file that can be mapped");
    }
    return std::unique_ptr<const MappedFile>(
        new MappedFile(address, FileStamp::Of(status)));
  }
  ~MappedFile() { munmap(address_, stamp_.bytes); }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> content() const {
    return {static_cast<const std::byte*>(address_),
            static_cast<size_t>(stamp_.bytes)};
  }
  const FileStamp& stamp() const { return stamp_; }

 private:
  MappedFile(void* address, const FileStamp& stamp)
      : address_(address), stamp_(stamp) {}

  void* const address_;
  const FileStamp stamp_;
};

ModelTensors::ModelTensors(std::string folder) : folder_(std::move(folder)) {}
ModelTensors::ModelTensors(ModelTensors&& other) noexcept = default;
ModelTensors& ModelTensors::operator=(ModelTensors&& other) noexcept = default;
ModelTensors::~ModelTensors() = default;

absl::StatusOr<ModelTensors> ModelTensors::Open(const std::string& folder) {
  const std::string single = "model.safetensors";
  const std::string index =
      absl::StrCat(folder, "/model.safetensors.index.json");
  ModelTensors model(folder);
  std::error_code error;
  if (std::filesystem::exists(absl::StrCat(folder, "/", single), error)) {
    ASSIGN_OR_RETURN(model.tensors_, model.Map(single));
  } else if (std::filesystem::exists(index, error)) {
    RETURN_IF_ERROR(model.OpenShards(index));
  } else {
    return absl::NotFoundError(absl::StrCat(
        folder, ": neither ", single, " nor ", single, ".index.json is there"));
  }
  std::ranges::sort(model.tensors_, {}, &Tensor::name);
  return model;
}

absl::StatusOr<std::vector<Tensor>> ModelTensors::Map(const std::string& name) {
  const std::string path = absl::StrCat(folder_, "/", name);
  ASSIGN_OR_RETURN(std::unique_ptr<const MappedFile> file,
                   MappedFile::Open(path));
  stamps_[path] = file->stamp();
  files_.push_back(std::move(file));
  return ParseSafetensors(files_.back()->content(), path);
}

// The index decides which tensors there are; each must lie in its shard.
absl::Status ModelTensors::OpenShards(const std::string& index_path) {
  ASSIGN_OR_RETURN(const NamesOfShards names_of_shards, ReadIndex(index_path));
  for (const auto& [shard, names] : names_of_shards) {
    RETURN_IF_ERROR(CheckShardPath(folder_, index_path, shard));
    ASSIGN_OR_RETURN(std::vector<Tensor> tensors, Map(shard));
    RETURN_IF_ERROR(PickTensors(std::move(tensors),
                                absl::StrCat(folder_, "/", shard), names,
                                &tensors_));
  }
  return absl::OkStatus();
}

const Tensor* ModelTensors::Find(std::string_view name) const {
  const auto it = std::ranges::lower_bound(
      tensors_, name, {},
      [](const Tensor& tensor) -> std::string_view { return tensor.name; });
  return it == tensors_.end() || it->name != name ? nullptr : &*it;
}

ModelTensors ModelTensors::OfCopies(std::string folder,
                                    std::vector<Tensor> copies,
                                    std::vector<std::byte> memory) {
  ModelTensors model(std::move(folder));
  model.memory_ = std::move(memory);
  model.tensors_ = std::move(copies);
  std::ranges::sort(model.tensors_, {}, &Tensor::name);
  return model;
}

}  // namespace baton
