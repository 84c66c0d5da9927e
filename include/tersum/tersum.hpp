// Everything of the public C++ interface.
#pragma once

#include "tersum/communicator.hpp"
#include "tersum/compressor.hpp"
#include "tersum/config.hpp"
#include "tersum/error.hpp"
#include "tersum/gradient_exchange.hpp"
#include "tersum/stage.hpp"
#include "tersum/types.hpp"
#include "tersum/version.hpp"
#include "tersum/work.hpp"
