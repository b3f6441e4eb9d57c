// Which build this is.
#pragma once

#include <string>

namespace quartet {

// What --version prints, one line: "quartet 0.1.0, commit ..., for CPUs, wire protocols 5 to 6" (or "wire
// protocol 6") of a program of a bundle
// (deploy/); of one that was built otherwise without the commit.
std::string VersionText();

}  // namespace quartet
