// Records the nodes that a pair's graphs compute, see pymtp_pair_trace.
#pragma once

#include "ggml.h"

#include <string>

struct pymtp_trace {
    std::string who;   // the context that is computing: "target" or "draft"
    std::string nodes; // one line each
    std::string taken; // the result of the last pymtp_pair_trace

    static bool on_node(ggml_tensor * node, bool ask, void * trace); // a ggml_backend_sched_eval_callback
};
