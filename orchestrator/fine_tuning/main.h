// The main function of programs that learn from rows alone.
#pragma once

#include <string>
#include <vector>

#include "core/config/run_config.h"

namespace quartet {

struct FineTuningProgram {
  Program program;
  std::string name;                   // "sft"
  std::string summary;                // of --help: what it does
  std::string example;                // of --set
  std::vector<std::string> services;  // that --launch starts
};

int FineTuningMain(int argc, char** argv, const FineTuningProgram& program);

}  // namespace quartet
