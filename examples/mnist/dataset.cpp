#include "mnist/dataset.hpp"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <numeric>

#include "mnist/random.hpp"
#include "tersum/error.hpp"

namespace mnist {
namespace {

using tersum::Code;
using tersum::Error;

constexpr std::uint32_t kImagesMagic = 0x00000803;  // unsigned bytes, three dimensions
constexpr std::uint32_t kLabelsMagic = 0x00000801;  // unsigned bytes, one dimension
constexpr std::uint32_t kMaximumCount = 1'000'000;  // a larger header is damaged, not data

// A file that is read from front to back; zlib passes plain files through unchanged.
class Reader {
 public:
  explicit Reader(const std::filesystem::path& path)
      : path_(path.string()), file_(gzopen(path_.c_str(), "rb")) {
    if (!file_) {
      throw Error(Code::System, "cannot open " + path_ + ": " + std::strerror(errno));
    }
  }

  // Reads exactly `bytes.size()` bytes of `what`.
  void read(std::span<std::uint8_t> bytes, const std::string& what) {
    const int got = gzread(file_.get(), bytes.data(), static_cast<unsigned>(bytes.size()));
    if (got == static_cast<int>(bytes.size())) return;
    if (got < 0) throw Error(Code::System, path_ + " cannot be unpacked: " + error_text());
    fail("is truncated: " + std::to_string(bytes.size()) + " bytes of " + what + " expected, " +
         std::to_string(got) + " found");
  }

  std::uint32_t read_number(const std::string& what) {
    std::array<std::uint8_t, 4> bytes{};
    read(bytes, what);
    return std::uint32_t{bytes[0]} << 24 | std::uint32_t{bytes[1]} << 16 |
           std::uint32_t{bytes[2]} << 8 | std::uint32_t{bytes[3]};
  }

  // Also makes zlib compare the checksum of what was read.
  void expect_end() {
    std::uint8_t extra = 0;
    const int got = gzread(file_.get(), &extra, 1);
    if (got > 0) fail("has more bytes than its header says");
    int code = Z_OK;
    gzerror(file_.get(), &code);
    if (got < 0 || code != Z_OK) {
      throw Error(Code::System, path_ + " cannot be unpacked: " + error_text());
    }
  }

  // Reads the head of a file of `kind` and returns how many items follow.
  std::size_t read_head(std::uint32_t magic, const std::string& kind) {
    const std::uint32_t found = read_number("the magic number");
    if (found != magic) {
      fail("is not an IDX file of " + kind + ": magic number " + std::to_string(found) +
           " instead of " + std::to_string(magic));
    }
    const std::uint32_t count = read_number("the count");
    if (count == 0 || count > kMaximumCount) {
      fail("claims to hold " + std::to_string(count) + " " + kind + "; 1 to " +
           std::to_string(kMaximumCount) + " are allowed");
    }
    return count;
  }

  [[noreturn]] void fail(const std::string& problem) const {
    throw Error(Code::InvalidArgument, path_ + " " + problem);
  }

 private:
  struct Close {
    void operator()(gzFile file) const noexcept { gzclose(file); }
  };

  std::string error_text() const {
    int code = Z_OK;
    const char* text = gzerror(file_.get(), &code);
    return code == Z_ERRNO ? std::strerror(errno) : text;
  }

