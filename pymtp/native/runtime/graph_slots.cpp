#include "graph_slots.h"

#include <algorithm>

uint32_t pymtp_graph_slots::slot_for(shape wanted) {
    if (wanted.n_seqs == 1) {
        return wanted.n_rows;
    }
    auto found = std::find_if(batched.begin(), batched.end(), [&](const entry & k) {
        return k.key.n_seqs == wanted.n_seqs && k.key.n_rows == wanted.n_rows;
    });
    if (found == batched.end() && batched.size() < MAX_BATCHED) {
        found = batched.insert(found, {wanted, 0});
    } else if (found == batched.end()) {
        found = std::min_element(batched.begin(), batched.end(),
                [](const entry & a, const entry & b) { return a.used < b.used; });
        *found = {wanted, 0};
    }
    found->used = ++clock;
    return MAX_SINGLE_ROWS + 1 + (found - batched.begin());
}

std::vector<pymtp_graph_slots::shape> pymtp_graph_slots::largest(int32_t n_seqs, int32_t n_rows, int32_t room) {
    std::vector<shape> all;
    for (int32_t s = 2; s <= n_seqs; ++s) {
        for (int32_t n = 1; n <= n_rows && s * n <= room; ++n) {
            all.push_back({s, n});
        }
    }
    const auto larger = [](const shape & a, const shape & b) {
        return a.n_seqs * a.n_rows != b.n_seqs * b.n_rows ? a.n_seqs * a.n_rows > b.n_seqs * b.n_rows
                : a.n_seqs > b.n_seqs;
    };
    std::sort(all.begin(), all.end(), larger);
    all.resize(std::min(all.size(), MAX_BATCHED));
    return all;
}
