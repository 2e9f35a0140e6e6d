// The constants of draft_tokens="auto": its initial estimates, how fast it learns, and where it finds repetitions.
// docs/developers/tuning.md says where they come from and how to tune them again.
#pragma once

#include <cstddef>

namespace pymtp_tuning {

// ── Acceptance (acceptance.cpp) ──────────────────────────────────────────────────────────────────────────────────────

// In the memory of a sequence, the weight of a round is multiplied by this factor for each token generated later. It
// halves in 17 tokens: a text can begin to repeat itself within about 30 tokens, and its acceptance then changes.
constexpr double DECAY = 0.96;
// The same in the prior of an LLM, for each token of any of its texts: it falls to 1/e within 250 tokens.
constexpr double PRIOR_DECAY = 0.996;
// Assumed probability that the first draft of a chain is accepted, before any was observed. Published measurements of
// the heads of Qwen3.5 and 3.6 report 0.6 to 0.8.
constexpr double FIRST_GUESS = 0.65;
// Weight of the expected acceptance of a position in its estimate, as a number of observed drafts.
constexpr double WEIGHT = 4.0;
// When acceptance at a position deviates from the prior in the present passage of text, the next position is expected
// to deviate by this share of it.
constexpr double LINK = 0.7;
// Expected acceptance at a position, as a share of the acceptance at the position before: it falls slowly along a
// chain. Also the upper limit of an expected acceptance.
constexpr double FADE = 0.99;
// Boundaries between the bins of the head's probability of its own draft. They are closer near 1, where most drafts
// are. And the factor of the weight of a draft in its bin for each later one: it fades slowly, because how far the
// head's probabilities are off depends on model and temperature, not on the passage of text.
constexpr double BINS[]    = {0.3, 0.6, 0.85, 0.97};
constexpr double BIN_DECAY = 0.99;

// ── Costs (costs.cpp) ────────────────────────────────────────────────────────────────────────────────────────────────

// Assumed time of a draft step before one was timed, as a share of a plain round. This is the share with small models;
// with larger models it is smaller.
constexpr double STEP_SHARE = 0.25;
// Weight of the warm-up in an entry, as a number of timings.
constexpr double SEED_TIMINGS = 2.0;
// Share of an error of an estimate by which a timing changes the machine's pace; share of the pace's difference from 1
// that a round keeps; and the least share of an error by which a timing changes the entry of its count.
constexpr double PACE_GAIN  = 0.1;
constexpr double PACE_KEPT  = 0.95;
constexpr double LEAST_GAIN = 0.03;
// Limit for the error of an estimate, as a difference of logarithms, once the count has KNOWN timings. Before that, the
// limit is higher, and an estimate that is too high by more than MISTIMED is replaced. A change of depth must pay for
// its extra time within as many rounds.
constexpr double CLIP     = 0.1;
constexpr double KNOWN    = 8.0;
constexpr double MISTIMED = 0.3;
// Share by which a verification that was never timed may take less time than estimated. It falls with timings, whose
// weight is multiplied by AGE for each later round.
constexpr double DOUBT = 0.15;
constexpr double AGE   = 0.999;

// ── Depth (depth.cpp) ────────────────────────────────────────────────────────────────────────────────────────────────

// How much higher the rate of another depth must be, as a share. Without this margin, depths of nearly the same rate
// would alternate, and drafting would begin in doubt.
constexpr double MARGIN = 0.02;
// The accounts of the time that drafting and peeks may lose against plain decoding, in plain rounds: the balance of the
// first in a new LLM, which is also the most that the second may hold; the amount that each round adds to both, and the
// share of the first that each round moves to the second, so that gains pay for the search for more; and the most that
// the first may hold. The aim: even if no draft is ever accepted, a first request of 256 tokens loses at most 3% of its
// time, which is 7.7 tokens.
constexpr double FIRST_BALANCE = 2.5;
constexpr double EACH_ROUND    = 0.008;
constexpr double MOST_BALANCE  = 24.0;
// A peek is made only if drafting would pay off with this acceptance of each draft.
constexpr double HOPED_RATE = 0.9;
// While drafts are accepted, the depth whose time is the oldest is timed again after this number of rounds.
constexpr int TRIAL_EVERY = 400;
// Most rounds without drafts in a row about which nothing is learnt: timing and choosing take time in small models.
constexpr int MOST_IDLE = 64;

// ── Text index (text_index.cpp) ──────────────────────────────────────────────────────────────────────────────────────

// Lengths of the indexed n-grams. The occurrences of the shorter ones are looked at only if the longer one has none. No
// match is shorter: the drafts from shorter ones would seldom be accepted.
constexpr size_t LONG_GRAM  = 6;
constexpr size_t SHORT_GRAM = 3;
// Occurrences of an n-gram that a search looks at, the most recent ones. The end of the text itself is one of them.
constexpr int MAX_CANDIDATES = 16;
// An occurrence votes on the next tokens if its match is at least this share of the longest.
constexpr double VOTER_SHARE = 0.85;
// Share of used slots at which a hash table grows, and the factor by which it grows; they trade memory for time.
constexpr double TABLE_LOAD   = 0.7;
constexpr double TABLE_GROWTH = 1.75;
// Most slots that are tried for an n-gram. It limits the time when tokens are chosen to have equal hashes.
constexpr int TABLE_TRIES = 256;

// ── Guesses from text (guess_rates.cpp) ──────────────────────────────────────────────────────────────────────────────

// Boundaries between the bins of the length of a match, in tokens; and for each bin the assumed share of right guesses
// where the text's end has occurred at one place, before any guess was judged.
constexpr int    LENGTHS[]      = {4, 6, 8, 12, 16, 24, 32, 64};
constexpr double LENGTH_RATES[] = {0.4, 0.55, 0.7, 0.78, 0.83, 0.9, 0.93, 0.96, 0.98};
// What is added to the logarithm of the odds where all places agree: where there is one place, a few, and MANY_PLACES
// or more. And the assumed shares, at any length, where less than half of the places go on with the guess, and where
// half or more do, but not all. tools/bench/bench_text.py measures the shares.
constexpr double AGREEMENT_ODDS[]     = {0.0, 1.0, 2.0};
constexpr int    MANY_PLACES          = 4;
constexpr double DISAGREEMENT_RATES[] = {0.12, 0.35};
// Weight of the assumed shares, as a number of judged guesses; and the factor of the weight of a guess for each later
// one in its bin.
constexpr double GUESS_WEIGHT = 8.0;
constexpr double GUESS_DECAY  = 0.98;
// Share of the error of a rate by which a guess changes the logarithm of its text's factor; the limit of that
// logarithm; and the highest rate.
constexpr double ODDS_GAIN = 0.2;
constexpr double MOST_ODDS = 4.0;
constexpr double MOST_RATE = 0.995;

// ── Drafts from text (text_choice.cpp) ───────────────────────────────────────────────────────────────────────────────

// Numbers of drafts from text in a verification: all up to FINE_DEPTHS, and these. Each has a graph of its own, and
// kernels take rows in blocks: 12 rows take nearly the time of 16, and 24 that of 32.
constexpr int FINE_DEPTHS     = 7;
constexpr int COARSE_DEPTHS[] = {15, 31, 63};
// Drafts from text are compared with those of the head if the first is right with a higher probability; and more than
// FINE_DEPTHS of them are looked up if all the first are.
constexpr double LEAST_CHANCE   = 0.2;
constexpr double CHANCE_OF_MORE = 0.2;

} // namespace pymtp_tuning
