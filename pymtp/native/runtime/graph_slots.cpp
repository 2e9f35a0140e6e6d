#include "graph_slots.h"

#include <algorithm>

uint32_t pymtp_graph_slots::of(int32_t n_seqs, int32_t n) {
    if (n_seqs == 1) {
        return n;
    }
    auto found = std::find_if(shapes.begin(), shapes.end(), [&](const shape & s) { return s.n_seqs == n_seqs && s.n == n; });
    if (found == shapes.end() && shapes.size() < MOST) {
        found = shapes.insert(found, {n_seqs, n, 0});
    } else if (found == shapes.end()) {
        found  = std::min_element(shapes.begin(), shapes.end(), [](const shape & a, const shape & b) { return a.used < b.used; });
        *found = {n_seqs, n, 0};
    }
    found->used = ++clock;
    return OF_ONE + 1 + (found - shapes.begin());
}
