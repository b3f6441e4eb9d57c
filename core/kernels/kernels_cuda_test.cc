// Functions of rows and wide products on a GPU, against the same on the CPU.

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/hardware/device.h"
#include "core/kernels/cuda/cuda_paged_attention.h"
#include "core/kernels/linear.h"
#include "core/kernels/row_functions.h"
#include "core/kernels/torch_paged_attention.h"

namespace quartet {
namespace {

const at::Device kGpu(at::kCUDA, 0);

class OnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    const absl::Status entered = EnterDevice(kGpu);
    if (!entered.ok()) GTEST_SKIP() << entered;
    at::manual_seed(1);
  }
};

using Function = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

// The result, then the gradient of each input, on the CPU in fp64.
std::vector<at::Tensor> WithGradients(const Function& function, const std::vector<at::Tensor>& inputs,
                                      const at::Tensor& gradient, at::Device device) {
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& input : inputs) leaves.push_back(input.detach().to(device).clone().set_requires_grad(true));
  const at::Tensor out = function(leaves);
  std::vector<at::Tensor> all = torch::autograd::grad({out}, leaves, {gradient.to(device)});
  all.insert(all.begin(), out.detach());
  for (at::Tensor& tensor : all) tensor = tensor.cpu().to(at::kDouble);
  return all;
}

double Difference(const at::Tensor& a, const at::Tensor& b) { return ((a - b).norm() / b.norm()).item<double>(); }

void ExpectAsOnCpu(const std::string& what, const Function& function, const std::vector<at::Tensor>& inputs,
                   const at::Tensor& gradient) {
  for (const auto& [type, tolerance] : {std::pair{at::kFloat, 2e-6}, {at::kBFloat16, 2e-3}}) {
    std::vector<at::Tensor> rounded;
    for (const at::Tensor& input : inputs) rounded.push_back(input.to(type));
    const auto expected = WithGradients(function, rounded, gradient.to(type), at::kCPU);
    const auto found = WithGradients(function, rounded, gradient.to(type), kGpu);
    for (size_t i = 0; i < found.size(); ++i) {
      ASSERT_EQ(found[i].sizes(), expected[i].sizes());
      EXPECT_LT(Difference(found[i], expected[i]), tolerance) << what << ", " << type << ", of " << i;
    }
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> there;
    for (const at::Tensor& input : rounded) there.push_back(input.to(kGpu));
    const at::Tensor whole = function(there);
    EXPECT_TRUE(at::equal(whole.cpu().to(at::kDouble), found[0])) << what << ": other bits without gradients";
  }
}

TEST_F(OnGpu, NormsAreThoseOfTheCpu) {
  const auto norm = [](const std::vector<at::Tensor>& in) { return RmsNorm(in[0], in[1], 1e-5); };
  for (const int64_t size : {7, 48, 64, 576, 1024, 1028, 4096, 4097, 13000}) {
    for (const int64_t rows : {1, 3, 700}) {
      ExpectAsOnCpu("norm of " + std::to_string(rows) + " x " + std::to_string(size), norm,
                    {at::randn({rows, size}), at::randn({size})}, at::randn({rows, size}));
    }
  }
  ExpectAsOnCpu("heads", norm, {at::randn({90, 5, 128}), at::randn({128})}, at::randn({90, 5, 128}));
}

TEST_F(OnGpu, RotationsAreThoseOfTheCpu) {
  for (const int64_t d : {8, 64, 80, 128}) {
    const at::Tensor angles = at::randn({33, d / 2}).repeat({1, 2});
    const auto turn = [&](const std::vector<at::Tensor>& in) {
      return Rotate(in[0], {.cos_Td = angles.cos().to(in[0].device()), .sin_Td = angles.sin().to(in[0].device())});
    };
    ExpectAsOnCpu("rotation of " + std::to_string(d), turn, {at::randn({33, 3, d})}, at::randn({33, 3, d}));
  }
}

TEST_F(OnGpu, GatesAreThoseOfTheCpu) {
  const auto gate = [](const std::vector<at::Tensor>& in) { return SwiGlu(in[0], in[1]); };
  for (const int64_t size : {5, 1536}) {
    ExpectAsOnCpu("gate of " + std::to_string(size), gate, {at::randn({77, size}) * 20, at::randn({77, size})},
                  at::randn({77, size}));
  }
}

TEST_F(OnGpu, ARowsBitsDoNotDependOnTheOthers) {
  for (const int64_t size : {576, 4096}) {
    const at::Tensor x = at::randn({300, size}, kGpu).to(at::kBFloat16), weight = x[0].clone();
    const at::Tensor all = RmsNorm(x, weight, 1e-5);
    EXPECT_TRUE(at::equal(RmsNorm(x.slice(0, 17, 18), weight, 1e-5), all.slice(0, 17, 18)));
  }
}

