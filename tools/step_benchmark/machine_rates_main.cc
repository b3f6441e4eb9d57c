// Prints what this machine could do at best, as a line of JSON.
#include <cstdio>

#include "core/kernels/testing/machine_rates.h"

int main() {
  const quartet::MachineRates rates = quartet::MeasureMachineRates();
  std::printf("{\"bf16_flops\": %.6g, \"fp32_flops\": %.6g, \"bytes\": %.6g}\n", rates.bf16_flops, rates.fp32_flops,
              rates.bytes);
  return 0;
}
