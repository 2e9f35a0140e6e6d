#include "text_choice.h"

#include "tuning.h"

#include <algorithm>
#include <cmath>
#include <limits>

using namespace pymtp_tuning;

using guesses = std::vector<pymtp_text_drafts::guess>;

bool pymtp_text_choice::uses_text() const {
    return std::any_of(tokens.begin(), tokens.end(), [](const auto & some) { return !some.empty(); });
}

std::vector<int> pymtp_text_depths(int n_head, int max_text) {
    std::vector<int> depths;
    for (int n = 1; n <= std::min(std::max(n_head, FINE_DEPTHS), max_text); ++n) {
        depths.push_back(n);
    }
    for (int n : COARSE_DEPTHS) {
        if (n <= max_text && (depths.empty() || n > depths.back())) {
            depths.push_back(n);
        }
    }
    return depths;
}

// Returns for each number of drafts from 0 the tokens that a round is expected to yield.
static std::vector<double> expected_tokens(const guesses & found) {
    std::vector<double> tokens{1.0};
    double all_right = 1.0;
    for (const auto & g : found) {
        all_right *= g.chance;
        tokens.push_back(tokens.back() + all_right);
    }
    return tokens;
}

static std::vector<double> logarithms(std::vector<double> values) {
    std::transform(values.begin(), values.end(), values.begin(), [](double value) { return std::log(value); });
    return values;
}

namespace {

// The sequences of a round, their expected tokens, and the seconds of rounds.
class choice_maker {
public:
    choice_maker(const pymtp_costs & costs, const std::vector<pymtp_text_sequence> & sequences,
            const pymtp_round_limits & limits);

    pymtp_text_choice choose();

private:
    // A round: the number of drafts from text, and of the head; and whether they are verified in decodes of their own.
    struct plan {
        int  text  = 0;
        int  head  = 0;
        bool split = false;
    };

    const pymtp_costs &                      costs;
    const std::vector<pymtp_text_sequence> & sequences;
    const pymtp_round_limits &               limits;
    std::vector<guesses>                     found;
    std::vector<std::vector<double>>         by_text, by_head; // logarithms of expected tokens, by number of drafts