  std::string path_;
  std::unique_ptr<std::remove_pointer_t<gzFile>, Close> file_;
};

std::filesystem::path find_file(const std::filesystem::path& directory, const std::string& part,
                                const std::string& suffix) {
  std::vector<std::string> prefixes{part};
  if (part == "test") prefixes.push_back("t10k");
  for (const std::string& prefix : prefixes) {
    for (const char* ending : {".gz", ""}) {
      std::filesystem::path file = directory / (prefix + suffix + ending);
      std::error_code ignored;
      if (std::filesystem::is_regular_file(file, ignored)) return file;
    }
  }
  throw Error(Code::InvalidArgument, "no " + part + suffix + "[.gz] in " + directory.string() +
                                         "; name the folder of the MNIST files with --data");
}

float normalised(std::uint8_t pixel) {
  constexpr float kMean = 0.1307f;  // of all training pixels, scaled to [0, 1]
  constexpr float kDeviation = 0.3081f;
  return (static_cast<float>(pixel) / 255.0f - kMean) / kDeviation;
}

// Moves the image down and right; what comes in from outside is background.
void copy_image(const Dataset& dataset, std::size_t index, int down, int right,
                std::span<float> image) {
  constexpr int kSide = static_cast<int>(kImageSide);
  const std::uint8_t* source = dataset.pixels.data() + index * kImagePixels;
  float* pixel = image.data();
  for (int y = -down; y < kSide - down; ++y) {
    for (int x = -right; x < kSide - right; ++x) {
      const bool inside = y >= 0 && y < kSide && x >= 0 && x < kSide;
      *pixel++ = normalised(inside ? source[y * kSide + x] : std::uint8_t{0});
    }
  }
}

}  // namespace

std::vector<std::uint8_t> read_images(const std::filesystem::path& file) {
  Reader reader(file);
  const std::size_t count = reader.read_head(kImagesMagic, "images");
  const std::uint32_t rows = reader.read_number("the rows of an image");
  const std::uint32_t columns = reader.read_number("the columns of an image");
  if (rows != kImageSide || columns != kImageSide) {
    reader.fail("holds images of " + std::to_string(rows) + "x" + std::to_string(columns) +
                " pixels instead of 28x28");
  }
  std::vector<std::uint8_t> pixels(count * kImagePixels);
  reader.read(pixels, "pixels");
  reader.expect_end();
  return pixels;
}

std::vector<std::uint8_t> read_labels(const std::filesystem::path& file) {
  Reader reader(file);
  std::vector<std::uint8_t> labels(reader.read_head(kLabelsMagic, "labels"));
  reader.read(labels, "labels");
  reader.expect_end();
  const auto wrong =
      std::find_if(labels.begin(), labels.end(), [](std::uint8_t l) { return l >= kClasses; });
  if (wrong != labels.end()) {
    reader.fail("has label " + std::to_string(*wrong) + " at item " +
                std::to_string(wrong - labels.begin()) + "; 0 to 9 are allowed");
  }
  return labels;
}

Dataset load_dataset(const std::filesystem::path& directory, const std::string& part,
                     std::size_t limit) {
  const std::filesystem::path images = find_file(directory, part, "-images-idx3-ubyte");
  const std::filesystem::path labels = find_file(directory, part, "-labels-idx1-ubyte");
  Dataset dataset{read_images(images), read_labels(labels)};
  const std::size_t count = dataset.pixels.size() / kImagePixels;
  if (count != dataset.size()) {
    throw Error(Code::InvalidArgument, images.string() + " has " + std::to_string(count) +
                                           " images but " + labels.string() + " has " +
                                           std::to_string(dataset.size()) + " labels");
  }
  if (limit > count) {
    throw Error(Code::InvalidArgument, "--" + part + " asks for " + std::to_string(limit) +
                                           " images but " + images.string() + " has only " +
                                           std::to_string(count));
  }
  if (limit != 0) {
    dataset.pixels.resize(limit * kImagePixels);
    dataset.labels.resize(limit);
  }
  return dataset;
}

void copy_batch(const Dataset& dataset, std::span<const std::uint32_t> indices,
                std::span<float> images, std::span<std::uint8_t> labels) {
  for (std::size_t i = 0; i < indices.size(); ++i) {
    copy_image(dataset, indices[i], 0, 0, images.subspan(i * kImagePixels, kImagePixels));
    labels[i] = dataset.labels[indices[i]];
  }
}

void copy_moved_batch(const Dataset& dataset, std::span<const std::uint32_t> indices,
                      std::uint64_t seed, std::uint64_t epoch, std::span<float> images,
                      std::span<std::uint8_t> labels) {
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const std::uint64_t random = mix(mix(mix(seed) + epoch) + indices[i]);
    const int move = static_cast<int>(((random >> 32) * 9) >> 32);
    copy_image(dataset, indices[i], move / 3 - 1, move % 3 - 1,
               images.subspan(i * kImagePixels, kImagePixels));
    labels[i] = dataset.labels[indices[i]];
  }
}

std::vector<std::uint32_t> epoch_order(std::size_t count, std::uint64_t seed, std::uint64_t epoch) {
  std::vector<std::uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0u);
  Random random(seed, epoch);
  for (std::size_t i = count; i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  return order;
}

std::span<const std::uint32_t> shard(std::span<const std::uint32_t> order, std::size_t step,
                                     std::size_t batch, int rank, int size) {
  const std::size_t first =
      (step * static_cast<std::size_t>(size) + static_cast<std::size_t>(rank)) * batch;
  return order.subspan(first, batch);
}

}  // namespace mnist
