// Who this process is, from the variables of each launcher.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tersum/error.hpp"
#include "transport/launch.hpp"
#include "transport/slurm.hpp"

namespace tersum::transport {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

Environment environment_of(Variables variables) {
  return [variables = std::move(variables)](const std::string& name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}

Launch detect(const Variables& variables, const LaunchOverrides& overrides = {}) {
  return detect_launch(overrides, environment_of(variables));
}

std::string rejection(const Variables& variables, const LaunchOverrides& overrides = {}) {
  try {
    const Launch launch = detect(variables, overrides);
    ADD_FAILURE() << "accepted as " << launch.source;
    return {};
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::InvalidArgument);
    return error.status().message();
  }
}

Variables with(Variables base, const Variables& more) {
  for (const auto& [name, value] : more) base[name] = value;
  return base;
}

const Variables kTorchrun = {{"RANK", "5"},
                             {"WORLD_SIZE", "8"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "4"},
                             {"MASTER_ADDR", "node7"},
                             {"MASTER_PORT", "29501"}};
const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "2"},
                            {"OMPI_COMM_WORLD_SIZE", "4"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                            {"PMIX_NAMESPACE", "prterun-1@1"}};
const Variables kMpich = {
    {"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};
const Variables kSlurm = {{"SLURM_PROCID", "3"},
                          {"SLURM_NTASKS", "5"},
                          {"SLURM_STEP_NUM_TASKS", "5"},
                          {"SLURM_LOCALID", "1"},
                          {"SLURM_NODEID", "1"},
                          {"SLURM_STEP_TASKS_PER_NODE", "2(x2),1"},
                          {"SLURM_STEP_NODELIST", "gpu[03-04,09]"},
                          {"SLURM_JOB_ID", "77"},
                          {"SLURM_STEP_ID", "0"}};

LaunchOverrides tersum(int rank, int size, const std::string& root = "") {
  LaunchOverrides overrides;
  overrides.rank = rank;
  overrides.size = size;
  overrides.root = root;
  return overrides;
}

TEST(Launch, WithoutVariablesIsAJobOfOne) {
  const Launch launch = detect({});
  EXPECT_EQ(launch.source, "single");
  EXPECT_EQ(launch.rank, 0);
  EXPECT_EQ(launch.size, 1);
  EXPECT_EQ(launch.local_size, 1);
  EXPECT_EQ(launch.root_port, 0);
}

TEST(Launch, ReadsTorchrun) {
  const Launch launch = detect(kTorchrun);
  EXPECT_EQ(launch.source, "torchrun");
  EXPECT_EQ(launch.rank, 5);
  EXPECT_EQ(launch.size, 8);
  EXPECT_EQ(launch.local_rank, 1);
  EXPECT_EQ(launch.local_size, 4);
  EXPECT_EQ(launch.root_host, "node7");
  EXPECT_EQ(launch.root_port, 29501);
}

TEST(Launch, TorchrunWinsInsideSlurmAndMpi) {
  EXPECT_EQ(detect(with(with(kSlurm, kOpenMpi), kTorchrun)).source, "torchrun");
}

TEST(Launch, ReadsOpenMpiOnOneHostAndDerivesAPort) {
  const Launch launch = detect(kOpenMpi);
  EXPECT_EQ(launch.source, "openmpi");
  EXPECT_EQ(launch.rank, 2);
  EXPECT_EQ(launch.local_rank, 2);
  EXPECT_EQ(launch.root_host, "127.0.0.1");
  EXPECT_GE(launch.root_port, 20000);
  EXPECT_LE(launch.root_port, 45000);
  const auto another_rank = with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "0"}});
  EXPECT_EQ(detect(another_rank).root_port, launch.root_port);
  const auto another_job = with(kOpenMpi, {{"PMIX_NAMESPACE", "prterun-2@1"}});
  EXPECT_NE(detect(another_job).root_port, launch.root_port);
  EXPECT_NE(detect(with(kOpenMpi, {{"TERSUM_JOB", "x"}})).root_port, launch.root_port);
}

