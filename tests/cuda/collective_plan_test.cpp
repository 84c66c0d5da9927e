// What the host decides about collectives. Needs no GPU.
#include "cuda/collective_plan.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>

#include "tersum/error.hpp"

namespace tersum::gpu {
namespace {

constexpr std::size_t kKiB = 1024, kMiB = 1024 * kKiB, kGiB = 1024 * kMiB;

TEST(CollectivePlan, PairsGoFromPacketsOverLinesToCopyEngines) {
  const AlgorithmTable table = complete_settings({}, 2).table;
  EXPECT_EQ(choose_all_reduce(table, 1, 2), Algorithm::Packets);
  EXPECT_EQ(choose_all_reduce(table, kMiB, 2), Algorithm::Lines);
  EXPECT_EQ(choose_all_reduce(table, kGiB, 2), Algorithm::CopyEngines);
  EXPECT_EQ(choose_exchange(table, kMiB), Algorithm::Lines);
  EXPECT_EQ(choose_exchange(table, kGiB), Algorithm::CopyEngines);
}

TEST(CollectivePlan, PairsWithoutCopyEnginesPush) {
  PeerSettings settings;
  settings.copy_engines = false;
  const AlgorithmTable table = complete_settings(settings, 2).table;
  EXPECT_EQ(choose_all_reduce(table, kGiB, 2), Algorithm::Push);
  EXPECT_EQ(choose_exchange(table, kGiB), Algorithm::Push);
}

TEST(CollectivePlan, MoreRanksReduceInTwoSteps) {
  for (int size = 3; size <= kMaxPeers; ++size) {
    const AlgorithmTable table = complete_settings({}, size).table;
    EXPECT_EQ(choose_all_reduce(table, 1, size), Algorithm::Packets);
    EXPECT_EQ(choose_all_reduce(table, 64 * kKiB, size), Algorithm::PacketsTwoShot);
    EXPECT_EQ(choose_all_reduce(table, kMiB, size), Algorithm::LinesTwoShot);
    EXPECT_EQ(choose_all_reduce(table, kGiB, size), Algorithm::PushTwoShot);
    EXPECT_EQ(choose_exchange(table, kGiB), Algorithm::Push);
  }
}

TEST(CollectivePlan, PairsHaveNoSecondStepOfCells) {
  for (const int size : {1, 2, 3}) {
    const bool pair = size <= 2;
    EXPECT_EQ(without_idle_step(Algorithm::PacketsTwoShot, size),
              pair ? Algorithm::Packets : Algorithm::PacketsTwoShot);
    EXPECT_EQ(without_idle_step(Algorithm::LinesTwoShot, size),
              pair ? Algorithm::Lines : Algorithm::LinesTwoShot);
    EXPECT_EQ(without_idle_step(Algorithm::PushTwoShot, size), Algorithm::PushTwoShot);
    AlgorithmTable table;
    table.packets_two_shot_bytes = kKiB;
    EXPECT_EQ(choose_all_reduce(table, kKiB, size),
              pair ? Algorithm::Packets : Algorithm::PacketsTwoShot);
  }
}

TEST(CollectivePlan, TablesKeepWithinWhatTheirFormsHold) {
  for (int size = 1; size <= kMaxPeers; ++size) {
    const AlgorithmTable table = complete_settings({}, size).table;
    EXPECT_LE(table.packets_bytes, kPacketCapacity);
    EXPECT_LE(share_bytes(table.packets_two_shot_bytes, size), kPacketCapacity);
    EXPECT_LE(table.lines_bytes, line_capacity(size));
  }
}

TEST(CollectivePlan, RefusesSettingsOutOfRange) {
  const auto refuses = [](auto change) {
    PeerSettings settings;
    change(settings);
    EXPECT_THROW(complete_settings(settings, 2), Error);
  };
  refuses([](PeerSettings& s) { s.table.packets_bytes = kPacketCapacity + 1; });
  refuses([](PeerSettings& s) { s.table.packets_two_shot_bytes = kPacketCapacity + 1; });
  refuses([](PeerSettings& s) { s.table.lines_bytes = line_capacity(2) + 1; });
  refuses([](PeerSettings& s) { s.timeout = std::chrono::milliseconds(-1); });
  refuses([](PeerSettings& s) { s.cell_blocks = kMaxBlocks + 1; });
  refuses([](PeerSettings& s) { s.push_blocks = kMaxBlocks + 1; });
  refuses([](PeerSettings& s) { s.slots = 0; });
  refuses([](PeerSettings& s) { s.staging_bytes = 100; });
  refuses([](PeerSettings& s) { s.staging_blocks = 0; });
}

TEST(CollectivePlan, PartsOfAnArenaDoNotMeet) {
  for (int size = 1; size <= kMaxPeers; ++size) {
    const PeerSettings settings = complete_settings({}, size);
    Group group{};
    const std::size_t bytes = lay_out(group, settings, 0, size);
    const auto end_of = [&](const Inboxes& boxes) {
      return boxes.offset + 2 * boxes.phases * static_cast<std::uint64_t>(size) * boxes.bytes;
    };
    EXPECT_GE(group.packets.offset, sizeof(Board));
    EXPECT_GE(group.lines.offset, end_of(group.packets));
    EXPECT_GE(group.queue_offset, end_of(group.lines));
    EXPECT_EQ(group.lines.offset % 128, 0u) << "a line is what lies together in memory";
    const std::uint64_t queues_end = group.queue_offset + std::uint64_t{kMaxBlocks} *
                                                              static_cast<std::uint64_t>(size) *
                                                              group.slots * group.slot_bytes;
    EXPECT_GE(bytes, queues_end);
    if (size != 2) continue;
    EXPECT_GE(group.staging_offset, queues_end);
    EXPECT_EQ(bytes, group.staging_offset + settings.staging_bytes);
  }
}

TEST(CollectivePlan, PiecesCoverARunOnce) {
  const PieceShape shape{100, 0};
  for (const std::uint64_t bytes : {0ul, 1ul, 99ul, 100ul, 101ul, 200ul, 1000ul}) {
    std::uint64_t at = 0;
    for (std::uint32_t index = 0; index < shape.count(bytes); ++index) {
      const Range piece = shape.piece(bytes, index);
      EXPECT_EQ(piece.offset, at);
      EXPECT_GT(piece.bytes, 0u);
      at += piece.bytes;
    }
    EXPECT_EQ(at, bytes);
    EXPECT_EQ(shape.piece(bytes, shape.count(bytes)).bytes, 0u);
  }
}

TEST(CollectivePlan, HeadsAreASmallPartOfAPiece) {
  constexpr std::uint64_t kUnit = 64 * 1024;
  const PieceShape shape{256 * kUnit, 8 * kUnit};
  EXPECT_EQ(shape.head(0), 0u);
  EXPECT_EQ(shape.head(8 * kUnit - 1), 0u) << "an eighth that is no whole unit";
  EXPECT_EQ(shape.head(8 * kUnit), kUnit);
  EXPECT_EQ(shape.head(25 * kUnit), 3 * kUnit);
  EXPECT_EQ(shape.head(256 * kUnit), 8 * kUnit) << "what was asked for";
  EXPECT_EQ((PieceShape{256 * kUnit, 0}).head(256 * kUnit), 0u);
}

TEST(CollectivePlan, SharesCoverATensorOnce) {
  for (const std::uint64_t bytes : {1ul, 17ul, 4096ul, 1'000'003ul}) {
    for (int size = 1; size <= kMaxPeers; ++size) {
      std::uint64_t at = 0;
      for (int rank = 0; rank < size; ++rank) {
        const Range share = share_of(bytes, share_bytes(bytes, size), rank);
        EXPECT_EQ(share.offset, at);
        at += share.bytes;
      }
      EXPECT_EQ(at, bytes);
    }
  }
}

}  // namespace
}  // namespace tersum::gpu
