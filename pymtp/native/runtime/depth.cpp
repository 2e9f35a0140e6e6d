#include "depth.h"

#include <algorithm>
#include <cmath>

using namespace pymtp_tuning;

std::vector<double> pymtp_expected_tokens(const pymtp_acceptance & acceptance, int limit, int max_depth) {
    const int n = std::max(0, std::min(limit, max_depth));
    const std::vector<double> rates = acceptance.rates(n);
    std::vector<double> tokens(1 + max_depth, 1.0);
    double all_accepted = 1.0;
    for (int d = 1; d <= max_depth; ++d) {
        all_accepted *= d <= n ? rates[d - 1] : 0.0;
        tokens[d] = tokens[d - 1] + all_accepted;
    }
    return tokens;
}

// Returns for each depth from 0 the number of sequences times the geometric mean of their expected tokens in a round.
// With the sum instead of this mean, easy texts would slow down hard ones: here, a depth that doubles the speed of one
// sequence may at most halve that of another.
static std::vector<double> expected_tokens(const std::vector<pymtp_depth::sequence> & sequences, int max_depth) {
    const double n_seqs = sequences.size();
    std::vector<double> means(1 + max_depth, n_seqs);
    for (const pymtp_depth::sequence & s : sequences) {
        const std::vector<double> tokens = pymtp_expected_tokens(*s.acceptance, s.limit, max_depth);
        for (int d = 1; d <= max_depth; ++d) {
            means[d] *= std::pow(tokens[d], 1 / n_seqs);
        }
    }
    return means;
}

// Returns the tokens of a sequence in a round at a depth, if acceptance has improved since it was observed.
static double hoped_tokens(int depth) {
    return (1 - std::pow(HOPED_RATE, 1 + depth)) / (1 - HOPED_RATE);
}

int pymtp_depth::choose(const std::vector<sequence> & sequences, int max_depth, int n_idle) {
    is_peek = is_trial = false;
    const double n_rounds = 1.0 + n_idle;
    const double moved    = std::max(0.0, account - FIRST_BALANCE) * (1 - std::pow(1 - EACH_ROUND, n_rounds));
    account      = std::min(MOST_BALANCE, account + n_rounds * EACH_ROUND - moved);
    peek_account = std::min(FIRST_BALANCE, peek_account + n_rounds * EACH_ROUND + moved);
    rounds_to_trial = std::max(0, rounds_to_trial - 1 - n_idle);
    seconds.clear();
    confidences.clear();
    limits.clear();
    for (const sequence & s : sequences) {
        s.acceptance->observe(0, 0, {}, n_idle);
        limits.push_back(s.limit);
    }
    if (max_depth <= 0 || !costs.known()) {
        return depth = 0;
    }
    const int n_seqs = sequences.size();
    seconds    = costs.rounds(n_seqs, max_depth);
    peek_price = costs.peek_seconds(n_seqs) / seconds[0];
    depth      = decide(sequences, max_depth);
    is_peek    = depth == 0 && !is_trial && std::min(1.0, peek_price) <= peek_credit() && may_pay_off();
    return is_peek ? 1 : depth;
}

int pymtp_depth::idle_rounds() const {
    if (seconds.empty() || depth > 0 || is_trial) {
        return 0;
    }
    const double missing = may_pay_off() ? std::min(1.0, peek_price) - peek_credit() : peek_price;
    // what the account of peeks gains per round
    const double gained  = EACH_ROUND * (1 + std::max(0.0, account - FIRST_BALANCE));
    return std::max(0, std::min(MOST_IDLE, (int) (missing / gained)));
}

// Returns how much a round at a depth loses if no draft is accepted, in plain rounds. A cold round takes twice its
// time.
double pymtp_depth::max_loss(int n_seqs, int d) const {
    const double took = (costs.is_cold(n_seqs, d) ? 2 : 1) * seconds[d] + costs.change_seconds(n_seqs, d, d);
    return d == 0 ? 0.0 : took / seconds[0] - 1;
}

