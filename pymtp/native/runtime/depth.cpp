#include "depth.h"

#include <algorithm>

using namespace pymtp_tuning;

// Returns for each depth from 0 the expected number of tokens of a round of all sequences: for each sequence
// 1 + a1 + a1*a2 + ... + a1*...*an.
static std::vector<double> expected_tokens(const std::vector<pymtp_depth::sequence> & sequences, int max_depth) {
    std::vector<double> tokens(1 + max_depth, (double) sequences.size());
    for (const pymtp_depth::sequence & s : sequences) {
        const int n = std::min(s.limit, max_depth);
        const std::vector<double> rates = s.acceptance->rates(n);
        double all_accepted = 1.0;
        double sum          = 0.0;
        for (int d = 1; d <= max_depth; ++d) {
            all_accepted *= d <= n ? rates[d - 1] : 0.0;
            sum += all_accepted;
            tokens[d] += sum;
        }
    }
    return tokens;
}

int pymtp_depth::choose(const std::vector<sequence> & sequences, int max_depth, int n_idle) {
    is_peek = is_trial = false;
    account      = std::min(MOST_BALANCE, account + (1 + n_idle) * EACH_ROUND);
    peek_account = std::min(MOST_BALANCE, peek_account + (1 + n_idle) * EACH_ROUND);
    for (const sequence & s : sequences) {
        s.acceptance->observe(0, 0, n_idle);
    }
    rounds_to_trial--;
    seconds.clear();
    if (max_depth <= 0 || !costs.known()) {
        return depth = 0;
    }
    const int n_seqs = sequences.size();
    seconds    = costs.rounds(n_seqs, max_depth);
    peek_price = costs.peek_seconds(n_seqs) / seconds[0];
    depth      = decide(sequences, max_depth);
    is_peek    = depth == 0 && !is_trial && peek_price <= peek_credit() && may_pay_off();
    return is_peek ? 1 : depth;
}

int pymtp_depth::idle_rounds() const {
    if (seconds.empty() || depth > 0 || is_trial) {
        return 0;
    }
    const double missing = may_pay_off() ? peek_price - peek_credit() : peek_price;
    return std::max(0, std::min(MOST_IDLE, (int) (missing / EACH_ROUND)));
}

// Returns how much a round at a depth loses if no draft is accepted, in plain rounds. A cold round takes twice its
// time.
double pymtp_depth::max_loss(int n_seqs, int d) const {
    return d == 0 ? 0.0 : (costs.is_cold(n_seqs, d) ? 2 : 1) * seconds[d] / seconds[0] - 1;
}

// Returns the depth of the next round: the one with the highest rate among those that the account allows, or another
// one to time it.
int pymtp_depth::decide(const std::vector<sequence> & sequences, int max_depth) {
    const int n_seqs = sequences.size();
    const std::vector<double> tokens = expected_tokens(sequences, max_depth);
    const auto rate    = [&](int d) { return tokens[d] / seconds[d]; };
    const auto allowed = [&](int d) { return is_promising || max_loss(n_seqs, d) <= account; };

    int best = 0;
    for (int d = 1; d <= max_depth; ++d) {
        best = allowed(d) && rate(d) > rate(best) ? d : best;
    }
    for (int d : {0, std::min(depth, max_depth)}) {
        if (allowed(d) && rate(best) < (1 + MARGIN) * rate(d)) {
            best = d;
        }
    }
    // The times of other depths grow old, and a busy machine may have disturbed them.
    if (rounds_to_trial <= 0 && (best > 0 || is_promising)) {
        rounds_to_trial = TRIAL_EVERY;
        is_trial        = true;
        int oldest = best;
        for (int d = 0; d <= max_depth; ++d) {
            const bool older = costs.doubt(n_seqs, d) * rate(d) > costs.doubt(n_seqs, oldest) * rate(oldest);
            oldest = allowed(d) && older ? d : oldest;
        }
        return oldest;
    }
    int    trial   = best;
    double promise = (1 + MARGIN) * rate(best);
    for (int d = 0; d <= max_depth; ++d) {
        const double hoped = rate(d) / (1 - costs.doubt(n_seqs, d));
        if (allowed(d) && hoped > promise) {
            trial   = d;
            promise = hoped;
        }
    }
    return trial;
}

// Returns whether drafting may pay off if acceptance has improved since it was observed.
bool pymtp_depth::may_pay_off() const {
    double hoped = 1.0;
    double power = 1.0;
    for (size_t d = 1; d < seconds.size(); ++d) {
        power *= HOPED_RATE;
        hoped += power;
        if (hoped * seconds[0] > seconds[d]) {
            return true;
        }
    }
    return false;
}

void pymtp_depth::observe(const std::vector<outcome> & outcomes, int drafted, double draft_seconds, int verified,
        double verify_seconds) {
    const int  n_seqs = outcomes.size();
    const bool cold   = costs.is_cold(n_seqs, verified);
    costs.observe(n_seqs, drafted, draft_seconds, verified, verify_seconds);
    int n_tokens = 0, n_right = 0;
    for (const outcome & o : outcomes) {
        o.acceptance->observe(o.judged, o.correct, o.n_tokens);
        n_tokens += o.n_tokens;
        n_right  += o.correct > 0;
    }
    if (drafted == 0 || drafted >= (int) seconds.size()) {
        return;
    }
    is_promising = 2 * n_right >= n_seqs;
    double took = (cold ? 2 : 1) * seconds[drafted] / seconds[0];
    if (verified == 0) {
        took = 1 + peek_price;
        peek_account += 1 - took;
    }
    account = std::max(-DEBT, account + (double) n_tokens / n_seqs - took);
}
