// Estimates how likely a guess from text is right.
#pragma once

#include "text_index.h"

// Learns how often guesses from text are right: by the length of the match, and by the agreement of the places where
// the text's end occurred before.
//
// The rates are learnt from all texts of an LLM. Each text has a factor of its own for the odds of all its guesses,
// because what follows an earlier occurrence in one text (a file that is rewritten) is seldom what follows it in
// another (prose). Every guess can be judged, whether it was verified or not, so learning costs no time of the model.
class pymtp_guess_rates {
public:
    pymtp_guess_rates();

    // odds: the factor of the text, as a logarithm
    double rate(const pymtp_guess & guess, double odds) const;

    // Records whether a guess was right, and changes the factor of its text.
    void observe(const pymtp_guess & guess, bool right, double & odds);

private:
    static constexpr int N_LENGTHS    = 9;
    static constexpr int N_AGREEMENTS = 5;

    struct record {
        double trials;
        double hits;
    };
    record records[N_LENGTHS][N_AGREEMENTS];

    record &       at(const pymtp_guess & guess);
    const record & at(const pymtp_guess & guess) const;
};
