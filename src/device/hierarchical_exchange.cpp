#include "src/device/hierarchical_exchange.hpp"

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "cuda/error.hpp"
#include "src/reduce.hpp"
#include "src/session.hpp"

namespace tersum::runtime {
namespace {

constexpr std::size_t kAlignment = 16;  // elements: kernels take aligned shares faster

/// Elements of the blocks in which shares are cut; 0: not inside gradients.
std::size_t share_block(const SliceJob& job) {
  const std::size_t block = job.dense ? 1 : job.compressor->traits().block_count;
  return block >= kAlignment ? block
                             : (kAlignment + block - 1) / std::max<std::size_t>(block, 1) * block;
}

/// True if hosts' sums are fp32 values: of what is compressed, and of 16-bit floats, which would be
/// rounded in each step.
bool is_widened(const SliceJob& job) {
  return !job.dense || is_half(job.dtype);
}

DType sum_dtype(const SliceJob& job) {
  return is_widened(job) ? DType::Float32 : job.dtype;
}

DType result_dtype(const SliceJob& job) {
  return job.dense ? job.dtype : DType::Float32;
}

}  // namespace

std::unique_ptr<HierarchicalExchange> HierarchicalExchange::open(
    Session& session, const std::shared_ptr<Group>& group) {
  auto layout = layout_of(session, *group);
  if (!layout) return nullptr;
  const auto host = split_group(session, group, layout->host.front(), group->rank());
  session.run_on_engine([&] { session.engine().add_group(host); });
  std::unique_ptr<HierarchicalExchange> exchange(
      new HierarchicalExchange(session, std::move(*layout), host));
  bool connected = true;
  try {
    exchange->peers_.connect(false);
  } catch (const Error& error) {  // on all ranks of this host
    if (error.code() != Code::Unsupported) throw;
    connected = false;
  }
  return agree(session, group, connected) ? std::move(exchange) : nullptr;
}

HierarchicalExchange::HierarchicalExchange(Session& session, HostLayout layout,
                                           std::shared_ptr<Group> host)
    : session_(session),
      layout_(std::move(layout)),
      host_(std::move(host)),
      device_(gpu::current_device()),
      peers_(session, host_) {}

HierarchicalExchange::~HierarchicalExchange() {
  Engine& engine = session_.engine();
  engine.submit(make_command([&engine, id = host_->id()] { engine.remove_group(id); }));
}

bool HierarchicalExchange::suits(const SliceJob& job) noexcept {
  return is_floating(job.dtype) || job.op != ReduceOp::Average;
}

// ---- shares ----

std::vector<HierarchicalExchange::Share> HierarchicalExchange::shares_of(
    const SliceJob& job) const {
  const std::size_t ranks = layout_.host.size();
  const std::size_t block = share_block(job);
  std::vector<Share> shares(ranks);
  std::size_t begin = 0;
  auto pieces = share_out(job, static_cast<int>(ranks), block);
  for (std::size_t s = 0; s < ranks; ++s) {
    // Slices that are not cut have one owner, another in each.
    Share& share = shares[block == 0 ? (s + job.slice) % ranks : s];
    share.pieces = std::move(pieces[s]);
    share.begin = begin;
    for (const Piece& piece : share.pieces) share.count += piece.count;
    begin += share.count;
  }
  return shares;
}

const HierarchicalExchange::Share& HierarchicalExchange::own(
    const std::vector<Share>& shares) const {
  return shares[static_cast<std::size_t>(host_->rank())];
}

/// True if one collective shall do for all shares. It needs equal ones; and two ranks reduce and
/// broadcast in turn, with kernels that wait at one end only, so that these need not run at the
/// same time.
bool HierarchicalExchange::go_together(const std::vector<Share>& shares) {
  if (shares.size() == 2) return false;
  std::size_t begin = 0;
  for (const Share& share : shares) {
    if (share.begin != begin || share.count != shares[0].count) return false;
    begin += share.count;
  }
  return true;
}

/// Where the hosts' sums are put together, one after the other.
std::byte* HierarchicalExchange::sums_of(DeviceSlice& slice) {
  return is_widened(slice.job()) ? reinterpret_cast<std::byte*>(slice.values()) : results_of(slice);
}

/// The same of what all hosts have combined.
std::byte* HierarchicalExchange::results_of(DeviceSlice& slice) {
  if (!slice.job().dense) return reinterpret_cast<std::byte*>(slice.values());
  return slice.parts().size() == 1 ? slice.job().parts[0].result : slice.elements();
}

/// The middle step, but for where its memory is.
SliceJob HierarchicalExchange::job_of(const Share& share, const SliceJob& slice) {
  SliceJob job = slice;
  job.parts.clear();
  job.dtype = result_dtype(slice);
  job.partial = job.dtype != sum_dtype(slice);
  for (const Piece& piece : share.pieces) {
    SlicePart part = *piece.part;
    part.offset += piece.begin;
    part.context.offset += piece.begin;
    part.count = piece.count;
    job.parts.push_back(part);
  }
  if (job.dense && !job.parts.empty()) {  // nothing but elements: one part
    job.parts.resize(1);
    job.parts[0].count = share.count;
  }
  return job;
}

/// The middle step: the host's sums of the share are its gradients.
SliceJob HierarchicalExchange::job_of(const Share& share, DeviceSlice& slice) {
  SliceJob job = job_of(share, slice.job());
  std::byte *const sums = sums_of(slice), *const results = results_of(slice);
  for (std::size_t i = 0; i < job.parts.size(); ++i) {
    const std::size_t at = share.pieces[i].at;
    job.parts[i].data = sums + at * element_bytes(sum_dtype(slice.job()));
    job.parts[i].result = results + at * element_bytes(job.dtype);
  }
  return job;
}

std::size_t HierarchicalExchange::bytes_of_messages(const SliceJob& job) const {
  const std::vector<Share> shares = shares_of(job);
  if (own(shares).count == 0) return 0;
  const auto& counterparts = layout_.counterparts;
  const int rank = layout_.host[static_cast<std::size_t>(host_->rank())];
  const auto me = std::ranges::find(counterparts, rank);
  return message_bytes(job_of(own(shares), job), static_cast<int>(counterparts.size()),
                       static_cast<int>(me - counterparts.begin()));
}

// ---- steps ----

template <class Kernels>
void HierarchicalExchange::launch(DeviceSlice& slice, const Kernels& kernels) {
  slice.stream().wait(done_);
  std::exception_ptr error;
  try {
    kernels();
  } catch (...) {
    error = std::current_exception();
  }
  done_.record(slice.stream());
  if (error) std::rethrow_exception(error);
}

/// Of the kernels so far.
Status HierarchicalExchange::outcome() {
  const Status status = peers_.peers().status();
  if (status.is_ok() || status.rank() < 0) return status;
  const int rank = layout_.host[static_cast<std::size_t>(status.rank())];
  return {status.code(),
          "rank " + std::to_string(rank) + " did not take its part inside the host in time",
          {},
          rank};
}

void HierarchicalExchange::reduce(DeviceSlice& slice, const std::vector<Share>& shares) {
  const SliceJob& job = slice.job();
  std::byte* const place = sums_of(slice);
  const std::byte* from = place;
  if (is_widened(job))
    from = reinterpret_cast<const std::byte*>(slice.inputs());
  else if (slice.parts().size() == 1)
    from = job.parts[0].data;
  else
    slice.gather();
  const DType dtype = sum_dtype(job);
  const std::size_t element = element_bytes(dtype);
  gpu::PeerCommunicator& peers = peers_.peers();
  launch(slice, [&] {
    if (go_together(shares)) {
      const Share& share = own(shares);
      return peers.reduce_scatter(from, place + share.begin * element, share.count, dtype, job.op,
                                  slice.stream());
    }
    for (std::size_t r = 0; r < shares.size(); ++r) {
      const std::size_t at = shares[r].begin * element;
      peers.reduce(from + at, place + at, shares[r].count, dtype, job.op, static_cast<int>(r),
                   slice.stream());
    }
  });
}

void HierarchicalExchange::gather(DeviceSlice& slice, const std::vector<Share>& shares) {
  const DType dtype = result_dtype(slice.job());
  std::byte* const place = results_of(slice);
  const auto place_of_share = [&](const Share& share) {
    return place + share.begin * element_bytes(dtype);
  };
  gpu::PeerCommunicator& peers = peers_.peers();
  launch(slice, [&] {
    if (go_together(shares))
      return peers.all_gather(place_of_share(own(shares)), place, shares[0].count, dtype,
                              slice.stream());
    for (std::size_t r = 0; r < shares.size(); ++r) {
      std::byte* const share = place_of_share(shares[r]);
      peers.broadcast(share, share, shares[r].count, dtype, static_cast<int>(r), slice.stream());
    }
  });
  if (!slice.job().dense)
    slice.store();
  else if (slice.parts().size() > 1)
    slice.scatter();
}

/// Gives the turn on. Returns when all in the slice's stream is done; throws if kernels have
/// failed.
Task<> HierarchicalExchange::end_turn(DeviceSlice& slice) {
  ExchangeDevice& device = slice.device();
  StreamEvent done(device.engine(), device.events(), device_, slice.stream());
  peers_.turns().pass();
  co_await done.in(slice.operation());
  if (const Status status = outcome(); !status.is_ok()) throw Error(status);
}

Task<> HierarchicalExchange::exchange(ExchangeDevice& device, Operation& op, const SliceJob& job) {
  DeviceSlice slice(device, op, job);
  const std::vector<Share> shares = shares_of(job);

  op.narrow(layout_.host);
  Task<> first_turn = peers_.turns().take(op, 0);
  co_await first_turn;
  {
    const gpu::DeviceGuard guard(device_);
    reduce(slice, shares);
  }
  // What is exchanged has to be right, and gradients are not read any more if that fails.
  Task<> reduced = end_turn(slice);
  co_await reduced;

  if (own(shares).count > 0) {
    op.narrow(layout_.counterparts);
    const SliceJob share = job_of(own(shares), slice);
    const std::unique_ptr<SliceCodec> codec = make_device_codec(device, op, share);
    Task<> messages = exchange_messages(op, share, *codec);
    co_await messages;
  }

  op.narrow(layout_.host);
  Task<> second_turn = peers_.turns().take(op, 1);
  co_await second_turn;
  {
    const gpu::DeviceGuard guard(device_);
    gather(slice, shares);
  }
  Task<> gathered = end_turn(slice);
  co_await gathered;
  op.narrow({});
}

}  // namespace tersum::runtime
