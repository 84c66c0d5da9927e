// What UCX would use between two ranks: it says so only of a connection that there is, so two
// workers of this process connect to each other.
#include <cstdio>
#include <cstdlib>
#include <set>
#include <sstream>

#include "transport/ucx_context.hpp"
#include "transport/ucx_transport.hpp"

namespace tersum::transport {
namespace {

void ignore_error(void* /*arg*/, ucp_ep_h /*endpoint*/, ucs_status_t /*status*/) {}

std::string lanes_between(const UcxContext& from, const UcxContext& to, UcxContext::Reach reach) {
  const std::vector<std::byte> address = to.address(reach);
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;  // as for ranks: it rules some transports out
  params.err_handler.cb = &ignore_error;
  ucp_ep_h endpoint = nullptr;
  if (ucp_ep_create(from.worker(), &params, &endpoint) != UCS_OK) return {};
  std::string lanes = lanes_of(endpoint);
  ucp_request_param_t force{};
  force.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  force.flags = UCP_EP_CLOSE_FLAG_FORCE;
  const ucs_status_ptr_t closing = ucp_ep_close_nbx(endpoint, &force);
  if (UCS_PTR_IS_PTR(closing)) {
    while (ucp_request_check_status(closing) == UCS_INPROGRESS) ucp_worker_progress(from.worker());
    ucp_request_free(closing);
  }
  return lanes;
}

}  // namespace

/// UCX tells only in a text for people, one line for each lane:
/// "#  lane[0]:  3:tcp/eth0.0 md[2] -> ...".
std::string lanes_of(ucp_ep_h endpoint) {
  char* text = nullptr;
  std::size_t bytes = 0;
  FILE* stream = open_memstream(&text, &bytes);
  if (stream == nullptr) return {};
  ucp_ep_print_info(endpoint, stream);
  std::fclose(stream);
  std::istringstream lines(text);
  std::free(text);
  std::set<std::string> names;
  for (std::string line; std::getline(lines, line);) {
    const std::size_t lane = line.find("lane[");
    const std::size_t mark = line.find("]:", lane);
    if (lane == std::string::npos || mark == std::string::npos) continue;
    std::string name;
    std::istringstream(line.substr(mark + 2)) >> name;
    name = name.substr(name.find(':') + 1);  // its number
    names.insert(name.substr(0, name.rfind('.')));
  }
  std::string lanes;
  for (const std::string& name : names) lanes += (lanes.empty() ? "" : " ") + name;
  return lanes;
}

UcxLanes ucx_lanes(const UcxOptions& options) {
  const UcxContext one(options), other(options);
  return {one.device_memory(), lanes_between(one, other, UcxContext::Reach::Anywhere),
          lanes_between(one, other, UcxContext::Reach::OverNetworks)};
}

}  // namespace tersum::transport
