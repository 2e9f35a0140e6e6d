// The constants of draft_tokens="auto": its initial beliefs, and how fast it learns. docs/tuning.md says where they
// come from and how to tune them again. Constants marked "Tuned" were changed after runs of the simulated machines of
// tests/drafting/test_depth.py and of the shipped model; the others are as first chosen.
#pragma once

// The prior of a cost curve. The logarithm of the seconds is a line over the logarithm of the count, with an uncertain
// slope, plus a Brownian motion: neighbouring counts cost about the same, distant ones may not.
struct pymtp_cost_prior {
    double slope;        // 1: twice the count takes twice the time
    double slope_spread; // standard deviation of the slope
    double wander;       // variance that the motion gathers from a count to e times that count
};

namespace pymtp_tuning {

// ── Acceptance (acceptance.cpp) ──────────────────────────────────────────────────────────────────────────────────────

// Weight of a round, per token generated after it. Text begins to repeat itself within some 30 tokens. Tuned.
constexpr double DECAY = 0.96;
// The same for the long-run record, in which only rounds with drafts count: some 250 tokens.
constexpr double LONG_DECAY = 0.996;
// Initial probability that a first draft is accepted. Reports on Qwen3.5 and 3.6 heads say 0.6 to 0.8.
constexpr double FIRST_GUESS = 0.65;
// Weight of that guess, in drafts: low, so that a useless head is found out soon.
constexpr double FIRST_WEIGHT = 4.0;
// Maximum weight of the previous sequence in a new one, in drafts of a position: its long-run record, and its end.
constexpr double CARRY     = 10.0;
constexpr double CARRY_END = 3.0;
// Weight of the position before against a position's own long-run record, in drafts. Tuned.
constexpr double WEIGHT = 3.0;
// Weight of the long-run record against a position's recent record, in drafts. Tuned.
constexpr double RECENT = 4.0;
// Share of a passage's effect on a position that is expected of the next position, too. Tuned.
constexpr double LINK = 0.7;
// Acceptance of an unseen position as a share of that of the position before: chains get worse slowly. Tuned.
constexpr double FADE = 0.99;

// Boundaries between bins of the head's probability of its draft; finer near 1, where most drafts are.
constexpr double BINS[] = {0.3, 0.6, 0.85, 0.97};
// Weight of a draft in its bin, per draft after it: a head's errors depend on model and temperature, not on the
// passage.
constexpr double BIN_DECAY = 0.99;
// Weight of "confidence says nothing" in each bin, in drafts.
constexpr double BIN_WEIGHT = 1.0;
// Highest probability that a draft is given.
constexpr double CERTAIN = 0.99;

// ── Costs (costs.cpp) ────────────────────────────────────────────────────────────────────────────────────────────────

// Time of a draft step as a share of a plain round, before one was timed: that of small models, where it is largest.
constexpr double STEP_SHARE = 0.25;
// Priors for a verification by rows and a chain by steps, before either was timed. Eight rows take between 1.1 and 5
// times as long as one, most of all for small models on a CPU, and kernels change between counts. A chain of n steps
// takes n times a step, apart from the overhead of a decode. Tuned.
constexpr pymtp_cost_prior ROWS  = {0.45, 0.25, 0.06};
constexpr pymtp_cost_prior CHAIN = {0.95, 0.15, 0.01};
// Timings of one row before anything is compared with it.
constexpr int PLAIN = 6;
// Rounds of a kind that count little: the first builds graphs, and caches are cold in both.
constexpr int WARM = 2;
// Noise of timings, as standard deviations of their logarithms: of a round, of the second round of a kind, and of a
// timing before the first round, when a busy moment may have spoilt all timings of a kind.
constexpr double NOISE       = 0.06;
constexpr double COLD_NOISE  = 0.12;
constexpr double FIRST_NOISE = 0.10;
// Likewise, how far a draft step may be from STEP_SHARE.
constexpr double GUESS_NOISE = 0.7;
// Drift from round to round: of the machine's pace, which all counts share, and of each count's own part. Tuned.
constexpr double PACE_DRIFT = 0.015;
constexpr double OWN_DRIFT  = 0.002;
// Upper limit for a timing's excess over the estimate, in standard deviations. Tuned.
constexpr double CLIP = 1.5;
// The most rows that first_costs.py times; and the noise of further rows around the line through these, likewise, for
// each doubling: other kernels may be used, or compute may become the bottleneck.
constexpr int    MOST_TIMED   = 8;
constexpr double BEYOND_NOISE = 0.25;
// A count known better than this is relied on: standard deviation of its logarithm against the count timed last.
constexpr double SURE = 0.06;
// How many standard deviations below the estimate the optimistic estimate is. Tuned.
constexpr double HOPE = 1.2;
// A cold round that takes less than this share of the estimate counts for its rows all the same. When plain rounds
// seem to take so much more than others, they were mistimed.
constexpr double CHEAPER = 0.9;
// Weight of a round with a change of depth in the estimated cost of such a change.
constexpr double COLD_GAIN = 0.05;
// Number of earlier tokens at which attention takes as long as everything else: that of small models, the scale of
// `growth`.
constexpr double CONTEXT = 250;
// Standard deviation of attention's share at CONTEXT earlier tokens, in times of a row, before it was observed.
constexpr double GROWTH_SPREAD = 0.1;

// ── Depth (depth.cpp) ────────────────────────────────────────────────────────────────────────────────────────────────

// How much better another depth must look to be chosen, as a share of the rate: without it, near ties would flap.
// Tuned.
constexpr double MARGIN = 0.01;
// Rounds in which a change of depth must pay for itself.
constexpr double SOON = 8.0;
// Rounds for which a new depth is kept after its first, so that it gets timed. Fewer when its first draft is wrong.
constexpr int STAY = 2;
// How much better an unknown depth must be at best to be tried, as a share of the rate. Tuned, from 0.05.
constexpr double PROMISE = 0.07;
// Correct drafts that are imagined at every position while nothing is drafted, because acceptance may have become
// better.
// Tuned, from 8.
constexpr double DOUBT = 13.0;

// While drafting gains less than this factor, plain decoding is timed again: first after RECHECK rounds with drafts,
// then after twice as many each time, up to MOST_RECHECK.
constexpr double CLOSE        = 1.15;
constexpr int    RECHECK      = 8;
constexpr int    MOST_RECHECK = 512;

// Budget for the losses of drafting against plain decoding, in tokens of plain decoding. The aim: when no draft is
// ever accepted, at most 3% of a first request of 256 tokens, which is 7.7 tokens. Tuned.
constexpr double ALLOWANCE    = 2.5;   // budget of a new LLM
constexpr double EARNED       = 24.0;  // maximum that gains can raise it to
constexpr double CARRIED      = 20.0;  // maximum that a new request begins with
constexpr double DEBT         = 1.0;   // how far the best-looking depth may overdraw it
constexpr double EACH_REQUEST = 0.25;  // added by each request
constexpr double EACH_TOKEN   = 0.003; // added by each token; and the same again to the budget for peeks
// Budget for peeks, in tokens: each token adds this share of the budget above; a peek counts for at most MOST_PEEK.
constexpr double SPEND     = 0.005;
constexpr double MOST_PEEK = 4.0;

// ── Depth of several sequences (batch_depth.cpp) ─────────────────────────────────────────────────────────────────────

// Extra time of the first round with so many rows, as a share of a round: its memory is new. Measured.
constexpr double BUILD = 1.0;
// Correct drafts that are imagined for a trial: positions that were seldom reached may be better than estimated. Tuned.
constexpr double LUCK = 1.0;
// Budget for the losses of drafting against plain rounds, in plain rounds: of a new LLM, and added by each round.
// EARNED and DEBT bound it.
constexpr double BATCH_ALLOWANCE = 2.0;
constexpr double EACH_ROUND      = 0.003;
// Budget for peeks, in plain rounds: added by each round, added by new texts in proportion to their share, and the
// maximum. Tuned.
constexpr double PEEKS      = 0.005;
constexpr double NEW_TEXT   = 0.15;
constexpr double MOST_PEEKS = 2.0;

} // namespace pymtp_tuning
