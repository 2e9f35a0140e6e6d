// Records the nodes that the graphs of a pair compute, see pymtp_pair_trace.
#pragma once

#include "ggml.h"

#include <string>

struct pymtp_trace {
    std::string who;   // is computing: "target" or "draft"
    std::string nodes; // a line each
    std::string taken; // what the last pymtp_pair_trace returned

    static bool on_node(ggml_tensor * node, bool ask, void * trace); // a ggml_backend_sched_eval_callback
};