// Returns the depth of the next round: the one with the highest rate among those that the account allows, or another
// one to time it.
int pymtp_depth::decide(const std::vector<sequence> & sequences, int max_depth) {
    const int n_seqs = sequences.size();
    const std::vector<double> tokens = expected_tokens(sequences, max_depth);
    const auto rate    = [&](int d) { return tokens[d] / (seconds[d] + costs.change_seconds(n_seqs, d, d) / KNOWN); };
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
    best_rate = rate(best);
    int    trial   = best;
    double promise = (1 + MARGIN) * rate(best);
    if (best > 0 || is_promising) { // elsewhere, peeks come first
        // The times of other depths grow old, and a busy machine may have disturbed them.
        if (rounds_to_trial <= 0) {
            rounds_to_trial = TRIAL_EVERY;
            is_trial        = true;
            int oldest = best;
            for (int d = 0; d <= max_depth; ++d) {
                const bool older = costs.doubt(n_seqs, d) * rate(d) > costs.doubt(n_seqs, oldest) * rate(oldest);
                oldest = allowed(d) && older ? d : oldest;
            }
            return oldest;
        }
        for (int d = 0; d <= max_depth; ++d) {
            const double hoped = rate(d) / (1 - costs.doubt(n_seqs, d));
            if (max_loss(n_seqs, d) <= account && hoped > promise) {
                trial   = d;
                promise = hoped;
            }
        }
    }
    // Peeks say nothing about drafts after the first, so after several correct ones, a chain is tried.
    if (trial == 0 && right_peeks >= WEIGHT) {
        for (int d = 1; d <= max_depth; ++d) {
            const double hoped = n_seqs * hoped_tokens(d) / seconds[d];
            if (max_loss(n_seqs, d) <= account && hoped > promise) {
                trial   = d;
                promise = hoped;
            }
        }
        right_peeks = trial ? 0 : right_peeks;
    }
    is_trial = trial != best;
    return trial;
}

// Returns whether drafting may pay off if acceptance has improved since it was observed.
bool pymtp_depth::may_pay_off() const {
    for (size_t d = 1; d < seconds.size(); ++d) {
        if (hoped_tokens(d) * seconds[0] > seconds[d]) {
            return true;
        }
    }
    return false;
}

int pymtp_depth::n_to_verify(
        const std::vector<pymtp_acceptance *> & sequences, int n_drafts, const float * probabilities) {
    const int n_seqs = sequences.size();
    confidences.assign(probabilities, probabilities + n_seqs * n_drafts);
    if (is_trial || seconds.empty() || limits.size() != sequences.size()) {
        return n_drafts;
    }
    std::vector<double> tokens(n_drafts, 0.0); // that each draft is expected to add to the round, if it is verified
    for (int k = 0; k < n_seqs; ++k) {
        const std::vector<double> rates = sequences[k]->rates(n_drafts);
        double all_accepted = 1.0;
        for (int i = 0; i < std::min(n_drafts, limits[k]); ++i) {
            all_accepted *= sequences[k]->calibration().probability(confidences[k * n_drafts + i], rates[i]);
            tokens[i] += all_accepted;
        }
    }
    const int usual        = is_peek ? 0 : n_drafts;
    int       most_gainful = 0;
    double    gain = 0.0, most = 0.0;
    for (int i = 0; i < n_drafts; ++i) {
        gain += tokens[i] - best_rate * (costs.verify_seconds(n_seqs, 1 + i) - costs.verify_seconds(n_seqs, i));
        if (gain >= most) {
            most_gainful = 1 + i;
            most         = gain;
        }
    }
    const double usual_gain = usual ? gain : 0.0;
    return most > usual_gain + best_rate * costs.verify_change_seconds() ? most_gainful : usual;
}

void pymtp_depth::observe(const std::vector<outcome> & outcomes, int drafted, double draft_seconds, int verified,
        double verify_seconds) {
    const int n_seqs = outcomes.size();
    if (confidences.size() != (size_t) (n_seqs * drafted)) {
        confidences.clear(); // they are those of another round
    }
    const bool   cold   = costs.is_cold(n_seqs, verified);
    const double change = costs.change_seconds(n_seqs, drafted, verified);
    costs.observe(n_seqs, drafted, draft_seconds, verified, verify_seconds);
    int n_tokens = 0, n_right = 0;
    for (int k = 0; k < n_seqs; ++k) {
        const outcome & o = outcomes[k];
        const bool told = !confidences.empty(); // by the head
        for (int i = 0; told && i < std::min(o.judged, o.correct + 1); ++i) {
            o.acceptance->calibration().observe(confidences[k * drafted + i], i < o.correct);
        }
        std::vector<double> chances = o.acceptance->rates(drafted);
        for (int i = 0; told && i < drafted; ++i) {
            chances[i] = o.acceptance->calibration().probability(confidences[k * drafted + i], chances[i]);
        }
        o.acceptance->observe(o.judged, o.correct, {chances.begin() + o.judged, chances.end()}, o.n_tokens);
        n_tokens += o.n_tokens;
        n_right  += o.correct > 0;
    }
    if (drafted == 0 || seconds.empty() || !costs.known()) { // costs may have been forgotten during the round
        return;
    }
    is_promising = 2 * n_right >= n_seqs;
    right_peeks  = is_peek && is_promising ? right_peeks + 1 : 0;
    double took = (cold ? 2 : 1) * costs.verify_seconds(n_seqs, verified) / seconds[0];
    if (is_peek) {
        peek_account = std::max(-1.0, peek_account - peek_price); // the price may be wrong
    } else {
        took += (costs.draft_seconds(n_seqs, drafted) + change) / seconds[0];
    }
    account = std::max(0.0, account + (double) n_tokens / n_seqs - took);
}