TEST_F(OnGpu, ProductsOfBf16ComeOutInFp32) {
  const at::Tensor a = at::randn({70, 300}).to(at::kBFloat16), b = at::randn({300, 1000}).to(at::kBFloat16);
  const at::Tensor expected = at::matmul(a.to(at::kDouble), b.to(at::kDouble));
  const at::Tensor there = a.to(kGpu), weight = b.t().contiguous().to(kGpu);
  const at::Tensor wide = WideProduct(there, weight);
  ASSERT_EQ(wide.scalar_type(), at::kFloat);
  EXPECT_LT(Difference(wide.cpu().to(at::kDouble), expected), 1e-6);
  at::Tensor sum = at::matmul(a.to(at::kFloat), b.to(at::kFloat)).to(kGpu);
  WideProductInto(a.t().contiguous().to(kGpu).t(), b.to(kGpu), /*adds=*/true, &sum);
  EXPECT_LT(Difference(sum.cpu().to(at::kDouble), 2 * expected), 1e-6);
}

TEST_F(OnGpu, PartsOfLongerRowsAreReadWhereTheyAre) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor rows = at::randn({70, 7, 64}, kGpu).to(type), angles = at::randn({70, 32}, kGpu).repeat({1, 2});
    const RotaryTable rotary{.cos_Td = angles.cos(), .sin_Td = angles.sin()};
    const at::Tensor heads = rows.narrow(1, 2, 3);
    EXPECT_TRUE(at::equal(Rotate(heads, rotary), Rotate(heads.contiguous(), rotary)));
    for (const int64_t size : {48, 50}) {  // four elements at once, and one
      const at::Tensor both = at::randn({70, 2 * size}, kGpu).to(type);
      const at::Tensor gate = both.narrow(1, 0, size), up = both.narrow(1, size, size);
      EXPECT_TRUE(at::equal(SwiGlu(gate, up), SwiGlu(gate.contiguous(), up.contiguous())));
    }
  }
}

struct PagedCase {
  int64_t block_size, kv_heads, group, head_dim;
  std::vector<std::pair<int64_t, int64_t>> chunks;  // first, count
};

TEST_F(OnGpu, PagedAttentionIsThatOfItsItemsOnTheCpu) {
  const std::vector<PagedCase> cases = {{16, 8, 4, 64, {{190, 1}, {0, 1}, {63, 1}, {2000, 1}}},
                                        {16, 2, 7, 64, {{190, 1}, {17, 2}, {900, 1}, {0, 40}}},
                                        {32, 3, 3, 128, {{700, 1}, {5, 5}, {100, 70}}},
                                        {16, 4, 1, 80, {{31, 1}, {32, 1}, {600, 9}}},
                                        {16, 1, 16, 128, {{255, 1}, {256, 1}, {1500, 1}, {0, 100}}},
                                        {16, 2, 2, 256, {{190, 1}, {900, 1}, {0, 33}}},
                                        {48, 1, 8, 24, {{190, 1}, {800, 2}}}};
  for (const PagedCase& c : cases) {
    int64_t tokens = 0, blocks = 0;
    for (const auto& [first, count] : c.chunks) {
      tokens += count;
      blocks += (first + count + c.block_size - 1) / c.block_size;
    }
    std::vector<int32_t> order;
    for (int64_t block = blocks; block-- > 0;) order.push_back(static_cast<int32_t>(block));
    std::vector<AttentionChunk> chunks;
    for (int64_t used = 0; const auto& [first, count] : c.chunks) {
      chunks.push_back({.blocks = order.data() + used, .first = first, .count = count});
      used += (first + count + c.block_size - 1) / c.block_size;
    }
    const int64_t heads = c.kv_heads * c.group;
    at::Tensor keys = at::randn({blocks * c.block_size, c.kv_heads, c.head_dim}).to(at::kBFloat16);
    at::Tensor values = at::randn({blocks * c.block_size, c.kv_heads, c.head_dim}).to(at::kBFloat16);
    at::Tensor keys_there = keys.to(kGpu), values_there = values.to(kGpu);
    // Queries, keys and values of the tokens, as one product makes them.
    const at::Tensor made = at::randn({tokens, heads + 2 * c.kv_heads, c.head_dim}).to(at::kBFloat16);
    const auto attend = [&](at::Device device, at::Tensor& key_slots, at::Tensor& value_slots) {
      const at::Tensor all = made.to(device);
      std::vector<int64_t> slots = SlotsOf(c.block_size, chunks);
      const at::Tensor slots_n = at::tensor(slots, at::kLong).to(device);
      const auto store = device.is_cuda() ? StoreInSlots : WriteToSlots;
      store(slots_n, all.narrow(1, heads, c.kv_heads), all.narrow(1, heads + c.kv_heads, c.kv_heads), key_slots,
            value_slots);
      return CudaPagedAttention(c.block_size, chunks, heads, c.kv_heads, c.head_dim, device)
          .Attend(all.narrow(1, 0, heads), key_slots, value_slots)
          .cpu();
    };
    const at::Tensor expected = attend(at::kCPU, keys, values), found = attend(kGpu, keys_there, values_there);
    EXPECT_TRUE(at::equal(keys_there.cpu(), keys) && at::equal(values_there.cpu(), values));
    EXPECT_LT((found - expected).abs().max().item<double>(), 0.02) << c.group << " heads of " << c.head_dim;
  }
}

}  // namespace
}  // namespace quartet
