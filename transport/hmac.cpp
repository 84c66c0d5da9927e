#include "transport/hmac.hpp"

#include <memory>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <openssl/rand.h>

#include "tersum/error.hpp"

namespace tersum::transport::control {
namespace {

struct ContextDeleter {
  void operator()(EVP_MAC_CTX* context) const noexcept { EVP_MAC_CTX_free(context); }
};

// Fetched once: the look-up among OpenSSL's providers costs more than a short digest.
EVP_MAC* hmac_method() {
  static EVP_MAC* const method = EVP_MAC_fetch(nullptr, "HMAC", nullptr);
  return method;
}

[[noreturn]] void refuse(const char* what) {
  throw Error(Code::System, std::string("OpenSSL cannot compute ") + what);
}

const unsigned char* raw(ByteView bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

}  // namespace

Digest hmac_sha256(ByteView key, std::initializer_list<ByteView> parts) {
  std::unique_ptr<EVP_MAC_CTX, ContextDeleter> context(EVP_MAC_CTX_new(hmac_method()));
  if (!context) refuse("HMAC");
  char digest_name[] = "SHA256";
  const OSSL_PARAM parameters[] = {OSSL_PARAM_construct_utf8_string("digest", digest_name, 0),
                                   OSSL_PARAM_construct_end()};
  if (EVP_MAC_init(context.get(), raw(key), key.size(), parameters) != 1) refuse("HMAC-SHA256");
  for (const ByteView part : parts) {
    if (!part.empty() && EVP_MAC_update(context.get(), raw(part), part.size()) != 1) {
      refuse("HMAC-SHA256");
    }
  }
  Digest digest;
  std::size_t length = 0;
  if (EVP_MAC_final(context.get(), reinterpret_cast<unsigned char*>(digest.data()), &length,
                    digest.size()) != 1 ||
      length != digest.size()) {
    refuse("HMAC-SHA256");
  }
  return digest;
}

bool equal_in_constant_time(ByteView a, ByteView b) noexcept {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

Nonce random_nonce() {
  Nonce nonce;
  if (RAND_bytes(reinterpret_cast<unsigned char*>(nonce.data()), static_cast<int>(nonce.size())) !=
      1) {
    refuse("random numbers");
  }
  return nonce;
}

}  // namespace tersum::transport::control
