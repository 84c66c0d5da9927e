// Reading of settings from an explicit environment, for tests and tools; Config::from_environment()
// uses the process's own.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tersum/config.hpp"

namespace tersum {

/// TERSUM_* variables and their values. An empty value counts as not set.
using SettingsEnvironment = std::map<std::string, std::string>;

/// The TERSUM_* variables of this process. Not safe while another thread calls setenv().
SettingsEnvironment read_settings_environment();

/// Everything that is wrong with the TERSUM_* variables in `environment`, one message each; empty:
/// all is well. `config` gets every value that could be read.
std::vector<std::string> apply_environment(const SettingsEnvironment& environment, Config& config);

/// Defaults overlaid with `environment`. Error InvalidArgument with all messages of
/// apply_environment().
Config config_from(const SettingsEnvironment& environment);

/// As the public setting_value(), with the environment given.
SettingValue setting_value(const Config& config, const std::string& variable,
                           const SettingsEnvironment& environment);

/// CUDA_DEVICE_MAX_CONNECTIONS as this process first found it, which is what CUDA goes by; null if
/// it was not set.
const char* cuda_connections();

/// Bytes with an optional suffix: 4096, 64K, 1M, 8MiB, 1G (powers of 1024). False if `text` is none
/// or too large.
bool parse_bytes(const std::string& text, std::uint64_t& bytes) noexcept;

/// The shortest exact spelling: "64K", "25M", "1000".
std::string format_bytes(std::uint64_t bytes);

}  // namespace tersum
