// at::parallel_for, for targets with copts = ["-fopenmp"]: compiled without, it does all the work on one thread.
#pragma once

#ifndef _OPENMP
#error "add copts = [\"-fopenmp\"] to the target"
#endif

#include <ATen/Parallel.h>  // IWYU pragma: export
