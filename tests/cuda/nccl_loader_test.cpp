#include "cuda/nccl_loader.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tersum/error.hpp"

namespace tersum::gpu {
namespace {

namespace fs = std::filesystem;

std::string complaint_of(const std::string& path) {
  try {
    NcclLibrary::load(path);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::Unsupported);
    return error.status().message();
  }
  return {};
}

TEST(NcclLoader, NamesTheFileThatIsMissingAndTheRemedy) {
  const std::string complaint = complaint_of("/nowhere/libnccl.so.2");
  EXPECT_NE(complaint.find("/nowhere/libnccl.so.2"), std::string::npos) << complaint;
  EXPECT_NE(complaint.find("--nccl-library"), std::string::npos) << complaint;
}

TEST(NcclLoader, RefusesALibraryThatIsNotNccl) {
  const std::string complaint = complaint_of("libm.so.6");
  EXPECT_NE(complaint.find("lacks ncclGetVersion"), std::string::npos) << complaint;
}

TEST(NcclLoader, LooksWhereToolkitsAndPythonPackagesAre) {
  const fs::path root = fs::temp_directory_path() / ("nccl-places-" + std::to_string(::getpid()));
  const std::vector<fs::path> files{
      root / "usr/local/cuda/lib64/libnccl.so.2",
      root / "usr/local/lib/python3.12/dist-packages/nvidia/nccl/lib/libnccl.so.2",
      root / "opt/torch/.venv/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2"};
  for (const fs::path& file : files) {
    fs::create_directories(file.parent_path());
    std::ofstream(file).put('x');
  }
  std::vector<std::string> wanted{"libnccl.so.2"};
  for (const fs::path& file : files) wanted.push_back(file.string());
  EXPECT_EQ(nccl_places(root), wanted);
  fs::remove_all(root);
  EXPECT_EQ(nccl_places(root), std::vector<std::string>{"libnccl.so.2"});
}

}  // namespace
}  // namespace tersum::gpu