TEST(Launch, ReadsMpich) {
  const Launch launch = detect(kMpich);
  EXPECT_EQ(launch.source, "mpich");
  EXPECT_EQ(launch.rank, 1);
  EXPECT_EQ(launch.size, 2);
  EXPECT_EQ(launch.local_rank, 1);
  EXPECT_EQ(launch.local_size, 2);
  EXPECT_EQ(launch.root_host, "127.0.0.1");
}

TEST(Launch, OfMpiOnSeveralHostsAsksForTheRoot) {
  const auto spread = with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "3"}});
  EXPECT_THAT(rejection(spread), HasSubstr("set TERSUM_ROOT=host:port"));
  LaunchOverrides overrides;
  overrides.root = "node1:5000";
  const Launch launch = detect(spread, overrides);
  EXPECT_EQ(launch.source, "openmpi");
  EXPECT_EQ(launch.root_host, "node1");
  EXPECT_EQ(launch.root_port, 5000);
  EXPECT_EQ(detect(with(spread, {{"MASTER_ADDR", "m"}, {"MASTER_PORT", "1"}})).root_host, "m");
}

TEST(Launch, ReadsSlurm) {
  const Launch launch = detect(kSlurm);
  EXPECT_EQ(launch.source, "slurm");
  EXPECT_EQ(launch.rank, 3);
  EXPECT_EQ(launch.size, 5);
  EXPECT_EQ(launch.local_rank, 1);
  EXPECT_EQ(launch.local_size, 2);
  EXPECT_EQ(launch.root_host, "gpu03");
  EXPECT_GE(launch.root_port, 20000);
  EXPECT_LE(launch.root_port, 45000);
  EXPECT_NE(detect(with(kSlurm, {{"SLURM_STEP_ID", "1"}})).root_port, launch.root_port);
}

TEST(Launch, OfSlurmFallsBackOnTheJobsVariables) {
  const Launch launch = detect({{"SLURM_PROCID", "0"},
                                {"SLURM_NTASKS", "4"},
                                {"SLURM_LOCALID", "0"},
                                {"SLURM_NTASKS_PER_NODE", "2"},
                                {"SLURM_JOB_NODELIST", "a,b"}});
  EXPECT_EQ(launch.local_size, 2);
  EXPECT_EQ(launch.root_host, "a");
}

TEST(Launch, InAnAllocationWithoutSrunIsAJobOfOne) {
  Variables allocation = kSlurm;
  allocation.erase("SLURM_PROCID");
  EXPECT_EQ(detect(allocation).source, "single");
}

TEST(Launch, UnderSrunWithPmiIsThatOfSlurm) {
  const auto both = with(kSlurm, {{"PMI_RANK", "3"}, {"PMI_SIZE", "5"}});
  EXPECT_EQ(detect(both).source, "slurm");
  // mpirun that was itself started by srun: Slurm's numbers are those of the daemons.
  const auto nested = with(with(kSlurm, kMpich), {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}});
  EXPECT_EQ(detect(nested).source, "mpich");
}

TEST(Launch, ScriptsThatSetHalfOfTorchrunsVariablesUnderSlurmAreSlurms) {
  const Launch launch = detect(
      with(kSlurm, {{"WORLD_SIZE", "5"}, {"MASTER_ADDR", "gpu03"}, {"MASTER_PORT", "29500"}}));
  EXPECT_EQ(launch.source, "slurm");
  EXPECT_EQ(launch.root_port, 29500);
}

TEST(Launch, OverridesWinOverEveryLauncher) {
  const Launch launch = detect(kTorchrun, tersum(1, 3, "[::1]:5000"));
  EXPECT_EQ(launch.source, "tersum");
  EXPECT_EQ(launch.rank, 1);
  EXPECT_EQ(launch.size, 3);
  EXPECT_EQ(launch.root_host, "::1");
  EXPECT_EQ(launch.root_port, 5000);
  EXPECT_EQ(launch.local_rank, 1);  // a loopback root: all on this host
  EXPECT_EQ(launch.local_size, 3);
  EXPECT_EQ(detect({}, tersum(1, 3, "node1:5000")).local_size, 1);
}

