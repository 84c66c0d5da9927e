#include "transport/network_interfaces.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <set>

#include "tersum/error.hpp"

namespace tersum::transport::control {
namespace {

using boost::asio::ip::address;
using boost::asio::ip::tcp;

tcp::endpoint to_endpoint(const sockaddr* source) {
  tcp::endpoint endpoint;
  const std::size_t bytes =
      source->sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  std::memcpy(endpoint.data(), source, bytes);
  endpoint.resize(bytes);
  return endpoint;
}

bool is_internet(const sockaddr* source) {
  return source && (source->sa_family == AF_INET || source->sa_family == AF_INET6);
}

}  // namespace

std::vector<address> interface_addresses(const std::string& interface) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) {
    throw Error(Code::System,
                std::string("cannot list the network interfaces: ") + std::strerror(errno));
  }
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, ::freeifaddrs);
  std::vector<address> found;
  std::set<std::string> names;
  for (const ifaddrs* entry = list; entry; entry = entry->ifa_next) {
    if (!is_internet(entry->ifa_addr)) continue;
    names.insert(entry->ifa_name);
    if (interface == entry->ifa_name) found.push_back(to_endpoint(entry->ifa_addr).address());
  }
  if (found.empty()) {
    std::string known;
    for (const std::string& name : names) known += (known.empty() ? "" : ", ") + name;
    throw Error(Code::InvalidArgument,
                "no network interface '" + interface +
                    "' with an address: check TERSUM_INTERFACE (there are: " + known + ")");
  }
  std::ranges::stable_partition(found, [](const address& a) { return a.is_v4(); });
  return found;
}

std::vector<tcp::endpoint> resolve(const std::string& host, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int code = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (code != 0) {
    throw Error(Code::System, "cannot resolve host '" + host + "': " + ::gai_strerror(code));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(list, ::freeaddrinfo);
  std::vector<tcp::endpoint> endpoints;
  for (const addrinfo* entry = list; entry; entry = entry->ai_next) {
    if (is_internet(entry->ai_addr)) endpoints.push_back(to_endpoint(entry->ai_addr));
  }
  if (endpoints.empty()) {
    throw Error(Code::System, "host '" + host + "' has neither an IPv4 nor an IPv6 address");
  }
  return endpoints;
}

std::string endpoint_text(const std::string& host, std::uint16_t port) {
  const bool v6 = host.find(':') != std::string::npos;
  return (v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

}  // namespace tersum::transport::control
