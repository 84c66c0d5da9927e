// The MNIST images: IDX files, and who trains on which of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace mnist {

inline constexpr std::size_t kImageSide = 28;
inline constexpr std::size_t kImagePixels = kImageSide * kImageSide;
inline constexpr std::size_t kClasses = 10;

/// Labelled grey images, as they are in the files.
struct Dataset {
  std::vector<std::uint8_t> pixels;  ///< [size(), 28, 28], 0 is background
  std::vector<std::uint8_t> labels;  ///< [size()], 0..9
  std::size_t size() const noexcept { return labels.size(); }
};

/// Reads an IDX file of images, or of labels, gzipped or plain. Throws tersum::Error: System if it
/// cannot be read, InvalidArgument if it is not what it should be (magic, image size, label range,
/// truncated, bytes left over); the message names the file.
std::vector<std::uint8_t> read_images(const std::filesystem::path& file);
std::vector<std::uint8_t> read_labels(const std::filesystem::path& file);

/// Reads "<part>-images-idx3-ubyte" and "<part>-labels-idx1-ubyte", with or without ".gz", from
/// `directory`. `part` is "train" or "test" (the latter is found under its original name "t10k",
/// too). `limit`: keep the first so many images; 0: all. Throws tersum::Error as above, and
/// InvalidArgument if files are missing, if there are not as many labels as images, or fewer images
/// than `limit`.
Dataset load_dataset(const std::filesystem::path& directory, const std::string& part,
                     std::size_t limit = 0);

/// Copies the images with these `indices` into `images` ([indices.size(), 28, 28], normalised to
/// about mean 0 and variance 1) and their labels into `labels` ([indices.size()]).
void copy_batch(const Dataset& dataset, std::span<const std::uint32_t> indices,
                std::span<float> images, std::span<std::uint8_t> labels);

/// As copy_batch(), for training: each image is moved by -1, 0 or 1 pixel in both directions, which
/// makes up for the small number of images. How depends on (seed, epoch, index of the image) only.
void copy_moved_batch(const Dataset& dataset, std::span<const std::uint32_t> indices,
                      std::uint64_t seed, std::uint64_t epoch, std::span<float> images,
                      std::span<std::uint8_t> labels);

/// The order in which the job walks through `count` images in `epoch`: a permutation that depends
/// on (count, seed, epoch) only, so every rank and every platform computes the same.
std::vector<std::uint32_t> epoch_order(std::size_t count, std::uint64_t seed, std::uint64_t epoch);

/// One rank's part of one step: the global batch is the next batch * size entries of `order`, and
/// rank r takes the r-th `batch` of them. step < order.size() / (batch * size); what remains after
/// the last whole global batch is left out of this epoch.
std::span<const std::uint32_t> shard(std::span<const std::uint32_t> order, std::size_t step,
                                     std::size_t batch, int rank, int size);

}  // namespace mnist
