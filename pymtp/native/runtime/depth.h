// Chooses how many tokens to draft for each sequence of the next round, for the most tokens/s. The code reads no clock
// and uses no random numbers, so the same recorded rounds always lead to the same choices.
#pragma once

#include "acceptance.h"
#include "costs.h"
#include "tuning.h"

#include <vector>

// Returns for each depth from 0 to max_depth the expected tokens of a sequence in a round, which are
// 1 + a1 + a1*a2 + ... + a1*...*an. limit: the most drafts that the sequence can use
std::vector<double> pymtp_expected_tokens(const pymtp_acceptance & acceptance, int limit, int max_depth);

// Chooses the depth (number of draft tokens per sequence and round) with the highest rate: the expected number of
// tokens of a round at that depth, divided by the seconds of the round. All sequences of a round draft the same number.
// (SmartSpec: Liu et al., "Optimizing Speculative Decoding for Serving Large Language Models Using Goodput", arXiv
// 2406.14066. Leviathan, Kalman, Matias, "Fast Inference from Transformers via Speculative Decoding", equation 1, with
// an acceptance rate for each position and sequence.)
//
// An account bounds what drafting may lose against plain decoding, in the time of plain rounds: each round adds a
// little to it, and a round with drafts adds what it gained and takes what it lost. No round drafts if it could
// overdraw the account, unless the last drafts were correct. Part of the gains pays for peeks.
//
// While plain decoding looks best, some rounds are peeks: they make one draft for each sequence, and verify it only if
// the head is confident enough. Even without verification, the next tokens of the target show whether the drafts were
// correct. So a peek costs only one draft step. Peeks have an account of their own, so that a text that becomes
// predictable is always noticed.
struct pymtp_depth {
    // costs: the costs of rounds in the context; must outlive this object
    explicit pymtp_depth(pymtp_costs & costs) : costs(costs) {}

    // One sequence of a round.
    struct sequence {
        pymtp_acceptance * acceptance;
        int                limit; // the most drafts that the sequence can use
    };

    // Returns how many drafts to make for each sequence, at most max_depth.
    // n_idle: number of rounds without drafts since the last call of observe() that nothing was asked or told about
    int choose(const std::vector<sequence> & sequences, int max_depth, int n_idle);

    // Returns for how many of the next rounds of the same sequences nothing need be asked or told, because they will
    // make
    // no drafts: while plain decoding is best, only a peek can show that drafting pays off.
    int idle_rounds() const;

    // Returns how many of the n_drafts drafts just made for each sequence to verify: usually all, or none in a peek,
    // and another number if the head's confidence promises more tokens/s.
    // confidences: the head's probability of each draft, n_drafts for each sequence
    int n_to_verify(const std::vector<pymtp_acceptance *> & sequences, int n_drafts, const float * confidences);

    // The result of a round for one sequence.
    struct outcome {
        pymtp_acceptance * acceptance;
        int                judged;   // number of drafts that the target judged
        int                correct;  // number of judged drafts before the first wrong one
        int                n_tokens; // number of tokens that the round produced for the sequence
    };

    // Records the round whose depth the last call of choose() returned.
    // drafted, verified: number of drafts that were made, and that were verified, for each sequence
    void observe(const std::vector<outcome> & outcomes, int drafted, double draft_seconds, int verified,
            double verify_seconds);

private:
    int    decide(const std::vector<sequence> & sequences, int max_depth);
    double max_loss(int n_seqs, int depth) const;
    bool   may_pay_off() const;
    double peek_credit() const { return peek_account + (is_promising ? pymtp_tuning::WEIGHT * peek_price : 0.0); }

    pymtp_costs & costs;

    double account      = pymtp_tuning::FIRST_BALANCE; // time that drafting may still lose, in plain rounds
    double peek_account = 1.0; // time that peeks may still take, in plain rounds: 1 is enough for any peek

    int    depth         = 0;     // the depth of the current round
    double peek_price    = 0.0;   // time of a peek in the current round, in plain rounds
    bool   is_peek       = false;
    bool   is_promising  = false; // half of the last first drafts were correct, or more
    bool   is_trial      = false; // the round tries another depth than the best, because its time is uncertain

    int    right_peeks   = 0;     // number of the last rounds that were peeks whose drafts were correct
    int    rounds_to_trial = pymtp_tuning::TRIAL_EVERY;
    double best_rate     = 0.0;   // expected tokens/s at the best depth

    std::vector<double> seconds;     // estimated seconds of a round at each depth
    std::vector<int>    limits;      // the most drafts that each sequence of the current round can use
    std::vector<float>  confidences; // of the drafts of the current round
};
