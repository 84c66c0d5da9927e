// Posted receives × kept arrivals, without a transport around them.
#include "transport/matcher.hpp"

#include <algorithm>
#include <deque>
#include <map>
#include <random>

#include "transport/support.hpp"

namespace tersum::transport::testing {
namespace {

TEST(MatchTable, KeepsOrderByKeyWhileItGrows) {
  MatchTable table;
  std::vector<MatchEntry> entries(1000);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    entries[i].peer = static_cast<int>(i % 3);
    entries[i].key = envelope(i % 7).key;
    table.push(entries[i]);
  }
  EXPECT_EQ(table.size(), entries.size());
  for (std::size_t i = 0; i < entries.size(); ++i) {
    MatchEntry* found = table.find(static_cast<int>(i % 3), envelope(i % 7).key);
    ASSERT_EQ(found, &entries[i]);
    table.remove(*found);
  }
  EXPECT_TRUE(table.empty());
  EXPECT_EQ(table.first(), nullptr);
}

TEST(MatchTable, RemovesFromTheMiddle) {
  MatchTable table;
  std::vector<MatchEntry> entries(5);
  for (MatchEntry& entry : entries) {
    entry.peer = 1;
    table.push(entry);
  }
  table.remove(entries[2]);
  table.remove(entries[0]);
  table.remove(entries[4]);
  EXPECT_EQ(table.find(1, Key{}), &entries[1]);
  EXPECT_EQ(table.first(), &entries[1]);
  EXPECT_EQ(entries[1].next, &entries[3]);
  table.push(entries[0]);
  table.remove(entries[1]);
  EXPECT_EQ(table.find(1, Key{}), &entries[3]);
  EXPECT_EQ(table.find(0, Key{}), nullptr);
}

TEST(Pool, GivesBackWhatItGot) {
  Pool<int> pool;
  int& first = pool.take();
  int& second = pool.take();
  EXPECT_NE(&first, &second);
  EXPECT_EQ(pool.taken(), 2u);
  pool.give(first);
  EXPECT_EQ(&pool.take(), &first);
  EXPECT_EQ(pool.taken(), 2u);
}

/// Random posts, arrivals and withdrawals against queues of the standard library.
TEST(Matcher, AgreesWithASimpleModel) {
  Matcher matcher;
  std::mt19937_64 random(7);
  struct Model {
    std::deque<std::size_t> posted, kept;
  };
  std::map<std::pair<int, std::uint64_t>, Model> model;
  std::deque<TestRequest> requests;
  std::deque<Arrival> arrivals;
  std::map<Request*, std::size_t> request_number;
  std::map<Arrival*, std::size_t> arrival_number;
  for (int step = 0; step < 20'000; ++step) {
    const int peer = static_cast<int>(random() % 4);
    const std::uint64_t operation = random() % 50;
    Model& queue = model[{peer, operation}];
    const Key key = envelope(operation).key;
    switch (random() % 5) {
      case 0:
      case 1: {
        requests.emplace_back();
        request_number[&requests.back()] = requests.size();
        Arrival* arrival = matcher.post(peer, key, {}, requests.back());
        if (queue.kept.empty()) {
          ASSERT_EQ(arrival, nullptr);
          queue.posted.push_back(requests.size());
        } else {
          ASSERT_NE(arrival, nullptr);
          ASSERT_EQ(arrival_number[arrival], queue.kept.front());
          queue.kept.pop_front();
        }
        break;
      }
      case 2:
      case 3: {
        ASSERT_EQ(matcher.has_posted(peer, key), !queue.posted.empty());
        const Matcher::Match match = matcher.match(peer, key);
        if (!queue.posted.empty()) {
          ASSERT_NE(match.request, nullptr);
          ASSERT_EQ(request_number[match.request], queue.posted.front());
          queue.posted.pop_front();
          break;
        }
        ASSERT_EQ(match.request, nullptr);
        arrivals.emplace_back();
        arrivals.back().peer = peer;
        arrivals.back().key = key;
        matcher.keep(arrivals.back());
        arrival_number[&arrivals.back()] = arrivals.size();
        queue.kept.push_back(arrivals.size());
        break;
      }
      default: {
        if (queue.posted.empty()) break;
        const std::size_t at = random() % queue.posted.size();
        TestRequest& request = requests[queue.posted[at] - 1];
        ASSERT_TRUE(matcher.withdraw(request));
        ASSERT_FALSE(matcher.withdraw(request));
        queue.posted.erase(queue.posted.begin() + static_cast<std::ptrdiff_t>(at));
      }
    }
  }
  std::size_t posted = 0, kept = 0, withdrawn = 0, released = 0;
  for (const auto& [key, queue] : model) {
    posted += queue.posted.size();
    kept += queue.kept.size();
  }
  EXPECT_GT(posted + kept, 0u);
  EXPECT_EQ(matcher.posted(), posted);
  EXPECT_EQ(matcher.kept(), kept);
  matcher.withdraw_if([](int peer, const Key&) { return peer != 2; },
                      [&](Request&) { ++withdrawn; });
  matcher.release_if([](const Arrival& arrival) { return arrival.peer != 2; },
                     [&](Arrival&) { ++released; });
  for (const auto& [key, queue] : model) {
    if (key.first == 2) continue;
    withdrawn -= queue.posted.size();
    released -= queue.kept.size();
  }
  EXPECT_EQ(withdrawn, 0u);
  EXPECT_EQ(released, 0u);
}

TEST(CompletionQueue, DeliversOnlyWhatWasQueuedBefore) {
  CompletionQueue queue;
  struct Again : TestRequest {
    CompletionQueue* queue = nullptr;
    void on_complete(const Status& how, std::size_t count) override {
      TestRequest::on_complete(how, count);
      if (calls < 3) queue->push(*this, how, count + 1);
    }
  } request;
  request.queue = &queue;
  EXPECT_FALSE(queue.deliver());
  queue.push(request, Status::ok(), 5);
  EXPECT_EQ(request.calls, 0);
  EXPECT_TRUE(queue.deliver());
  EXPECT_EQ(request.calls, 1);
  EXPECT_TRUE(queue.deliver());
  EXPECT_TRUE(queue.deliver());
  EXPECT_EQ(request.bytes, 7u);
  EXPECT_FALSE(queue.deliver());
}

}  // namespace
}  // namespace tersum::transport::testing
