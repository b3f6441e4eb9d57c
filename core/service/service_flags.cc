#include "core/service/service_flags.h"

#include <stdlib.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/config/help.h"
#include "core/config/origins/origins.h"
#include "core/config/run_config.h"
#include "core/network/address.h"

namespace quartet {
namespace {

// An environment variable's whole number of at least 0; nothing where it is not set.
absl::StatusOr<std::optional<int>> EnvironmentNumber(const char* name) {
  const char* value = getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  int number = 0;
  if (!absl::SimpleAtoi(value, &number) || number < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the environment variable ", name, " is '", value, "', not a whole number of at least 0"));
  }
  return number;
}

}  // namespace

CommandLine ServiceCommandLine(const std::string& service, const std::string& summary, ServiceFlags* flags) {
  return {.program = service,
          .before = absl::StrCat(service, ": ", summary, "\n\nUsage: ", service, " --config=FILE [flags]\n\nFlags:\n"),
          .flags = {{"preset", "NAME", "What a method sets, below --config and --set; as the orchestrator's.",
                     Text(&flags->preset)},
                    {"config", "FILE", "The run's configuration, a RunConfig in protobuf text format (below).",
                     Text(&flags->config)},
                    {"set", "PATH=VALUE",
                     "Overrides one field, for example --set=rollout.temperature=0.8. May be repeated: the\n"
                     "first one of a list (a,b or [\"a,b\", \"c\"]) replaces the file's, further ones append;\n"
                     "an element of a list of groups is named by its index:\n"
                     "--set=reward.source.0.rule=exact_match",
                     Texts(&flags->overrides)},
                    {"ranks", "N", absl::StrCat("Processes on this host. Default: services.", service, ".ranks"),
                     AtLeast(1, &flags->ranks)},
                    {"listen", "HOST:PORT",
                     absl::StrCat("Where rank 0 listens; port 0 is a free one. Default: services.", service,
                                  ".listen.\nAn address that is not loopback needs tls {...} in the configuration."),
                     Text(&flags->listen)},
                    {"address_file", "FILE", "Rank 0 writes its host:port there once all ranks serve.",
                     UserPath(&flags->address_file)},
                    {"trace", "FILE",
                     "Each rank writes what it does when, for chrome://tracing or ui.perfetto.dev: rank N\n"
                     "beside FILE, with .rankN before its extension.",
                     UserPath(&flags->trace)},
                    {"check", "",
                     "Load no model: serve what //orchestrator:check asks of hosts and of the links between them.",
                     Switch(&flags->check)}},
          .after = absl::StrCat(
              "\n"
              "Environment:\n"
              "  RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR (torchrun), or\n"
              "  SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID, SLURM_NTASKS_PER_NODE, SLURM_CPUS_PER_TASK (Slurm)\n"
              "                         This process is that one rank, and starts no others. The ranks meet at the "
              "leader's\n"
              "                         address, services.",
              service,
              ".listen, whose port must not be 0. Where that is not loopback\n"
              "                         MASTER_ADDR, if set, takes the place of its host.\n"
              "  BUILD_WORKING_DIRECTORY  What relative paths are relative to (set by `bazel run`).\n"
              "  QUARTET_PARENT_FD      A stream's descriptor: the process leaves when it closes, or says why.\n"
              "  QUARTET_FAIL_POINTS    For tests: \"name=action[@n],...\" with the actions kill, error, sleep:MS and "
              "trip.\n"
              "\n"
              "Exit codes: 0 after SIGINT, SIGTERM or SIGHUP, 1 after an error, 2 for wrong flags or a wrong "
              "configuration.\n"
              "\n"
              "Examples:\n"
              "  ",
              service, " --config=run.textproto --ranks=2\n  ", service, " --config=run.textproto --set=services.",
              service, ".device=cuda --listen=127.0.0.1:0 --address_file=/tmp/", service,
              ".address\n"
              "  grpcurl -plaintext 127.0.0.1:50051 grpc.health.v1.Health/Check\n"
              "\n"
              "The configuration, with every field and its default:\n\n",
              DescribeRunConfig(Program::kViewer)),
          .check = [flags] { return flags->listen.empty() ? absl::OkStatus() : ParseHostPort(flags->listen).status(); },
          .column = 25};
}

absl::StatusOr<RunConfig> LoadServiceConfig(const ServiceFlags& flags, const std::string& service) {
  QUARTET_ASSIGN_OR_RETURN(const Program program, ServiceProgram(service));
  ConfigSources sources = {flags.preset, flags.config, flags.overrides, program};
  // Before anything is checked: what has no effect with one rank may have one with several.
  if (flags.ranks.has_value()) sources.overrides.push_back(absl::StrCat("services.", service, ".ranks=", *flags.ranks));
  QUARTET_ASSIGN_OR_RETURN(RunConfig config, LoadRunConfig(sources, ""));
  ServicePlacement* placement = MutablePlacementOf(&config, service);
  if (!flags.listen.empty()) placement->set_listen(flags.listen);
  QUARTET_RETURN_IF_ERROR(CheckFor(config, program));
  if (program == Program::kPolicyTrainer || program == Program::kCriticTrainer) {
    QUARTET_ASSIGN_OR_RETURN(const ValueOrigins origins, OriginsOf(sources));
    QUARTET_RETURN_IF_ERROR(CheckSaysRunDir(origins));
  }
  QUARTET_RETURN_IF_ERROR(CheckListenAddress(placement->listen(), config.tls()));
  return config;
}

absl::StatusOr<std::optional<RankEnvironment>> ReadRankEnvironment() {
  struct Names {
    const char *rank, *world_size, *local_rank, *local_world_size, *node, *cores;
  };
  for (const Names& names : {Names{"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", ""},
                             Names{"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE",
                                   "SLURM_NODEID", "SLURM_CPUS_PER_TASK"}}) {
    QUARTET_ASSIGN_OR_RETURN(const std::optional<int> rank, EnvironmentNumber(names.rank));
    QUARTET_ASSIGN_OR_RETURN(const std::optional<int> world_size, EnvironmentNumber(names.world_size));
    // Slurm tells of a job's number of tasks outside of its tasks, too.
    const bool is_slurm = absl::StartsWith(names.rank, "SLURM_");
    if (rank.has_value() ? !world_size.has_value() : world_size.has_value() && !is_slurm) {
      return absl::InvalidArgumentError(
          absl::StrCat("the environment variable ", rank.has_value() ? names.rank : names.world_size, " is set, but ",
                       rank.has_value() ? names.world_size : names.rank, " is not; set both or neither"));
    }
    if (!rank.has_value()) continue;
    if (*rank >= *world_size) {
      return absl::InvalidArgumentError(absl::StrCat("the environment says ", names.rank, "=", *rank, " and ",
                                                     names.world_size, "=", *world_size,
                                                     "; a rank must be below the number of ranks"));
    }
    QUARTET_ASSIGN_OR_RETURN(const std::optional<int> local_rank, EnvironmentNumber(names.local_rank));
    QUARTET_ASSIGN_OR_RETURN(const std::optional<int> local_world_size, EnvironmentNumber(names.local_world_size));
    if (!is_slurm && local_rank.has_value() && local_world_size.has_value() && *local_rank >= *local_world_size) {
      return absl::InvalidArgumentError(absl::StrCat("the environment says ", names.local_rank, "=", *local_rank,
                                                     " and ", names.local_world_size, "=", *local_world_size,
                                                     "; a rank must be below the number of ranks on its host"));
    }
    QUARTET_ASSIGN_OR_RETURN(const std::optional<int> node, EnvironmentNumber(names.node));
    QUARTET_ASSIGN_OR_RETURN(const std::optional<int> cores, EnvironmentNumber(names.cores));
    RankEnvironment place;
    place.node = node.value_or(0);
    place.cores = cores.value_or(0);
    place.rank = *rank;
    place.world_size = *world_size;
    place.local_rank = local_rank.value_or(*rank);
    // Slurm does not always say how many tasks share the host; the fewest that fit then.
    place.local_world_size =
        std::max(local_world_size.value_or(local_rank.has_value() ? 1 : *world_size), place.local_rank + 1);
    return place;
  }
  return std::nullopt;
}

}  // namespace quartet
