// What is kept of a sample's texts where they are long.
#pragma once

#include <cstddef>
#include <vector>

#include "core/run_folder/records/records.h"

namespace quartet {

// Leaves of the sequences what has about `bytes`, and says in its place where something is missing: the longest spans
// lose their middles, so that these are of one length, between characters; of more than bytes / 64 spans the last ones
// go, with the sequences that they are of.
void CutToFit(size_t bytes, std::vector<SampleSequence>* sequences);

}  // namespace quartet
