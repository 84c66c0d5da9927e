// What a peer may put on the wire: messages that overtook each other, repeats and garbage, sent
// through bare UCX.
#include <cstring>

#include "transport/support.hpp"
#include "transport/ucx_context.hpp"
#include "transport/ucx_message.hpp"

namespace tersum::transport::testing {
namespace {

/// Rank 0 is a transport; rank 1 is a bare UCX worker that sends what the test likes.
class UcxWire : public ::testing::Test {
 protected:
  UcxWire() {
    const std::vector<std::byte> own = transport_->address();
    // A transport's address: what Tersum says of it, then UCX's own words. Rank 1 borrows the
    // former.
    std::vector<std::byte> worker = bare_.address();
    const std::size_t said = own.size() - bare_.address().size();
    std::vector<std::byte> address(own.begin(), own.begin() + static_cast<std::ptrdiff_t>(said));
    address.insert(address.end(), worker.begin(), worker.end());
    transport_->connect(0, {own, address}, listener_);
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
    params.address = reinterpret_cast<const ucp_address_t*>(own.data() + said);
    params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    if (ucp_ep_create(bare_.worker(), &params, &endpoint_) != UCS_OK) {
      throw Error(Code::System, "no endpoint to the transport");
    }
  }
  ~UcxWire() override {
    transport_->close(std::chrono::milliseconds(0));
    for (void* request : requests_) ucp_request_free(request);
  }

  static WireHeader header(std::uint64_t sequence, std::uint64_t operation = 1) {
    WireHeader made;
    made.source = 1;
    made.sequence = sequence;
    made.envelope = envelope(operation);
    return made;
  }

  /// `header` must stay as it is until the message has arrived.
  void send(const WireHeader& header, const std::vector<std::byte>& data,
            std::size_t header_bytes = sizeof(WireHeader)) {
    const ucp_request_param_t param{};
    void* request = ucp_am_send_nbx(endpoint_, kMessageId, &header, header_bytes, data.data(),
                                    data.size(), &param);
    ASSERT_FALSE(UCS_PTR_IS_ERR(request));
    if (request != nullptr) requests_.push_back(request);
  }

  ::testing::AssertionResult pump(const std::function<bool()>& done) {
    const auto hang = std::chrono::steady_clock::now() + kHang;
    while (!done()) {
      transport_->progress();
      ucp_worker_progress(bare_.worker());
      if (std::chrono::steady_clock::now() > hang) {
        return ::testing::AssertionFailure() << "it does not end";
      }
    }
    return ::testing::AssertionSuccess();
  }
  /// Moves both sides far longer than a message takes.
  void settle() {
    for (int i = 0; i < 20'000; ++i) {
      transport_->progress();
      ucp_worker_progress(bare_.worker());
    }
  }

  UcxOptions options_{.transports = "tcp", .interface = {}};
  UcxContext bare_{options_};
  TestListener listener_;
  std::unique_ptr<Transport> transport_ = make_ucx_transport(options_);
  ucp_ep_h endpoint_ = nullptr;
  std::vector<void*> requests_;
};

TEST_F(UcxWire, MessagesThatOvertookEachOtherAreDeliveredInTheOrderOfTheirSending) {
  // Small (eager) and large (rendezvous) ones, in an order that only a sequence number can mend.
  const std::vector<std::size_t> order = {3, 1, 5, 4, 0, 2};
  std::vector<WireHeader> headers;
  std::vector<std::vector<std::byte>> data, into;
  std::vector<TestRequest> receives(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    headers.push_back(header(i));
    data.push_back(pattern(i % 2 == 0 ? 100 + i : 500'000 + i, i));
    into.emplace_back(data[i].size());
    if (i < 4) transport_->post_receive(1, envelope(1).key, room(into[i]), receives[i]);
  }
  for (std::size_t k = 0; k < 4; ++k) send(headers[order[k]], data[order[k]]);
  settle();
  EXPECT_TRUE(listener_.arrivals.empty()) << "the first message has not come yet";
  for (std::size_t k = 4; k < 6; ++k) send(headers[order[k]], data[order[k]]);
  ASSERT_TRUE(pump([&] { return listener_.arrivals.size() == 6; }));
  for (std::size_t i = 4; i < 6; ++i) {
    transport_->post_receive(1, envelope(1).key, room(into[i]), receives[i]);
  }
  ASSERT_TRUE(pump([&] {
    for (const TestRequest& receive : receives) {
      if (!receive.done()) return false;
    }
    return true;
  }));
  for (std::size_t i = 0; i < order.size(); ++i) {
    EXPECT_EQ(listener_.arrivals[i].bytes, data[i].size());
    EXPECT_TRUE(receives[i].status.is_ok()) << receives[i].status.to_string();
    EXPECT_EQ(into[i], data[i]) << i;
  }
}

TEST_F(UcxWire, GarbageIsDroppedAndHarmsNobody) {
  const auto data = pattern(50, 1), large = pattern(400'000, 2);
  std::vector<WireHeader> bad(7, header(0));
  bad[0].magic ^= 1;
  bad[1].version += 1;
  bad[2].source = 2;  // no such rank
  bad[3].source = 0;  // the receiver itself
  bad[4].kind = static_cast<WireHeader::Kind>(200);
  bad[5].source = 0xffffffffu;
  for (const WireHeader& head : bad) {
    if (&head == &bad[6]) continue;
    send(head, data);
    send(head, large);
  }
  send(bad[6], data, sizeof(WireHeader) - 1);
  send(bad[6], large, 0);
  settle();
  EXPECT_TRUE(listener_.arrivals.empty());

  const WireHeader good = header(0), next = header(1);
  std::vector<std::byte> into(50);
  TestRequest receive, second;
  transport_->post_receive(1, envelope(1).key, room(into), receive);
  send(good, data);
  send(good, large);  // the same number again
  send(next, data);
  ASSERT_TRUE(pump([&] { return receive.done() && listener_.arrivals.size() == 2; }));
  EXPECT_EQ(into, data);
  transport_->post_receive(1, envelope(1).key, room(into), second);
  ASSERT_TRUE(pump([&] { return second.done(); }));
  EXPECT_TRUE(second.status.is_ok());
  EXPECT_TRUE(listener_.failures.empty());
}

TEST_F(UcxWire, WhatOvertookALostMessageIsReleasedInTheEnd) {
  const WireHeader early = header(5);
  const auto large = pattern(400'000, 2);
  TestRequest receive;
  send(early, large);
  transport_->post_receive(1, envelope(1).key, {}, receive);
  settle();
  transport_->disconnect(1, {Code::Timeout, "too slow", {}, 1});
  ASSERT_TRUE(pump([&] { return receive.done(); }));
  EXPECT_EQ(receive.status.code(), Code::Timeout);
  EXPECT_TRUE(listener_.arrivals.empty());
}

}  // namespace
}  // namespace tersum::transport::testing
