// Records the nodes that a pair's graphs compute, see pymtp_pair_trace.
#pragma once

#include "ggml.h"

#include <string>

struct pymtp_trace {
    std::string who;   // the context that is computing: "target" or "draft"
    std::string nodes; // one line for each node
    std::string taken; // the text that the last pymtp_pair_trace returned

    // the callback of type ggml_backend_sched_eval_callback
    static bool on_node(ggml_tensor * node, bool ask, void * trace);
};
