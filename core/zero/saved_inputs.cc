#include "core/zero/saved_inputs.h"

#include <exception>
#include <utility>

#include "core/memory/accounted_tensor.h"

namespace quartet {

SavedInputs::SavedInputs(Ledger* ledger, at::Device device, bool offload, int blocks)
    : ledger_(ledger), device_(device), offload_(offload), entries_(blocks), out_(device), in_(device) {}

SavedInputs::~SavedInputs() {
  try {
    for (Entry& entry : entries_) entry.copy.Order();  // before their memory is used again
  } catch (const std::exception&) {
    // The device has failed; so has what brought us here.
  }
}

void SavedInputs::Save(int block, const at::Tensor& input_TD) {
  Entry& entry = entries_[block];
  entry.device = input_TD;
  if (input_TD.is_cuda()) {
    entry.unseen = LedgerEntry(ledger_, MemoryCategory::kActivations, static_cast<int64_t>(input_TD.nbytes()));
  }
  if (!offload_) return;
  entry.host = AccountedEmpty(ledger_, MemoryCategory::kActivations, input_TD.numel(), input_TD.scalar_type(), device_,
                              MemoryTier::kHost)
                   .view(input_TD.sizes());
  entry.copy = out_.Start(entry.host, input_TD);
  if (block > 0) {
    // The memory is used again by what the device is given from now on.
    entries_[block - 1].copy.Order();
    entries_[block - 1].device = at::Tensor();
    entries_[block - 1].unseen.Reset();
  }
}

void SavedInputs::BringBack(int block) {
  Entry& entry = entries_[block];
  if (entry.device.defined()) return;  // it has not left, or is coming
  entry.device = AccountedEmpty(ledger_, MemoryCategory::kActivations, entry.host.numel(), entry.host.scalar_type(),
                                device_, MemoryTier::kDevice)
                     .view(entry.host.sizes());
  entry.copy = in_.Start(entry.device, entry.host);
}

at::Tensor SavedInputs::Take(int block) {
  if (offload_) {
    BringBack(block);
    if (block > 0) BringBack(block - 1);
  }
  Entry entry = std::exchange(entries_[block], Entry());
  entry.copy.Order();
  return entry.device;
}

}  // namespace quartet