    double text_value(size_t k, int n) const { return by_text[k][std::min<size_t>(n, by_text[k].size() - 1)]; }
    bool   takes_text(size_t k, const plan & p) const {
        return by_text[k].size() > 1 && text_value(k, p.text) > by_head[k][p.head];
    }
    double verify_seconds(int n_seqs, int drafts) const;
    double value(const plan & p) const;
};

choice_maker::choice_maker(
        const pymtp_costs & costs, const std::vector<pymtp_text_sequence> & sequences,
        const pymtp_round_limits & limits) :
    costs(costs), sequences(sequences), limits(limits) {
    const std::vector<int> depths = pymtp_text_depths(limits.max_head, limits.max_text);
    for (const pymtp_text_sequence & s : sequences) {
        const int n = std::min(s.limit, limits.max_text);
        found.push_back(s.text && n > 0 ? s.text->next(n) : guesses());
        const auto more = std::upper_bound(depths.begin(), depths.end(), (int) found.back().size());
        found.back().resize(more == depths.begin() ? 0 : more[-1]);
        by_text.push_back(logarithms(expected_tokens(found.back())));
    }
}

// Returns the seconds of verifying n_seqs neighbours with as many drafts each.
double choice_maker::verify_seconds(int n_seqs, int drafts) const {
    const int at_once = std::max(1, std::min(n_seqs, limits.room / (1 + drafts)));
    const int left    = n_seqs % at_once;
    const double rest = left > 0 ? costs.verify_seconds(left, drafts) : 0.0;
    return (n_seqs / at_once) * costs.verify_seconds(at_once, drafts) + rest;
}

// Returns the logarithm of the goal: of the geometric mean of the sequences' expected tokens, per second.
double choice_maker::value(const plan & p) const {
    double sum = 0.0, seconds = 0.0;
    int longest = 0;
    for (size_t first = 0, n = 1; first < sequences.size(); first += n, n = 1) {
        const bool text = takes_text(first, p);
        while (first + n < sequences.size() && takes_text(first + n, p) == text) {
            ++n;
        }
        for (size_t k = first; k < first + n; ++k) {
            sum += text ? text_value(k, p.text) : by_head[k][p.head];
        }
        const int drafts = text ? p.text : p.head;
        longest  = std::max(longest, drafts);
        seconds += text ? 0.0 : costs.draft_seconds(n, drafts); // only neighbours share a decode of the head
        seconds += p.split ? verify_seconds(n, drafts) : 0.0;
    }
    seconds += p.split ? 0.0 : verify_seconds(sequences.size(), longest);
    if (p.split || !costs.repeats(sequences.size(), longest)) {
        // A text that repeats a few tokens changes the number of rows, and changes it back.
        seconds += (p.text > 0 ? 2 : 1) * costs.verify_change_seconds();
    }
    return sum / sequences.size() - std::log(seconds);
}

pymtp_text_choice choice_maker::choose() {
    pymtp_text_choice choice;
    choice.tokens.resize(sequences.size());
    const bool any = std::any_of(found.begin(), found.end(),
            [](const guesses & some) { return !some.empty() && some[0].chance > LEAST_CHANCE; });
    if (!any || !costs.known()) {
        return choice;
    }
    int usable = 0; // drafts of the head
    for (const pymtp_text_sequence & s : sequences) {
        by_head.push_back(logarithms(pymtp_expected_tokens(*s.acceptance, s.limit, limits.max_head)));
        usable = std::max(usable, std::min(s.limit, limits.max_head));
    }
    plan   best;
    double most = -std::numeric_limits<double>::infinity();
    int    head = 0; // the best number without drafts from text
    for (int d = 0; d <= usable; ++d) {
        const double v = value({0, d, false});
        head = v > most ? d : head;
        most = std::max(most, v);
    }
    most += std::log(1 + MARGIN);
    std::vector<plan> plans;
    for (int n : pymtp_text_depths(limits.max_head, limits.max_text)) {
        plans.push_back({n, 0, false});
        if (sequences.size() > 1) {
            plans.push_back({n, 0, true});
        }
        if (sequences.size() > 1 && head > 0) {
            plans.push_back({n, head, false});
            plans.push_back({n, head, true});
        }
    }
    for (const plan & p : plans) {
        const double v = value(p);
        best = v > most ? p : best;
        most = std::max(most, v);
    }
    choice.depth = best.head;
    choice.split = best.split;
    for (size_t k = 0; best.text > 0 && k < sequences.size(); ++k) {
        for (size_t i = 0; takes_text(k, best) && i < std::min<size_t>(best.text, found[k].size()); ++i) {
            choice.tokens[k].push_back(found[k][i].token);
        }
    }
    return choice;
}

} // namespace

pymtp_text_choice pymtp_choose_text(
        const pymtp_costs & costs, const std::vector<pymtp_text_sequence> & sequences,
        const pymtp_round_limits & limits) {
    return choice_maker(costs, sequences, limits).choose();
}

std::vector<llama_token> pymtp_extend_by_text(
        const pymtp_costs & costs, const pymtp_text_sequence & sequence, const pymtp_round_limits & limits,
        const std::vector<llama_token> & drafts, const float * confidences) {
    const int n_drafts = drafts.size();
    const int room     = std::min(limits.max_text, sequence.limit) - n_drafts;
    std::vector<llama_token> tokens;
    if (!sequence.text || room <= 0 || !costs.known()) {
        return tokens;
    }
    const guesses found = sequence.text->after(drafts.data(), n_drafts, room);
    if (found.empty() || found[0].chance <= LEAST_CHANCE) {
        return tokens;
    }
    const std::vector<double> rates = sequence.acceptance->rates(n_drafts);
    double all_right = 1.0, expected = 1.0;
    for (int i = 0; i < n_drafts; ++i) {
        all_right *= sequence.acceptance->calibration().probability(confidences[i], rates[i]);
        expected  += all_right;
    }
    const std::vector<double> more = expected_tokens(found); // of guesses, with 1 for none
    const double drafted = costs.draft_seconds(1, n_drafts);
    double most = expected / (drafted + costs.verify_seconds(1, n_drafts)) * (1 + MARGIN);
    size_t best = 0;
    for (int n : pymtp_text_depths(limits.max_head, limits.max_text)) {
        const size_t added = n - n_drafts;
        if (n > n_drafts && added <= found.size()) {
            const double change = costs.repeats(1, n) ? 0.0 : costs.verify_change_seconds();
            const double rate =
                (expected + all_right * (more[added] - 1)) / (drafted + costs.verify_seconds(1, n) + change);
            best = rate > most ? added : best;
            most = std::max(most, rate);
        }
    }
    for (size_t i = 0; i < best; ++i) {
        tokens.push_back(found[i].token);
    }
    return tokens;
}
