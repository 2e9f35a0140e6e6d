// The tuned numbers of draft_tokens="auto": what it believes before it has seen anything, and how fast it learns.
// docs/tuning.md tells where they came from and how to tune them again. "Tuned" numbers were changed after runs of the
// simulated machines of tests/drafting/test_depth.py and of the shipped model; all others stand as they were first chosen.
#pragma once

// What is believed of a curve of costs before anything was timed. The logarithm of the seconds is a line over the logarithm
// of the count, of a steepness that is not known well, plus a Brownian motion: neighbours cost alike, far counts may not.
struct pymtp_curve_prior {
    double slope;        // 1: twice the count takes twice the time
    double slope_spread; // standard deviation of it
    double wander;       // variance that the motion gathers from a count to e times that count
};

namespace pymtp_tuning {

// ── Acceptance (acceptance.cpp) ──────────────────────────────────────────────────────────────────────────────────────────

// The weight of a round, per token that came after it. Text begins to repeat itself within some 30 tokens. Tuned.
constexpr double DECAY = 0.96;
// The same in the long run, which only rounds with drafts count for: some 250 tokens.
constexpr double LONG_DECAY = 0.996;
// Probability that a first draft is accepted, before any was seen. Reports on Qwen3.5 and 3.6 heads say 0.6 to 0.8.
constexpr double FIRST_GUESS = 0.65;
// What that guess weighs, in drafts: few, so that a useless head is found out soon.
constexpr double FIRST_WEIGHT = 4.0;
// What the sequence before weighs in a new one at most, in drafts of a position: its long run, and its end.
constexpr double CARRY     = 10.0;
constexpr double CARRY_END = 3.0;
// What the position before weighs against a position's own long run, in drafts. Tuned.
constexpr double WEIGHT = 3.0;
// What the long run weighs against a position's recent record, in drafts. Tuned.
constexpr double RECENT = 4.0;
// How much of what the passage does to a position is expected of the next one, too. Tuned.
constexpr double LINK = 0.7;
// Acceptance of a position as a share of that of the one before, where it was not seen: chains get worse slowly. Tuned.
constexpr double FADE = 0.99;

// Borders between bins of the head's probability of its draft; finer near 1, where most drafts are.
constexpr double BINS[] = {0.3, 0.6, 0.85, 0.97};
// The weight of a draft in its bin, per draft after it: a head's errors depend on model and temperature, not on the passage.
constexpr double BIN_DECAY = 0.99;
// What "confidence says nothing" weighs in each bin, in drafts.
constexpr double BIN_WEIGHT = 1.0;
// The highest probability that a draft is given.
constexpr double CERTAIN = 0.99;

// ── Costs (costs.cpp) ────────────────────────────────────────────────────────────────────────────────────────────────────

// A draft step as a share of a plain round, before one was timed: that of small models, where it is largest.
constexpr double STEP_SHARE = 0.25;
// What is believed of a verification over its rows and of a chain over its steps, before either was timed. Eight rows take
// between 1.1 and 5 times as long as one, small models on a CPU most of all; kernels change between counts. A chain of n
// steps takes n steps, but for what a launch takes. Tuned.
constexpr pymtp_curve_prior ROWS  = {0.45, 0.25, 0.06};
constexpr pymtp_curve_prior CHAIN = {0.95, 0.15, 0.01};
// Timings of one row before anything is compared with it.
constexpr int PLAIN = 6;
// Rounds of a kind that tell little of their count: the first builds graphs, and caches are cold in both.
constexpr int WARM = 2;
// How far timings scatter, as standard deviations of their logarithms: of a round, of the second round of a kind, and of
// what was measured before the first round, where a busy moment may have spoilt all of a kind.
constexpr double NOISE       = 0.06;
constexpr double COLD_NOISE  = 0.12;
constexpr double FIRST_NOISE = 0.10;
// How far a draft step may be from STEP_SHARE, likewise.
constexpr double GUESS_NOISE = 0.7;
// How far what all counts share drifts from round to round, the machine's pace, and what a count has of its own. Tuned.
constexpr double PACE_DRIFT = 0.015;
constexpr double OWN_DRIFT  = 0.002;
// The most that a timing counts above the estimate, in standard deviations of what was to be expected. Tuned.
constexpr double CLIP = 1.5;
// Of the rows that first_costs.py times, the most; and how far more of them may be from the line that these lie on,
// likewise, per doubling: other kernels, or the end of what memory decides.
constexpr int    MOST_TIMED   = 8;
constexpr double BEYOND_NOISE = 0.25;
// A count known better than this is relied on: a standard deviation of its logarithm, against the count timed last.
constexpr double SURE = 0.06;
// How many standard deviations cheaper than the estimate a count may turn out. Tuned.
constexpr double HOPE = 1.2;
// A cold round that takes less than this share of what was expected tells of the count all the same. Plain rounds that seem
// to take so much more than others were spoilt when they were timed.
constexpr double CHEAPER = 0.9;
// How far the cost of a change of depth goes towards what a round with a change tells.
constexpr double COLD_GAIN = 0.05;
// Tokens before a row whose attention weighs as much as all else: that of small models, the scale of `growth`.
constexpr double CONTEXT = 250;
// What attention may add at CONTEXT tokens before a row, in times of a row: the standard deviation, before it was seen.
constexpr double GROWTH_SPREAD = 0.1;

// ── Depth (depth.cpp) ────────────────────────────────────────────────────────────────────────────────────────────────────

// How much better another depth must look to be taken, as a share of the rate: without it, near ties flap. Tuned.
constexpr double MARGIN = 0.01;
// Rounds in which a change of depth must pay for itself.
constexpr double SOON = 8.0;
// Rounds that a depth is kept for after the first: until it was timed. Fewer where its first draft is wrong.
constexpr int STAY = 2;
// How much better an unknown depth must be, if all goes well, to be tried, as a share of the rate. Tuned, from 0.05.
constexpr double PROMISE = 0.07;
// Right drafts that are imagined at every position while nothing is drafted, for acceptance may have become better.
// Tuned, from 8.
constexpr double DOUBT = 13.0;

// Where drafting gains less than this factor, plain decoding is timed again: after so many rounds with drafts at first,
// then twice as many each time, up to so many.
constexpr double CLOSE        = 1.15;
constexpr int    RECHECK      = 8;
constexpr int    MOST_RECHECK = 512;

// What drafting may lose against plain decoding, in tokens of plain decoding. The aim: where no draft is ever accepted, at
// most 3% of a first request of 256 tokens, which is 7.7 tokens. Tuned.
constexpr double ALLOWANCE    = 2.5;   // of a new LLM
constexpr double EARNED       = 24.0;  // the most that it grows to by what drafting gains
constexpr double CARRIED      = 20.0;  // the most of it that a new request begins with
constexpr double DEBT         = 1.0;   // what the best-looking depth may lose beyond it
constexpr double EACH_REQUEST = 0.25;  // what a request adds
constexpr double EACH_TOKEN   = 0.003; // what a token adds; and the same again to the tokens for peeks
// Tokens for peeks: a token adds this share of the allowance, and one peek is taken to cost at most this.
constexpr double SPEND     = 0.005;
constexpr double MOST_PEEK = 4.0;

// ── Depth of several sequences (batch_depth.cpp) ─────────────────────────────────────────────────────────────────────────

// What a round takes longer where none had as many rows before, as a share: its memory is new. Measured.
constexpr double BUILD = 1.0;
// Right drafts that are imagined where a depth is to be tried: positions that were seldom reached may be better than
// thought. Tuned.
constexpr double LUCK = 1.0;
// What drafting may lose against plain rounds, in plain rounds: of a new LLM, and what a round adds. EARNED and DEBT bound it.
constexpr double BATCH_ALLOWANCE = 2.0;
constexpr double EACH_ROUND      = 0.003;
// What peeks may take, in plain rounds: what a round adds, what new texts add, by their share of the texts, and the most
// that is saved up. Tuned.
constexpr double PEEKS      = 0.005;
constexpr double NEW_TEXT   = 0.15;
constexpr double MOST_PEEKS = 2.0;

} // namespace pymtp_tuning
