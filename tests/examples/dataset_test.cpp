#include "mnist/dataset.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "tersum/error.hpp"

namespace {

using tersum::Code;
using testing::AllOf;
using testing::HasSubstr;

std::string number(std::uint32_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) {
    bytes.push_back(static_cast<char>((value >> shift) & 0xff));
  }
  return bytes;
}

std::string images(std::uint32_t count) {
  std::string bytes = number(0x803) + number(count) + number(28) + number(28);
  for (std::uint32_t i = 0; i < count * 784; ++i) bytes.push_back(static_cast<char>(i % 251));
  return bytes;
}

std::string labels(std::uint32_t count) {
  std::string bytes = number(0x801) + number(count);
  for (std::uint32_t i = 0; i < count; ++i) bytes.push_back(static_cast<char>(i % 10));
  return bytes;
}

// A folder of its own for each test.
class DatasetFiles : public testing::Test {
 protected:
  DatasetFiles() {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::path(testing::TempDir()) /
              ("mnist_test." + std::to_string(getpid()) + "." + info->name());
    std::filesystem::create_directories(folder_);
  }
  ~DatasetFiles() override {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  std::filesystem::path plain(const std::string& name, const std::string& bytes) {
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
    return folder_ / name;
  }
  std::filesystem::path zipped(const std::string& name, const std::string& bytes) {
    gzFile file = gzopen((folder_ / name).c_str(), "wb");
    gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
    gzclose(file);
    return folder_ / name;
  }

  std::filesystem::path folder_;
};

void expect_error(Code code, const testing::Matcher<const std::string&>& message,
                  const std::function<void()>& call) {
  try {
    call();
    ADD_FAILURE() << "no error";
  } catch (const tersum::Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_THAT(error.status().message(), message);
  }
}

TEST_F(DatasetFiles, ReadsPlainAndGzippedFilesAlike) {
  const auto a = mnist::read_images(plain("a", images(3)));
  const auto b = mnist::read_images(zipped("b.gz", images(3)));
  ASSERT_EQ(a.size(), 3u * 784u);
  EXPECT_EQ(a[0], 0);
  EXPECT_EQ(a[785], 785 % 251);
  EXPECT_EQ(a, b);
  EXPECT_EQ(mnist::read_labels(zipped("c.gz", labels(12))),
            (std::vector<std::uint8_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1}));
}

TEST_F(DatasetFiles, RefusesAWrongMagicNumber) {
  const auto file = plain("swapped", labels(3));
  expect_error(Code::InvalidArgument,
               AllOf(HasSubstr("swapped"), HasSubstr("magic number 2049 instead of 2051")),
               [&] { mnist::read_images(file); });
  const auto other = plain("other", images(3));
  expect_error(Code::InvalidArgument, HasSubstr("magic number 2051 instead of 2049"),
               [&] { mnist::read_labels(other); });
}

TEST_F(DatasetFiles, RefusesTruncatedFilesWhereverTheyEnd) {
  const std::string whole = images(2);
  for (const std::size_t length :
       {std::size_t{0}, std::size_t{3}, std::size_t{10}, std::size_t{16}, whole.size() - 1}) {
    const auto file = zipped("short.gz", whole.substr(0, length));
    expect_error(Code::InvalidArgument, AllOf(HasSubstr("short.gz"), HasSubstr("is truncated")),
                 [&] { mnist::read_images(file); });
  }
  const auto file = plain("labels", labels(5).substr(0, 12));
  expect_error(Code::InvalidArgument, HasSubstr("5 bytes of labels expected, 4 found"),
               [&] { mnist::read_labels(file); });
}

TEST_F(DatasetFiles, RefusesADamagedGzipStream) {
  const auto file = zipped("cut.gz", images(4));
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 6);
  EXPECT_THROW(mnist::read_images(file), tersum::Error);

  const auto flipped = zipped("flipped.gz", images(4));
  std::fstream stream(flipped, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekp(-6, std::ios::end);  // inside the checksum
  const char byte = static_cast<char>(stream.peek() ^ 0x55);
  stream.seekp(-6, std::ios::end);
  stream.put(byte);
  stream.close();
  expect_error(Code::System, AllOf(HasSubstr("flipped.gz"), HasSubstr("cannot be unpacked")),
               [&] { mnist::read_images(flipped); });
}

TEST_F(DatasetFiles, RefusesBytesLeftOver) {
  const auto file = plain("long", labels(3) + "x");
  expect_error(Code::InvalidArgument, HasSubstr("more bytes than its header says"),
               [&] { mnist::read_labels(file); });
}

TEST_F(DatasetFiles, RefusesACountThatCannotBeRight) {
  for (const std::uint32_t count : {0u, 0xffffffffu}) {
    const auto file = plain("count", number(0x801) + number(count));
    expect_error(Code::InvalidArgument, HasSubstr("claims to hold " + std::to_string(count)),
                 [&] { mnist::read_labels(file); });
  }
}

