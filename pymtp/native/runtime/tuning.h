// The tuned numbers of draft_tokens="auto": what it believes before it has seen anything, and how fast it learns.
// docs/tuning.md tells where they came from and how to tune them again. "Tuned" numbers were changed after runs of the
// simulated machines of tests/test_depth.py and of the shipped model; all others stand as they were first chosen.
#pragma once

namespace pymtp_tuning {

// ── Acceptance (acceptance.cpp) ──────────────────────────────────────────────────────────────────────────────────────────

// The weight of a round, per token that came after it. Text begins to repeat itself within some 30 tokens. Tuned.
constexpr double DECAY = 0.96;
// The weight of a first draft in the long run, per draft after it: about 100 drafts count, a request or a few.
constexpr double LONG_DECAY = 0.99;
// Probability that a first draft is accepted, before any was seen. Reports on Qwen3.5 and 3.6 heads say 0.6 to 0.8.
constexpr double FIRST_GUESS = 0.65;
// What that guess weighs, in drafts: few, so that a useless head is found out soon.
constexpr double FIRST_WEIGHT = 4.0;
// What the long run of the sequence before weighs in a new one at most, in drafts.
constexpr double CARRY = 10.0;
// What the long run, or the position before, weighs against a position's own record, in drafts. Tuned.
constexpr double WEIGHT = 3.0;
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
// A further row of a verification as a share of the first, before two counts were timed: between small and large models.
constexpr double ROW_SHARE = 0.3;
// A further step of a chain as a share of the first: a chain of n steps costs n steps.
constexpr double CHAIN_SHARE = 1.0;
// Rounds of a kind that are not timed: the first builds graphs, and caches are cold in both.
constexpr int WARM = 2;
// Timings that make a count known; and one row, which everything is compared with.
constexpr int SETTLED = 2;
constexpr int PLAIN   = 6;
// Timings up to which an estimate is their mean.
constexpr int EARLY = 6;
// Timings after which each known count lacks one timing again, and one more after as many: what is known of counts that
// were not timed since may be wrong, or was timed while the machine was busy. Tuned, from 150 over 300 to 400.
constexpr int STALE = 400;
// The most that a first timing is believed to be, as a multiple of what was expected: it may be spoilt.
constexpr double DOUBLE = 1.5;
// The least that an estimate may turn out, as a share of it: where it is not settled, and where it was and is old. Tuned,
// the latter from 0.65 over 0.8 to 0.85.
constexpr double LUCK     = 0.65;
constexpr double OLD_LUCK = 0.85;
// The most that a timing counts above the estimate, as a share of it: a busy machine only adds time, up to ten times as
// much. Tuned, from 0.1.
constexpr double CLIP = 0.07;
// A cold round that takes less than this share of what was expected tells of the count all the same.
constexpr double CHEAPER = 0.75;
// How far an estimate goes towards a timing: of the cost of a change of depth; of a count's own cost, where a spread of 20%
// becomes 2%; of what all counts share, the machine's pace and the context's part. Tuned, the last from 0.25.
constexpr double COLD_GAIN = 0.05;
constexpr double OWN_GAIN  = 0.02;
constexpr double GAIN      = 0.15;
// Tokens before a row whose attention weighs as much as all else: that of small models, the scale of `growth`.
constexpr double CONTEXT = 250;

// ── Depth (depth.cpp) ────────────────────────────────────────────────────────────────────────────────────────────────────

// How much better another depth must look to be taken, as a share of the rate: without it, near ties flap. Tuned.
constexpr double MARGIN = 0.01;
// Rounds in which a change of depth must pay for itself.
constexpr double SOON = 8.0;
// How much better an unknown depth must be, if all goes well, to be tried, as a share of the rate. Tuned, from 0.05.
constexpr double PROMISE = 0.07;
// Right drafts that are imagined at every position while nothing is drafted, for acceptance may have become better.
// Tuned, from 8.
constexpr double DOUBT = 10.0;

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

} // namespace pymtp_tuning
