// The constants of draft_tokens="auto": its initial estimates, and how fast it learns. docs/tuning.md says where the
// constants come from and how to tune them again. Constants marked "Tuned" were adjusted after runs on the simulated
// machines of tests/drafting/test_depth.py and runs of the shipped model; all others have their first value.
#pragma once

// The prior of a cost curve, which estimates the seconds of an operation as a function of a count. As a function of
// log(count), log(seconds) is a straight line of uncertain slope, plus a Brownian motion. So neighbouring counts take
// about the same time, while distant counts may differ much.
struct pymtp_cost_prior {
    double slope;        // expected slope; at a slope of 1, twice the count takes twice the time
    double slope_spread; // standard deviation of the slope
    double wander;       // variance that the Brownian motion gathers between a count and e times that count
};

namespace pymtp_tuning {

// ── Acceptance (acceptance.cpp) ──────────────────────────────────────────────────────────────────────────────────────

// In the recent record of acceptance, the weight of a round is multiplied by this factor for each token generated
// later. It halves in 17 tokens: a text can begin to repeat itself within about 30 tokens, and its acceptance then
// changes. Tuned.
constexpr double DECAY = 0.96;
// In the long-run record of acceptance, the weight of a round is multiplied by this factor for each token that later
// rounds with drafts generate: it falls to 1/e within 250 tokens.
constexpr double LONG_DECAY = 0.996;
// Assumed probability that the first draft of a chain is accepted, before any was observed. Published measurements of
// the heads of Qwen3.5 and 3.6 report 0.6 to 0.8.
constexpr double FIRST_GUESS = 0.65;
// Weight of FIRST_GUESS, as a number of observed drafts. It is low so that a useless head is noticed soon.
constexpr double FIRST_WEIGHT = 4.0;
// Weight of the previous sequence in a new one, as a number of observed drafts per position: the most that its long-run
// record counts for, and the weight of its acceptance at its end.
constexpr double CARRY     = 10.0;
constexpr double CARRY_END = 3.0;
// Weight of the acceptance at the position before in the long-run estimate of a position, as a number of observed
// drafts. Tuned.
constexpr double WEIGHT = 3.0;
// Weight of a position's long-run estimate in its present estimate, as a number of observed drafts; the rest is its
// recent record. Tuned.
constexpr double RECENT = 4.0;
// When acceptance at a position deviates from its long-run estimate in the present passage of text, the next position
// is expected to deviate by this share of it. Tuned.
constexpr double LINK = 0.7;
// Expected acceptance at a position that was never observed, as a share of the acceptance at the position before: it
// falls slowly along a chain. Tuned.
constexpr double FADE = 0.99;

// Boundaries between the bins of the head's probability of its own draft. They are closer near 1, where most drafts
// are.
constexpr double BINS[] = {0.3, 0.6, 0.85, 0.97};
// The weight of a draft in its bin is multiplied by this factor for each later draft in the bin. It fades slowly,
// because how far the head's probabilities are off depends on model and temperature, not on the passage of text.
constexpr double BIN_DECAY = 0.99;
// Weight, as a number of drafts in each bin, of the initial assumption that the head's probability says nothing about
// acceptance.
constexpr double BIN_WEIGHT = 1.0;
// Upper limit for the estimated probability that a draft is accepted.
constexpr double CERTAIN = 0.99;

// ── Costs (costs.cpp) ────────────────────────────────────────────────────────────────────────────────────────────────

// Assumed time of a draft step before one was timed, as a share of a plain round. This is the share with small models;
// with larger models it is smaller.
constexpr double STEP_SHARE = 0.25;
// Priors for the time of a verification by its number of rows (ROWS), and of a chain by its number of steps (CHAIN).
// Eight rows take 1.1 to 5 times as long as one row (5 times with small models on a CPU), and different numbers of rows
// may use different kernels. A chain of n steps takes about n times as long as one step; only the overhead of a decode
// does not grow. Tuned.
constexpr pymtp_cost_prior ROWS  = {0.45, 0.25, 0.06};
constexpr pymtp_cost_prior CHAIN = {0.95, 0.15, 0.01};
// Number of timings of one row that must exist before the times of other numbers of rows are compared with it.
constexpr int PLAIN = 6;
// After a change of depth, the timings of this many rounds get a low weight: the first round builds graphs, and caches
// are cold in both.
constexpr int WARM = 2;
// Noise of timings, as the standard deviation of the logarithm of the seconds: of a usual round (NOISE), of the first
// WARM rounds after a change of depth (COLD_NOISE), and of a timing before the first round (FIRST_NOISE). The last is
// higher than NOISE because a busy moment may have spoilt all timings of one count.
constexpr double NOISE       = 0.06;
constexpr double COLD_NOISE  = 0.12;
constexpr double FIRST_NOISE = 0.10;
// Noise of the guess STEP_SHARE, as the standard deviation of the logarithm of the seconds.
constexpr double GUESS_NOISE = 0.7;
// Drift of the logarithm of the seconds from one round to the next, as a standard deviation: of the machine's pace,
// which all counts share, and of the part that belongs to one count. Tuned.
constexpr double PACE_DRIFT = 0.015;
constexpr double OWN_DRIFT  = 0.002;
// A timing that exceeds the estimate by more than this many standard deviations counts as if it exceeded it by only
// that much. Tuned.
constexpr double CLIP = 1.5;
// MOST_TIMED is the largest number of rows that the warm-up times. Times of more rows are extrapolated with a noise
// (standard deviation of the logarithm) of BEYOND_NOISE for each doubling: more rows may use other kernels, or
// computation may become the bottleneck.
constexpr int    MOST_TIMED   = 8;
constexpr double BEYOND_NOISE = 0.25;
// The time of a count is relied on if the standard deviation of log(its time / time of the count timed last) is at most
// this.
constexpr double SURE = 0.06;
// The optimistic estimate of a time lies this many standard deviations below the estimate. Tuned.
constexpr double HOPE = 1.2;
// A cold round counts for its number of rows only if it takes less than this share of the estimate. If a round with
// drafts seems to take less than this share of a plain round, the plain rounds were mistimed.
constexpr double CHEAPER = 0.9;
// Weight of the newest round after a change of depth in the moving average of the cost of a change.
constexpr double COLD_GAIN = 0.05;
// Scale of a cost curve's `growth`: number of earlier tokens after which attention, at a growth of 1, takes as long as
// everything else of a row.
constexpr double CONTEXT = 250;
// Standard deviation of a cost curve's `growth` before any timing. Its expected value is then 0.
constexpr double GROWTH_SPREAD = 0.1;

// ── Depth (depth.cpp) ────────────────────────────────────────────────────────────────────────────────────────────────

// How much higher the rate of another depth must be to replace the best depth, as a share of the best rate. Without
// this margin, depths of nearly the same rate would alternate. Tuned.
constexpr double MARGIN = 0.01;
// Number of rounds within which the gain of a new depth must exceed the cost of changing to it.
constexpr double SOON = 8.0;
// A new depth is kept for this many rounds after its first, so that it gets timed with warm caches; fewer if a round's
// first draft is wrong.
constexpr int STAY = 2;
// A depth of uncertain cost is tried if its rate, with optimistic seconds, exceeds the best rate by at least this
// share. Tuned, from 0.05.
constexpr double PROMISE = 0.07;
// While nothing is drafted, this many correct drafts are added to the record of every position to decide on a peek,
// because acceptance may have improved unnoticed. Tuned, from 8.
constexpr double DOUBT = 13.0;

// While drafting is less than CLOSE times as fast as plain decoding, plain decoding is timed again: first after RECHECK
// rounds with drafts, then after twice as many rounds each time, up to MOST_RECHECK.
constexpr double CLOSE        = 1.15;
constexpr int    RECHECK      = 8;
constexpr int    MOST_RECHECK = 512;

// Budget for the time that drafting may lose against plain decoding, in tokens of plain decoding. The aim: even if no
// draft is ever accepted, a first request of 256 tokens loses at most 3% of its time, which is 7.7 tokens. Tuned.
constexpr double ALLOWANCE    = 2.5;   // initial budget of a new LLM
constexpr double EARNED       = 24.0;  // maximum of the budget
constexpr double CARRIED      = 20.0;  // maximum of the budget at the start of a new request
constexpr double DEBT         = 1.0;   // the budget may be overdrawn by this much, to keep using the best depth
constexpr double EACH_REQUEST = 0.25;  // added at the start of each request
constexpr double EACH_TOKEN   = 0.003; // added by each round, to this budget and to the one for peeks
// Budget for peeks, in tokens of plain decoding. SPEND: each round adds this share of the budget above.
// MOST_PEEK: maximum of the budget; a full budget suffices for any peek, even a dearer one.
constexpr double SPEND     = 0.005;
constexpr double MOST_PEEK = 4.0;

// ── Depth of several sequences (batch_depth.cpp) ─────────────────────────────────────────────────────────────────────

// Extra time of the first round with more rows than any before, as a share of the round's usual time: it must allocate
// memory. Measured.
constexpr double BUILD = 1.0;
// To decide on a trial, this many correct drafts are added to the record of every position, because rarely reached
// positions may be better than estimated. Tuned.
constexpr double LUCK = 1.0;
// Budget for the time that drafting may lose against plain rounds, in plain rounds: the initial budget of a new LLM
// (BATCH_ALLOWANCE), and the amount that each round adds (EACH_ROUND). Its bounds are -DEBT and EARNED.
constexpr double BATCH_ALLOWANCE = 2.0;
constexpr double EACH_ROUND      = 0.003;
// Budget for peeks, in plain rounds: the amount that each round adds (PEEKS), the amount that a round of only new
// sequences adds (NEW_TEXT; in proportion when only some are new), and the maximum (MOST_PEEKS). Tuned.
constexpr double PEEKS      = 0.005;
constexpr double NEW_TEXT   = 0.15;
constexpr double MOST_PEEKS = 2.0;

} // namespace pymtp_tuning
