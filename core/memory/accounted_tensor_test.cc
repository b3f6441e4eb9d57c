#include "core/memory/accounted_tensor.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <c10/core/Allocator.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstdint>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr auto kActivations = MemoryCategory::kActivations;
constexpr auto kLogits = MemoryCategory::kLogits;

at::Tensor Floats(int64_t numel, at::Device device = at::kCPU) {
  return at::empty({numel}, at::TensorOptions(at::kFloat).device(device));
}

class Devices : public ::testing::TestWithParam<at::DeviceType> {};
INSTANTIATE_TEST_SUITE_P(CpuAndMeta, Devices, ::testing::Values(at::kCPU, at::kMeta),
                         [](const auto& info) { return info.param == at::kCPU ? "Cpu" : "Meta"; });

TEST_P(Devices, WhatIsMadeInAScopeStandsInTheLedgerUntilItIsFreed) {
  Ledger ledger;
  at::Tensor outside = Floats(1000, GetParam());
  at::Tensor view;
  {
    const MemoryScope scope(&ledger, kActivations);
    at::Tensor made = Floats(1000, GetParam());
    EXPECT_EQ(ledger.current(kActivations), 4000);
    const at::Tensor product = made * outside;
    EXPECT_EQ(ledger.current(kActivations), 8000);
    view = made.narrow(0, 0, 1);
    outside = at::Tensor();
    EXPECT_EQ(ledger.current(kActivations), 8000) << "what was made outside does not count";
  }
  EXPECT_EQ(ledger.current(kActivations), 4000) << "a view keeps the memory beyond the scope";
  EXPECT_EQ(ledger.peak(kActivations), 8000);
  view = at::Tensor();
  EXPECT_EQ(ledger.current(kActivations), 0);
}

TEST_P(Devices, TheInnermostScopeCounts) {
  Ledger ledger, other;
  const MemoryScope scope(&ledger, kActivations);
  at::Tensor inner, host;
  {
    const MemoryScope logits(&ledger, kLogits);
    inner = Floats(10, GetParam());
    const MemoryScope elsewhere(&other, kLogits, MemoryTier::kHost);
    host = Floats(20, GetParam());
  }
  const at::Tensor after = Floats(30, GetParam());
  EXPECT_EQ(ledger.current(kLogits), 40);
  EXPECT_EQ(other.current(kLogits, MemoryTier::kHost), 80);
  EXPECT_EQ(other.total(MemoryTier::kDevice), 0);
  EXPECT_EQ(ledger.current(kActivations), 120);
}

TEST_P(Devices, AnExplicitTensorCountsOnceWithinAScope) {
  Ledger ledger;
  const MemoryScope scope(&ledger, kActivations);
  at::Tensor tensor =
      AccountedZeros(&ledger, MemoryCategory::kOptimizer, 100, at::kFloat, GetParam(), MemoryTier::kHost);
  EXPECT_EQ(ledger.current(MemoryCategory::kOptimizer, MemoryTier::kHost), 400);
  EXPECT_EQ(ledger.total(MemoryTier::kDevice), 0);
  tensor = at::Tensor();
  EXPECT_EQ(ledger.total(MemoryTier::kHost), 0);
}

TEST_P(Devices, FreedStorageIsGivenBackAndRefilledUnderItsViews) {
  Ledger ledger;
  at::Tensor buffer = AccountedEmpty(&ledger, MemoryCategory::kGathered, 100, at::kFloat, GetParam());
  const at::Tensor view = buffer.narrow(0, 50, 50);
  FreeStorage(buffer);
  EXPECT_EQ(ledger.current(MemoryCategory::kGathered), 0);
  RefillStorage(&ledger, MemoryCategory::kGathered, buffer);
  EXPECT_EQ(ledger.current(MemoryCategory::kGathered), 400);
  if (GetParam() == at::kCPU) {
    buffer.fill_(7);
    EXPECT_EQ(view.sum().item<float>(), 350);
  }
}

// The graph of a product with itself and its backward pass: saved factors, results and gradients.
TEST_P(Devices, GraphsAndBackwardPassesCountTheSameOnBothDevices) {
  Ledger ledger;
  const at::Tensor leaf = at::ones({16, 16}, at::TensorOptions(at::kFloat).device(GetParam())).set_requires_grad(true);
  constexpr int64_t kBytes = 16 * 16 * 4;
  {
    const MemoryScope scope(&ledger, kActivations);
    const at::Tensor squared = leaf * leaf;
    const at::Tensor output = at::mm(squared, squared);
    EXPECT_EQ(ledger.current(kActivations), 2 * kBytes);
    std::vector<at::Tensor> gradients = torch::autograd::grad({output}, {leaf}, {at::ones_like(output)});
    EXPECT_EQ(ledger.current(kActivations), 3 * kBytes);
    EXPECT_GE(ledger.peak(kActivations), 5 * kBytes) << "the backward pass is not seen";
  }
  EXPECT_EQ(ledger.current(kActivations), 0);
}