TEST_F(DatasetFiles, RefusesImagesOfAnotherSize) {
  const auto file = plain("wide", number(0x803) + number(1) + number(28) + number(32));
  expect_error(Code::InvalidArgument, HasSubstr("28x32 pixels instead of 28x28"),
               [&] { mnist::read_images(file); });
}

TEST_F(DatasetFiles, RefusesLabelsBeyondNine) {
  std::string bytes = labels(3);
  bytes[8 + 1] = 10;
  const auto file = plain("labels", bytes);
  expect_error(Code::InvalidArgument, HasSubstr("label 10 at item 1"),
               [&] { mnist::read_labels(file); });
}

TEST_F(DatasetFiles, RefusesAFileThatIsNotThere) {
  expect_error(Code::System, HasSubstr("nowhere"),
               [&] { mnist::read_labels(folder_ / "nowhere"); });
}

TEST_F(DatasetFiles, LoadsAPartAndLimitsIt) {
  plain("train-images-idx3-ubyte", images(5));
  zipped("train-labels-idx1-ubyte.gz", labels(5));
  const mnist::Dataset all = mnist::load_dataset(folder_, "train");
  EXPECT_EQ(all.size(), 5u);
  EXPECT_EQ(all.pixels.size(), 5u * 784u);
  const mnist::Dataset some = mnist::load_dataset(folder_, "train", 2);
  EXPECT_EQ(some.size(), 2u);
  EXPECT_EQ(some.pixels,
            std::vector<std::uint8_t>(all.pixels.begin(), all.pixels.begin() + 2 * 784));
  expect_error(Code::InvalidArgument, AllOf(HasSubstr("--train asks for 6"), HasSubstr("only 5")),
               [&] { mnist::load_dataset(folder_, "train", 6); });
}

TEST_F(DatasetFiles, FindsTheTestPartUnderItsOriginalName) {
  plain("t10k-images-idx3-ubyte", images(2));
  plain("t10k-labels-idx1-ubyte", labels(2));
  EXPECT_EQ(mnist::load_dataset(folder_, "test").size(), 2u);
}

TEST_F(DatasetFiles, RefusesAFolderWithoutThem) {
  expect_error(
      Code::InvalidArgument,
      AllOf(HasSubstr("train-images-idx3-ubyte"), HasSubstr(folder_.string()), HasSubstr("--data")),
      [&] { mnist::load_dataset(folder_, "train"); });
}

TEST_F(DatasetFiles, RefusesCountsThatDiffer) {
  plain("train-images-idx3-ubyte", images(3));
  plain("train-labels-idx1-ubyte", labels(4));
  expect_error(Code::InvalidArgument, AllOf(HasSubstr("3 images"), HasSubstr("4 labels")),
               [&] { mnist::load_dataset(folder_, "train"); });
}

TEST(CopyBatch, NormalisesTheChosenImages) {
  mnist::Dataset dataset;
  dataset.pixels.resize(3 * 784);
  dataset.pixels[2 * 784 + 5] = 255;
  dataset.labels = {1, 2, 3};
  std::vector<float> images(2 * 784);
  std::vector<std::uint8_t> labels(2);
  mnist::copy_batch(dataset, std::vector<std::uint32_t>{2, 0}, images, labels);
  EXPECT_EQ(labels, (std::vector<std::uint8_t>{3, 1}));
  EXPECT_FLOAT_EQ(images[5], (1.0f - 0.1307f) / 0.3081f);
  EXPECT_FLOAT_EQ(images[4], -0.1307f / 0.3081f);
  EXPECT_FLOAT_EQ(images[784 + 5], -0.1307f / 0.3081f);
}

// Finds by how much `moved` is `whole` moved, as 3 * (down + 1) + right + 1, or -1.
int find_move(const std::vector<float>& moved, const std::vector<float>& whole, float background) {
  for (int move = 0; move < 9; ++move) {
    bool equal = true;
    for (int y = 0; y < 28 && equal; ++y) {
      for (int x = 0; x < 28 && equal; ++x) {
        const int from_y = y - (move / 3 - 1);
        const int from_x = x - (move % 3 - 1);
        const bool inside = from_y >= 0 && from_y < 28 && from_x >= 0 && from_x < 28;
        equal = moved[static_cast<std::size_t>(y * 28 + x)] ==
                (inside ? whole[static_cast<std::size_t>(from_y * 28 + from_x)] : background);
      }
    }
    if (equal) return move;
  }
  return -1;
}

TEST(CopyMovedBatch, MovesEachImageInAllNineWays) {
  mnist::Dataset dataset;
  for (std::size_t i = 0; i < 784; ++i) {
    dataset.pixels.push_back(static_cast<std::uint8_t>(1 + i % 253));
  }
  dataset.labels = {7};
  const std::vector<std::uint32_t> indices{0};
  std::vector<float> whole(784);
  std::vector<float> moved(784);
  std::vector<float> again(784);
  std::vector<std::uint8_t> labels(1);
  mnist::copy_batch(dataset, indices, whole, labels);
  std::vector<int> seen(9);
  for (std::uint64_t epoch = 0; epoch < 900; ++epoch) {
    labels[0] = 0;
    mnist::copy_moved_batch(dataset, indices, 1, epoch, moved, labels);
    mnist::copy_moved_batch(dataset, indices, 1, epoch, again, labels);
    EXPECT_EQ(moved, again);
    EXPECT_EQ(labels[0], 7);
    const int move = find_move(moved, whole, -0.1307f / 0.3081f);
    ASSERT_GE(move, 0) << "epoch " << epoch;
    ++seen[static_cast<std::size_t>(move)];
  }
  for (const int count : seen) EXPECT_NEAR(count, 100, 50);
}

