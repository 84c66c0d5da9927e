// The other ranks' side of the join.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include <boost/asio/io_context.hpp>

#include "transport/control.hpp"
#include "transport/control_link.hpp"

namespace tersum::transport::control {

struct Enrolled {
  std::shared_ptr<Link> link;  ///< to rank 0; paused
  std::vector<Member> members;
  std::chrono::nanoseconds clock_offset{};
};

/// Connects to rank 0, retrying until it listens, says hello once and waits for the table. Runs
/// `context`. Throws Error as ControlPlane::join() says.
Enrolled enrol(boost::asio::io_context& context, const JoinRequest& request);

}  // namespace tersum::transport::control
