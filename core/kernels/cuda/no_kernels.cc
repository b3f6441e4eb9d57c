#include "core/kernels/cuda/draw_rows.h"
#include "core/kernels/cuda/hash_elements.h"
#include "core/kernels/cuda/log_softmax_rows.h"
#include "core/kernels/cuda/paged_kernel.h"
#include "core/kernels/cuda/present_stream.h"
#include "core/kernels/cuda/row_kernels.h"

namespace quartet {
namespace {

constexpr char kNoCuda[] = "this build has no CUDA";

}  // namespace

void* PresentStream(at::Device) { return nullptr; }

const char* LaunchPagedKernel(const PagedKernelArgs&, void*) { return kNoCuda; }
const char* LaunchStoreInSlots(const NewKeys&, void*) { return kNoCuda; }

const char* LaunchRmsNorm(RowElement, const void*, const void*, double, int64_t, int64_t, void*, float*, void*) {
  return kNoCuda;
}

const char* LaunchRmsNormGradient(RowElement, const void*, const void*, const float*, const void*, int64_t, int64_t,
                                  void*, float*, void*) {
  return kNoCuda;
}

const char* LaunchRotate(RowElement, const void*, int64_t, const float*, const float*, int64_t, bool, int64_t, int64_t,
                         int64_t, void*, void*) {
  return kNoCuda;
}

const char* LaunchSwiGlu(RowElement, const void*, const void*, int64_t, int64_t, int64_t, void*, void*) {
  return kNoCuda;
}

const char* LaunchSwiGluGradient(RowElement, const void*, const void*, const void*, int64_t, void*, void*, void*) {
  return kNoCuda;
}

const char* LaunchSumCopies(RowElement, const void*, const int32_t*, const int32_t*, int64_t, int64_t, void*, void*) {
  return kNoCuda;
}

const char* LaunchLogSoftmaxRows(const float*, const RowTargets&, float, int64_t, int64_t, float*, float*,
                                 const EntropyResult*, void*) {
  return kNoCuda;
}

const char* LaunchLogSoftmaxRowsGradient(const float*, const RowTargets&, float, const float*, const float*,
                                         const EntropyGradient*, int64_t, int64_t, RowElement, void*, void*) {
  return kNoCuda;
}

const char* LaunchHashElements(const void*, int, int64_t, int64_t, uint64_t*, void*) { return kNoCuda; }

int64_t DrawRowsScratch(int64_t, int64_t) { return 0; }
const char* LaunchDrawRows(const float*, int64_t, const RowToDraw*, const LogitEdit*, int64_t, bool, void*, DrawnRow*,
                           void*) {
  return kNoCuda;
}

}  // namespace quartet
