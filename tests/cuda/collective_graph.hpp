// Graphs of what a function puts into a stream.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/error.hpp"
#include "cuda/stream.hpp"

namespace tersum::gpu {

/// Owns a captured graph that can be launched.
class Graph {
 public:
  template <class Function>
  Graph(StreamView stream, Function&& submit) {
    check(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), "capture");
    submit();
    cudaGraph_t graph = nullptr;
    check(cudaStreamEndCapture(stream.get(), &graph), "end of capture");
    const cudaError_t code = cudaGraphInstantiate(&graph_, graph, 0);
    cudaGraphDestroy(graph);
    check(code, "cudaGraphInstantiate");
    check(cudaGraphUpload(graph_, stream.get()), "cudaGraphUpload");
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() { cudaGraphExecDestroy(graph_); }

  void launch(StreamView stream) const { check(cudaGraphLaunch(graph_, stream.get()), "launch"); }

 private:
  cudaGraphExec_t graph_ = nullptr;
};

}  // namespace tersum::gpu
