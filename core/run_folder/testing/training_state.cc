#include "core/run_folder/testing/training_state.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "core/checkpoint/state_folder.h"

namespace quartet {

SavedTrainer WriteTrainingState(const std::string& folder, int64_t steps) {
  std::filesystem::create_directories(folder);
  StateManifest manifest;
  manifest.optimizer_steps = steps;
  manifest.kinds = {"master"};
  manifest.parameters = {{"weight", {4}}};
  manifest.files.resize(1);
  manifest.files[0].name = StateFileName(0, 1);
  manifest.files[0].slices = {{0, 0, 4, {}}};
  const float values[4] = {1, 2, 3, static_cast<float>(steps)};
  auto writer = StateFileWriter::Create(folder, manifest, 0).value();
  EXPECT_TRUE(writer->Write(0, 0, 0, values, 4).ok());
  manifest.files[0] = writer->Finish().value();
  return {WriteStateManifest(folder, manifest).value(), steps};
}

}  // namespace quartet
