// The main function of programs that learn from rows alone.
#pragma once

#include <string>

#include "core/config/run_config.h"

namespace quartet {

struct FineTuningProgram {
  Program program;
  std::string name;     // "sft"
  std::string summary;  // of --help: what it does
  std::string example;  // of --set
};

int FineTuningMain(int argc, char** argv, const FineTuningProgram& program);

}  // namespace quartet