TEST(CopyMovedBatch, MovesAnImageAlikeInEveryBatch) {
  mnist::Dataset dataset;
  for (std::size_t i = 0; i < 8 * 784; ++i) {
    dataset.pixels.push_back(static_cast<std::uint8_t>(i % 256));
  }
  dataset.labels.assign(8, 1);
  std::vector<float> together(8 * 784);
  std::vector<float> alone(784);
  std::vector<std::uint8_t> labels(8);
  mnist::copy_moved_batch(dataset, std::vector<std::uint32_t>{0, 1, 2, 3, 4, 5, 6, 7}, 1, 2,
                          together, labels);
  mnist::copy_moved_batch(dataset, std::vector<std::uint32_t>{5}, 1, 2, alone, labels);
  EXPECT_TRUE(std::equal(alone.begin(), alone.end(), together.begin() + 5 * 784));
}

TEST(EpochOrder, DependsOnSeedAndEpochOnly) {
  const auto order = mnist::epoch_order(1000, 1, 0);
  EXPECT_EQ(order, mnist::epoch_order(1000, 1, 0));
  EXPECT_NE(order, mnist::epoch_order(1000, 1, 1));
  EXPECT_NE(order, mnist::epoch_order(1000, 2, 0));
  EXPECT_NE(mnist::epoch_order(1000, 1, 1), mnist::epoch_order(1000, 2, 0));
}

TEST(EpochOrder, IsTheSameOnEveryPlatform) {
  EXPECT_EQ(mnist::epoch_order(8, 1, 0), (std::vector<std::uint32_t>{7, 0, 6, 5, 1, 4, 2, 3}));
}

TEST(EpochOrder, PutsEveryImageAnywhere) {
  // 4000 permutations of 5: every image at every place about 800 times (deviation 25).
  std::vector<std::vector<int>> seen(5, std::vector<int>(5));
  for (std::uint64_t epoch = 0; epoch < 4000; ++epoch) {
    const auto order = mnist::epoch_order(5, 3, epoch);
    for (std::size_t place = 0; place < 5; ++place) ++seen[place][order[place]];
  }
  for (const auto& row : seen) {
    for (const int count : row) EXPECT_NEAR(count, 800, 150);
  }
}

TEST(Shard, RanksAndStepsCoverEachImageExactlyOnce) {
  constexpr std::size_t kBatch = 16;
  for (const int size : {1, 2, 4, 5}) {
    const auto order = mnist::epoch_order(1600, 9, 2);
    const std::size_t steps = order.size() / (kBatch * static_cast<std::size_t>(size));
    std::vector<int> seen(order.size());
    for (std::size_t step = 0; step < steps; ++step) {
      for (int rank = 0; rank < size; ++rank) {
        const auto part = mnist::shard(order, step, kBatch, rank, size);
        ASSERT_EQ(part.size(), kBatch);
        for (const std::uint32_t image : part) ++seen[image];
      }
    }
    EXPECT_EQ(seen, std::vector<int>(order.size(), 1)) << size << " ranks";
  }
}

TEST(Shard, GlobalBatchDoesNotDependOnHowManyRanksShareIt) {
  const auto order = mnist::epoch_order(128, 1, 0);
  const auto whole = mnist::shard(order, 1, 64, 0, 1);
  std::vector<std::uint32_t> parts;
  for (int rank = 0; rank < 4; ++rank) {
    const auto part = mnist::shard(order, 1, 16, rank, 4);
    parts.insert(parts.end(), part.begin(), part.end());
  }
  EXPECT_EQ(parts, std::vector<std::uint32_t>(whole.begin(), whole.end()));
}

TEST(Shard, LeavesOutWhatDoesNotFillAGlobalBatch) {
  const auto order = mnist::epoch_order(100, 1, 0);
  std::set<std::uint32_t> seen;
  for (std::size_t step = 0; step < 100 / (16 * 2); ++step) {
    for (int rank = 0; rank < 2; ++rank) {
      for (const std::uint32_t image : mnist::shard(order, step, 16, rank, 2)) {
        EXPECT_TRUE(seen.insert(image).second) << image;
      }
    }
  }
  EXPECT_EQ(seen.size(), 96u);
}

TEST(Mnist, FilesOfTheTreeAreWhole) {
  EXPECT_EQ(mnist::load_dataset(MNIST_DATA, "train").size(), 8000u);
  EXPECT_EQ(mnist::load_dataset(MNIST_DATA, "test").size(), 2000u);
}

}  // namespace
