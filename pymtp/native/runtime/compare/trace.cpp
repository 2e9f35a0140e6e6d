#include "compare/trace.h"

#include <algorithm>
#include <cstdint>

// Adds a line about a node, in the format of pymtp_pair_trace.
static void add_line(std::string & nodes, const std::string & who, const ggml_tensor * node) {
    nodes += who + " " + node->name + " " + ggml_op_name(node->op);
    nodes += (uintptr_t) node->data % 64 == 0 ? " 1" : " 0";
    int64_t most = 0;
    for (const ggml_tensor * source : node->src) {
        most = std::max(most, source ? ggml_nelements(source) : 0);
    }
    nodes += " " + std::to_string(most);
    for (int64_t n : node->ne) {
        nodes += " " + std::to_string(n);
    }
    nodes += "\n";
}

bool pymtp_trace::on_node(ggml_tensor * node, bool ask, void * data) {
    if (ask) {
        auto * trace = static_cast<pymtp_trace *>(data);
        try {
            add_line(trace->nodes, trace->who, node);
        } catch (...) { // if there is no memory, the line is missing or incomplete
        }
    }
    return !ask;
}