TEST(Launch, LocalOverridesJoinTheLaunchersValues) {
  LaunchOverrides overrides;
  overrides.local_rank = 1;
  overrides.local_size = 2;
  Variables bare = kSlurm;
  bare.erase("SLURM_STEP_TASKS_PER_NODE");
  const Launch launch = detect(bare, overrides);
  EXPECT_EQ(launch.source, "slurm");
  EXPECT_EQ(launch.local_rank, 1);
  EXPECT_EQ(launch.local_size, 2);
}

TEST(Launch, NamesVariablesThatAreHalfSet) {
  EXPECT_THAT(rejection({{"RANK", "0"}}), AllOf(HasSubstr("RANK"), HasSubstr("WORLD_SIZE")));
  EXPECT_THAT(rejection({{"WORLD_SIZE", "2"}}), HasSubstr("RANK is not"));
  EXPECT_THAT(rejection({{"OMPI_COMM_WORLD_SIZE", "2"}}), HasSubstr("OMPI_COMM_WORLD_RANK"));
  EXPECT_THAT(rejection({{"PMI_RANK", "2"}}), HasSubstr("PMI_SIZE"));
  EXPECT_THAT(rejection({{"SLURM_PROCID", "2"}}), HasSubstr("SLURM_NTASKS"));
  EXPECT_THAT(rejection({}, tersum(1, -1)), HasSubstr("TERSUM_SIZE"));
  EXPECT_THAT(rejection({}, tersum(-1, 2)), HasSubstr("TERSUM_RANK"));
  LaunchOverrides local;
  local.local_rank = 0;
  EXPECT_THAT(rejection({}, local), HasSubstr("TERSUM_LOCAL_SIZE"));
  for (const char* missing : {"LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
    Variables half = kTorchrun;
    half.erase(missing);
    EXPECT_THAT(rejection(half), HasSubstr(missing));
  }
  Variables no_master = kTorchrun;
  no_master.erase("MASTER_ADDR");
  no_master.erase("MASTER_PORT");
  EXPECT_THAT(rejection(no_master), AllOf(HasSubstr("TERSUM_ROOT"), HasSubstr("MASTER_ADDR")));
}

TEST(Launch, NamesValuesThatAreWrongOrContradictEachOther) {
  for (const char* bad : {"", "x", "-1", "1.5", " 1", "99999999999", "1x"}) {
    EXPECT_THAT(rejection(with(kTorchrun, {{"RANK", bad}})), HasSubstr("RANK='"));
  }
  EXPECT_THAT(rejection(with(kTorchrun, {{"RANK", "8"}})),
              AllOf(HasSubstr("RANK=8"), HasSubstr("WORLD_SIZE=8")));
  EXPECT_THAT(rejection(with(kTorchrun, {{"WORLD_SIZE", "0"}})), HasSubstr("WORLD_SIZE='0'"));
  EXPECT_THAT(rejection(with(kTorchrun, {{"LOCAL_RANK", "4"}})), HasSubstr("LOCAL_WORLD_SIZE=4"));
  EXPECT_THAT(rejection(with(kTorchrun, {{"LOCAL_WORLD_SIZE", "9"}})), HasSubstr("contradict"));
  EXPECT_THAT(rejection(with(kTorchrun, {{"MASTER_PORT", "0"}})), HasSubstr("MASTER_PORT='0'"));
  EXPECT_THAT(rejection(with(kTorchrun, {{"MASTER_PORT", "65536"}})), HasSubstr("MASTER_PORT"));
  EXPECT_THAT(rejection(with(kTorchrun, {{"MASTER_ADDR", ""}})), HasSubstr("MASTER_ADDR"));
  EXPECT_THAT(rejection(with(kSlurm, {{"SLURM_LOCALID", "2"}})), HasSubstr("SLURM_LOCALID=2"));
  EXPECT_THAT(rejection(with(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", "2(x"}})),
              HasSubstr("SLURM_STEP_TASKS_PER_NODE"));
  EXPECT_THAT(rejection(with(kSlurm, {{"SLURM_STEP_NODELIST", "gpu[03"}})),
              HasSubstr("SLURM_STEP_NODELIST"));
  EXPECT_THAT(rejection({}, tersum(2, 2, "h:1")), HasSubstr("TERSUM_RANK=2"));
  EXPECT_THAT(rejection({}, tersum(0, 0)), HasSubstr("TERSUM_SIZE=0"));
  EXPECT_THAT(rejection({}, tersum(0, 2)), HasSubstr("TERSUM_ROOT"));
  LaunchOverrides local = tersum(0, 2, "h:1");
  local.local_rank = 2;
  local.local_size = 2;
  EXPECT_THAT(rejection({}, local), HasSubstr("TERSUM_LOCAL_RANK=2"));
}

TEST(Launch, ReadsTheProcessEnvironment) {
  ::setenv("TERSUM_TEST_VARIABLE", "value", 1);
  const Environment environment = process_environment();
  EXPECT_EQ(environment("TERSUM_TEST_VARIABLE"), "value");
  ::unsetenv("TERSUM_TEST_VARIABLE");
  EXPECT_EQ(environment("TERSUM_TEST_VARIABLE"), std::nullopt);
}

TEST(Slurm, ExpandsTheFirstHost) {
  const auto first = [](const std::string& list) { return first_host("LIST", list); };
  EXPECT_EQ(first("node1"), "node1");
  EXPECT_EQ(first("node1,node2"), "node1");
  EXPECT_EQ(first("gpu[03-05,09],login1"), "gpu03");
  EXPECT_EQ(first("gpu[7]"), "gpu7");
  EXPECT_EQ(first("gpu[07,09-11]-ib"), "gpu07-ib");
  EXPECT_EQ(first("rack[1-2]node[00-15]"), "rack1node00");
  for (const char* bad : {"", ",a", "gpu[", "gpu[]", "gpu]", "gpu[-3]"}) {
    EXPECT_THROW(first(bad), Error) << bad;
  }
}

TEST(Slurm, FindsTheTasksOfThisNode) {
  const auto tasks = [](const std::string& list, const std::string& node) {
    return slurm_local_size(
        environment_of({{"SLURM_STEP_TASKS_PER_NODE", list}, {"SLURM_NODEID", node}}), 100);
  };
  EXPECT_EQ(tasks("4", "0"), 4);
  EXPECT_EQ(tasks("2(x3),1", "2"), 2);
  EXPECT_EQ(tasks("2(x3),1", "3"), 1);
  EXPECT_EQ(tasks("3,2(x2)", "1"), 2);
  for (const char* bad : {"", "x", "2(x3", "2(x)", "2,", "0", "2(x0),1"}) {
    EXPECT_THROW(tasks(bad, "5"), Error) << bad;
  }
  EXPECT_THROW(tasks("2(x3),1", "4"), Error);
  EXPECT_EQ(slurm_local_size(environment_of({{"SLURM_NNODES", "1"}}), 6), 6);
  EXPECT_THROW(slurm_local_size(environment_of({{"SLURM_NNODES", "2"}}), 6), Error);
}

TEST(ParseEndpoint, SplitsNamesAndAddresses) {
  EXPECT_EQ(parse_endpoint("node1:29500"),
            std::make_pair(std::string("node1"), std::uint16_t{29500}));
  EXPECT_EQ(parse_endpoint("127.0.0.1:1").first, "127.0.0.1");
  EXPECT_EQ(parse_endpoint("[fe80::1%eth0]:65535"),
            std::make_pair(std::string("fe80::1%eth0"), std::uint16_t{65535}));
}

TEST(ParseEndpoint, SaysWhatIsWrong) {
  const std::map<std::string, std::string> bad = {
      {"", "port is missing"},      {"node1", "port is missing"},  {"node1:", "port must be"},
      {"node1:x", "port must be"},  {"node1:0", "port must be"},   {"node1:65536", "port must be"},
      {"node1:-1", "port must be"}, {"node1:1 ", "port must be"},  {":5", "host is missing"},
      {"[]:5", "host is missing"},  {"::1:5", "needs brackets"},   {"[::1:5", "']' is missing"},
      {"[::1]", "port is missing"}, {"[::1]5", "port is missing"}, {"no de:5", "blank"},
  };
  for (const auto& [text, why] : bad) {
    try {
      parse_endpoint(text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::InvalidArgument);
      EXPECT_THAT(error.status().message(), HasSubstr(why)) << text;
    }
  }
}

}  // namespace
}  // namespace tersum::transport
