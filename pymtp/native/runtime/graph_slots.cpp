#include "graph_slots.h"

#include <algorithm>

uint32_t pymtp_graph_slots::of(shape wanted) {
    if (wanted.n_seqs == 1) {
        return wanted.n_rows;
    }
    auto found = std::find_if(several.begin(), several.end(), [&](const kept & k) {
        return k.of.n_seqs == wanted.n_seqs && k.of.n_rows == wanted.n_rows;
    });
    if (found == several.end() && several.size() < MOST) {
        found = several.insert(found, {wanted, 0});
    } else if (found == several.end()) {
        found  = std::min_element(several.begin(), several.end(), [](const kept & a, const kept & b) { return a.used < b.used; });
        *found = {wanted, 0};
    }
    found->used = ++clock;
    return OF_ONE + 1 + (found - several.begin());
}

std::vector<pymtp_graph_slots::shape> pymtp_graph_slots::largest(int32_t n_seqs, int32_t n_rows, int32_t room) {
    std::vector<shape> all;
    for (int32_t s = 2; s <= n_seqs; ++s) {
        for (int32_t n = 1; n <= n_rows && s * n <= room; ++n) {
            all.push_back({s, n});
        }
    }
    const auto larger = [](const shape & a, const shape & b) {
        return a.n_seqs * a.n_rows != b.n_seqs * b.n_rows ? a.n_seqs * a.n_rows > b.n_seqs * b.n_rows : a.n_seqs > b.n_seqs;
    };
    std::sort(all.begin(), all.end(), larger);
    all.resize(std::min(all.size(), MOST));
    return all;
}
