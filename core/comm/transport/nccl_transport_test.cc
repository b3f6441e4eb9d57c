// NCCL on one GPU: a rank by itself, which a process group would not ask NCCL for.

#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <memory>

#include "core/comm/store/local_store.h"
#include "core/comm/transport/transport.h"
#include "core/hardware/device.h"

namespace quartet {
namespace {

TEST(NcclTransport, GivesARankAloneItsOwnValues) {
  const at::Device gpu(at::kCUDA, 0);
  if (const absl::Status entered = EnterDevice(gpu); !entered.ok()) GTEST_SKIP() << entered;
  const auto store = MakeLocalStore();
  ProcessGroupOptions options;
  options.device = "cuda";
  auto transport = MakeNcclTransport(store.get(), options);
  ASSERT_TRUE(transport.ok()) << transport.status();
  EXPECT_EQ((*transport)->device(), gpu);

  const at::Tensor values = at::arange(1024, at::TensorOptions(at::kFloat).device(gpu));
  const at::Tensor gathered = values.clone(), scattered = at::empty_like(values), summed = values.clone(),
                   largest = values.clone();
  (*transport)->AllGatherInPlace(1, gathered)->Wait();
  (*transport)->ReduceScatterSum(2, scattered, values)->Wait();
  (*transport)->AllReduce(3, summed, /*max=*/false)->Wait();
  (*transport)->AllReduce(4, largest, /*max=*/true)->Wait();
  for (const at::Tensor& found : {gathered, scattered, summed, largest}) EXPECT_TRUE(at::equal(found, values));
}

}  // namespace
}  // namespace quartet
