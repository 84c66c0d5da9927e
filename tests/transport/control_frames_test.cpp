// The control plane's words on the wire: known digests, round trips, and bytes that are nonsense.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "transport/control_frames.hpp"
#include "transport/control_text.hpp"
#include "transport/network_interfaces.hpp"

namespace tersum::transport::control {
namespace {

Bytes hex(const std::string& text) {
  Bytes bytes;
  for (std::size_t i = 0; i < text.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoi(text.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

Bytes bytes_of(const std::string& text) {
  const ByteView view = as_bytes(text);
  return {view.begin(), view.end()};
}

Hello sample_hello() {
  Hello hello;
  hello.job = "job";
  hello.rank = 3;
  hello.size = 7;
  hello.nonce = random_nonce();
  hello.patience = std::chrono::milliseconds(1234);
  hello.settings = "A=1\n";
  hello.member = {"host", bytes_of("address")};
  return hello;
}

TEST(Hmac, MatchesTheVectorsOfRfc4231) {
  const auto digest = [](ByteView key, ByteView data) {
    const Digest result = hmac_sha256(key, {data});
    return Bytes(result.begin(), result.end());
  };
  EXPECT_EQ(digest(Bytes(20, std::byte{0x0b}), bytes_of("Hi There")),
            hex("b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"));
  EXPECT_EQ(digest(bytes_of("Jefe"), bytes_of("what do ya want for nothing?")),
            hex("5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"));
  EXPECT_EQ(digest(Bytes(131, std::byte{0xaa}),
                   bytes_of("Test Using Larger Than Block-Size Key - Hash Key First")),
            hex("60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"));
}

TEST(Hmac, OfPartsIsThatOfTheirConcatenation) {
  const Bytes key = bytes_of("key");
  EXPECT_EQ(hmac_sha256(key, {as_bytes("ab"), as_bytes(""), as_bytes("c")}),
            hmac_sha256(key, {as_bytes("abc")}));
}

TEST(Hmac, ComparesContentsAndLengths) {
  EXPECT_TRUE(equal_in_constant_time(as_bytes("abc"), as_bytes("abc")));
  EXPECT_FALSE(equal_in_constant_time(as_bytes("abc"), as_bytes("abd")));
  EXPECT_FALSE(equal_in_constant_time(as_bytes("abc"), as_bytes("ab")));
  EXPECT_NE(random_nonce(), random_nonce());
}

TEST(Frames, HelloComesBackAndIsBoundToKeyNonceAndContents) {
  const Hello hello = sample_hello();
  const Bytes key = join_key("secret", "job");
  const Nonce server = random_nonce();
  Bytes body = encode(hello, key, server);
  const Hello back = decode_hello(body);
  EXPECT_EQ(back.job, hello.job);
  EXPECT_EQ(back.rank, hello.rank);
  EXPECT_EQ(back.size, hello.size);
  EXPECT_EQ(back.nonce, hello.nonce);
  EXPECT_EQ(back.patience, hello.patience);
  EXPECT_EQ(back.settings, hello.settings);
  EXPECT_EQ(back.member.host_id, hello.member.host_id);
  EXPECT_EQ(back.member.address, hello.member.address);
  EXPECT_TRUE(is_authentic(body, key, server));
  EXPECT_FALSE(is_authentic(body, join_key("other", "job"), server));
  EXPECT_FALSE(is_authentic(body, key, random_nonce()));
  for (std::size_t i = 0; i < body.size(); ++i) {
    body[i] ^= std::byte{1};
    EXPECT_FALSE(is_authentic(body, key, server)) << i;
    body[i] ^= std::byte{1};
  }
}

TEST(Frames, KeyIsTheSecretOrElseTheJobsName) {
  EXPECT_EQ(join_key("s", "a"), join_key("s", "b"));
  EXPECT_NE(join_key("", "a"), join_key("", "b"));
}

TEST(Frames, StatusKeepsCodeRankMessageAndOrigin) {
  const Status status(Code::PeerLost, "rank 2 died", "rank 0, all_reduce #12", 2);
  const Status back = decode_status(encode(status));
  EXPECT_EQ(back.to_string(), status.to_string());
  EXPECT_EQ(back.rank(), 2);
  const Status huge(Code::Internal, std::string(kMaxMessageBytes + 5, 'x'));
  EXPECT_EQ(decode_status(encode(huge)).message().size(), kMaxMessageBytes);
  EXPECT_THROW(static_cast<void>(decode_status(encode(Status{}))), Error);  // Ok is no cause
}

TEST(Frames, TableAndListsAndCountsComeBack) {
  const std::vector<Member> members = {{"a", bytes_of("1")}, {"", {}}, {"c", Bytes(60000)}};
  const auto back = decode_table(encode(members), 3);
  ASSERT_EQ(back.size(), 3u);
  EXPECT_EQ(back[0].host_id, "a");
  EXPECT_EQ(back[2].address.size(), 60000u);
  EXPECT_THROW(decode_table(encode(members), 2), Error);
  EXPECT_THAT(decode_ranks(encode(std::vector<int>{4, 0}), 5), ::testing::ElementsAre(4, 0));
  EXPECT_THROW(decode_ranks(encode(std::vector<int>{5}), 5), Error);
  EXPECT_THROW(decode_ranks(encode(std::vector<int>{-1}), 5), Error);
  EXPECT_THROW(decode_ranks(encode(std::vector<int>{0, 0}), 1), Error);
  EXPECT_EQ(decode_count(encode_count(0x123456789abcdefull)), 0x123456789abcdefull);
  EXPECT_EQ(decode_accepted(encode(Accepted{-5})).clock_ns, -5);
}

TEST(Frames, LargestTableAndHelloFitTheirCaps) {
  Hello hello = sample_hello();
  hello.job.assign(kMaxNameBytes, 'j');
  hello.settings.assign(kMaxSettingsBytes, 's');
  hello.member = {std::string(kMaxNameBytes, 'h'), Bytes(kMaxAddressBytes)};
  const Bytes body = encode(hello, join_key("s", ""), random_nonce());
  EXPECT_LT(body.size() + 1, kHelloCap);
  EXPECT_EQ(decode_hello(body).settings.size(), kMaxSettingsBytes);
  EXPECT_LT(encode(std::vector<Member>(4, hello.member)).size() + 1 + kTagBytes, table_cap(4));
}

TEST(Frames, EveryTruncationAndExtensionIsRefused) {
  const Bytes key = join_key("secret", "job");
  const auto refuses = [](const Bytes& good, const auto& decode) {
    for (std::size_t length = 0; length < good.size(); ++length) {
      EXPECT_THROW(static_cast<void>(decode(ByteView(good).first(length))), Error) << length;
    }
    Bytes longer = good;
    longer.push_back(std::byte{0});
    EXPECT_THROW(static_cast<void>(decode(ByteView(longer))), Error);
  };
  refuses(encode(Greeting{}), decode_greeting);
  refuses(encode(sample_hello(), key, random_nonce()), decode_hello);
  refuses(encode(Refusal::Job), decode_refusal);
  refuses(encode(Accepted{7}), decode_accepted);
  refuses(encode(Status(Code::Timeout, "slow", "here", 1)), decode_status);
  refuses(encode_count(9), decode_count);
  refuses(encode(std::vector<int>{1, 2}), [](ByteView body) { return decode_ranks(body, 4); });
  refuses(encode(std::vector<Member>{{"a", bytes_of("b")}, {"c", {}}}),
          [](ByteView body) { return decode_table(body, 2); });
}

TEST(Frames, RandomBytesNeverDoWorseThanAnError) {
  std::mt19937_64 random(20240607);
  const auto try_all = [](ByteView body) {
    const auto attempt = [&](const auto& decode) {
      try {
        static_cast<void>(decode(body));
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), Code::Protocol);
      }
    };
    attempt(decode_greeting);
    attempt(decode_hello);
    attempt(decode_refusal);
    attempt(decode_accepted);
    attempt(decode_status);
    attempt(decode_count);
    attempt([](ByteView b) { return decode_ranks(b, 4); });
    attempt([](ByteView b) { return decode_table(b, 2); });
    is_authentic(body, join_key("s", ""), Nonce{});
  };
  const Bytes good = encode(sample_hello(), join_key("s", ""), random_nonce());
  for (int i = 0; i < 5000; ++i) {
    Bytes noise(random() % 200);
    for (std::byte& byte : noise) byte = static_cast<std::byte>(random());
    try_all(noise);
    Bytes damaged = good;
    for (int flips = 0; flips < 3; ++flips) {
      damaged[random() % damaged.size()] = static_cast<std::byte>(random());
    }
    try_all(damaged);
  }
}

TEST(FrameSplitter, FindsFramesHoweverTheBytesArrive) {
  Bytes stream;
  for (const std::string text : {"", "a", "longer than the others", "x"}) {
    stream.push_back(static_cast<std::byte>(text.size() + 1));
    for (int i = 0; i < 3; ++i) stream.push_back(std::byte{0});
    stream.push_back(std::byte{0x13});
    for (const char c : text) stream.push_back(static_cast<std::byte>(c));
  }
  for (std::size_t step = 1; step <= stream.size(); ++step) {
    FrameSplitter splitter(100);
    std::vector<std::size_t> sizes;
    for (std::size_t at = 0; at < stream.size(); at += step) {
      splitter.append(ByteView(stream).subspan(at, std::min(step, stream.size() - at)));
      while (const auto frame = splitter.next()) {
        EXPECT_EQ(frame->type, FrameType::Heartbeat);
        sizes.push_back(frame->rest.size());
      }
    }
    EXPECT_THAT(sizes, ::testing::ElementsAre(0, 1, 22, 1));
    EXPECT_FALSE(splitter.has_bytes());
  }
}

TEST(FrameSplitter, RefusesALengthAsSoonAsItIsKnown) {
  FrameSplitter splitter(10);
  splitter.append(hex("0b0000"));
  EXPECT_FALSE(splitter.next());
  splitter.append(hex("00"));
  EXPECT_THROW(splitter.next(), Error);
  FrameSplitter empty(10);
  empty.append(hex("00000000"));
  EXPECT_THROW(empty.next(), Error);
  FrameSplitter exact(10);
  exact.append(hex("0a000000130102030405060708090a"));
  EXPECT_TRUE(exact.next());
}

TEST(FrameSplitter, SurvivesRandomStreams) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 2000; ++i) {
    FrameSplitter splitter(64);
    try {
      for (int j = 0; j < 20; ++j) {
        Bytes noise(random() % 40);
        for (std::byte& byte : noise) byte = static_cast<std::byte>(random() % 3 ? 0 : random());
        splitter.append(noise);
        while (const auto frame = splitter.next()) EXPECT_LT(frame->rest.size(), 64u);
      }
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::Protocol);
    }
  }
}

