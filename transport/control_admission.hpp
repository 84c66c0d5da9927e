// Rank 0's side of the join.
#pragma once

#include <memory>
#include <vector>

#include <boost/asio/io_context.hpp>

#include "transport/control.hpp"
#include "transport/control_link.hpp"

namespace tersum::transport::control {

struct Admitted {
  std::vector<std::shared_ptr<Link>> links;  ///< [size]; paused; [0] is null
  std::vector<Member> members;               ///< [size]
};

/// Listens at request.root_host:root_port until all ranks are in, then hands everybody the table
/// and stops listening. Strangers (wrong secret, garbage, silence) are turned away and change
/// nothing. Runs `context`. Throws Error as ControlPlane::join() says; all ranks that are in, or
/// come within two seconds, have been told then.
Admitted admit_all(boost::asio::io_context& context, const JoinRequest& request);

}  // namespace tersum::transport::control
