// Addresses of this machine's network interfaces, and of hosts.
#pragma once

#include <string>
#include <vector>

#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/tcp.hpp>

namespace tersum::transport::control {

/// All addresses of `interface`, IPv4 first. Error InvalidArgument if there is no such interface or
/// it has none; the message lists those that exist.
std::vector<boost::asio::ip::address> interface_addresses(const std::string& interface);

/// The endpoints that `host` (a name, an IPv4 or an IPv6 address) stands for, in the resolver's
/// order. Blocks while a name is looked up. Error System names the host.
std::vector<boost::asio::ip::tcp::endpoint> resolve(const std::string& host, std::uint16_t port);

/// "host:port", "[v6]:port".
std::string endpoint_text(const std::string& host, std::uint16_t port);

}  // namespace tersum::transport::control