TEST(Seal, DiffersByNumberDirectionTypeBodyAndKey) {
  const Digest key = session_key(as_bytes("k"), Nonce{}, Nonce{});
  Seal server(key, Seal::Direction::FromServer);
  Seal client(key, Seal::Direction::FromClient);
  const auto first = server.next(FrameType::Heartbeat, {});
  EXPECT_NE(first, client.next(FrameType::Heartbeat, {}));
  EXPECT_NE(first, server.next(FrameType::Heartbeat, {}));
  Seal again(key, Seal::Direction::FromServer);
  EXPECT_NE(first, again.next(FrameType::Left, {}));
  Seal body(key, Seal::Direction::FromServer);
  EXPECT_NE(first, body.next(FrameType::Heartbeat, as_bytes("x")));
  Seal same(key, Seal::Direction::FromServer);
  EXPECT_EQ(first, same.next(FrameType::Heartbeat, {}));
  Seal other(session_key(as_bytes("k"), random_nonce(), Nonce{}), Seal::Direction::FromServer);
  EXPECT_NE(first, other.next(FrameType::Heartbeat, {}));
}

TEST(SettingsDifference, NamesLinesWithBothViewsInOrder) {
  EXPECT_EQ(settings_difference("A=1\nB=2\n", "A=1\nB=2\n", 3), "");
  EXPECT_EQ(settings_difference("A=1\nB=2\n", "A=1\nB=3\n", 3),
            "B differs: rank 0 has '2', rank 3 has '3'");
  EXPECT_EQ(settings_difference("A=1\nB=x=y", "B=\nC=5", 1),
            "A differs: rank 0 has '1', rank 1 does not know it; "
            "B differs: rank 0 has 'x=y', rank 1 has ''; "
            "C differs: rank 0 does not know it, rank 1 has '5'");
}

TEST(ControlText, ShowsDurationsRanksAndEndpoints) {
  EXPECT_EQ(duration_text(std::chrono::milliseconds(60000)), "60 s");
  EXPECT_EQ(duration_text(std::chrono::milliseconds(1500)), "1500 ms");
  EXPECT_EQ(name_ranks({2}, 4), "rank 2 of 4");
  EXPECT_EQ(name_ranks({2, 3}, 4), "ranks 2, 3 of 4");
  std::vector<int> many(20);
  EXPECT_THAT(name_ranks(many, 64), ::testing::HasSubstr("and 4 more of 64"));
  EXPECT_EQ(endpoint_text("h", 5), "h:5");
  EXPECT_EQ(endpoint_text("::1", 5), "[::1]:5");
}

}  // namespace
}  // namespace tersum::transport::control