TEST_P(Devices, ABudgetEndsTheOperatorThatPassesIt) {
  Ledger ledger;
  ledger.SetBudget(MemoryTier::kDevice, 10'000);
  const MemoryScope scope(&ledger, kActivations);
  const at::Tensor held = Floats(2000, GetParam());
  try {
    const at::Tensor more = held * held;
    FAIL() << "16,000 bytes were given where 10,000 are allowed";
  } catch (const MemoryBudgetError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("8000 bytes more of activations"), HasSubstr("budget of 10000 bytes"),
                                    HasSubstr("device_memory_budget"), HasSubstr("activations 8000 bytes")));
  }
  EXPECT_EQ(ledger.current(kActivations), 8000);
  EXPECT_EQ(ledger.peak(kActivations), 8000);
  const at::Tensor little = Floats(500, GetParam());
  EXPECT_EQ(ledger.current(kActivations), 10'000) << "what fits is still given";
}

TEST_P(Devices, ABudgetPassedInABackwardPassComesOutAsItIs) {
  Ledger ledger;
  const at::Tensor leaf = at::ones({16, 16}, at::TensorOptions(at::kFloat).device(GetParam())).set_requires_grad(true);
  constexpr int64_t kBytes = 16 * 16 * 4;
  {
    const MemoryScope scope(&ledger, kActivations);
    const at::Tensor squared = leaf * leaf;
    const at::Tensor output = at::mm(squared, squared);
    const at::Tensor direction = at::ones_like(output);
    ledger.SetBudget(MemoryTier::kDevice, 4 * kBytes);
    EXPECT_THROW(torch::autograd::grad({output}, {leaf}, {direction}), MemoryBudgetError);
  }
  EXPECT_EQ(ledger.current(kActivations), 0) << "nothing is kept after the error";
}

TEST(AccountedMemory, ResizedStorageCountsAtItsNewSize) {
  Ledger ledger;
  at::Tensor tensor = Floats(10);
  const MemoryScope scope(&ledger, kActivations);
  tensor.resize_({1000});
  EXPECT_EQ(ledger.current(kActivations), 4000);
  tensor.resize_({2000});
  EXPECT_EQ(ledger.current(kActivations), 8000);
  tensor = at::Tensor();
  EXPECT_EQ(ledger.current(kActivations), 0);
}

TEST(AccountedMemory, OutlivesItsLedgerAndIsFreedOnAnyThread) {
  std::optional<Ledger> ledger(std::in_place);
  at::Tensor first, second;
  {
    const MemoryScope scope(&*ledger, kActivations);
    first = Floats(1000);
    second = Floats(1000);
  }
  std::thread([tensor = std::move(first)]() mutable { tensor = at::Tensor(); }).join();
  EXPECT_EQ(ledger->current(kActivations), 4000);
  ledger.reset();
  second.fill_(1);
  EXPECT_EQ(second.sum().item<float>(), 1000);
}

TEST(AccountedMemory, AScopeIsItsThreadsOwn) {
  Ledger ledger;
  const MemoryScope scope(&ledger, kActivations);
  std::thread([&ledger] {
    const at::Tensor unseen = Floats(1000);
    EXPECT_EQ(ledger.current(kActivations), 0);
    const MemoryScope logits(&ledger, kLogits);
    const at::Tensor seen = Floats(1000);
    EXPECT_EQ(ledger.current(kLogits), 4000);
  }).join();
  EXPECT_EQ(ledger.current(kLogits), 0);
}

TEST(AccountedMemory, BarePointersMayCrossTheBordersOfAScope) {
  Ledger ledger;
  c10::Allocator* allocator = c10::GetAllocator(at::kCPU);
  void* outside = allocator->raw_allocate(1000);
  void* inside;
  {
    const MemoryScope scope(&ledger, kActivations);
    allocator->raw_deallocate(outside);
    inside = allocator->raw_allocate(3000);
    EXPECT_EQ(ledger.current(kActivations), 3000);
  }
  allocator->raw_deallocate(inside);
  EXPECT_EQ(ledger.current(kActivations), 0);
}

TEST(AccountedMemory, LiesAsLibTorchsOwn) {
  Ledger ledger;
  const MemoryScope scope(&ledger, kActivations);
  for (const int64_t numel : {1, 3, 1000, 1 << 20}) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(Floats(numel).const_data_ptr()) % 64, 0u) << numel;
  }
}

TEST(AccountedMemory, WhatTheSystemRefusesIsSaidWithWhatIsHeld) {
  Ledger ledger;
  const MemoryScope scope(&ledger, kLogits);
  const at::Tensor held = Floats(1000);
  try {
    const at::Tensor impossible = Floats(int64_t{1} << 55);
    FAIL() << "2^57 bytes were given";
  } catch (const OutOfMemoryError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("out of device memory"), HasSubstr("of logits could not be allocated"),
                                    HasSubstr("logits 4000 bytes")));
  }
  EXPECT_EQ(ledger.current(kLogits), 4000);
}

}  // namespace
}  // namespace quartet
