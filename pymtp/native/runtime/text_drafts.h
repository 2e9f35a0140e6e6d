// Drafts from text: guesses what follows the end of a text, from the places where that end occurred before.
#pragma once

#include "guess_rates.h"
#include "text_index.h"
#include "tuning.h"

#include <vector>

// The text of a request (prompt and output), and the guesses about its next tokens. The tokens that are generated judge
// the last guesses, also those that were not verified.
class pymtp_text_drafts {
public:
    // rates: what is known of guesses; shared with other texts.
    // earlier: outputs of earlier requests, from which guesses come, too; may be null. Both must outlive this object
    pymtp_text_drafts(pymtp_guess_rates & rates, const pymtp_text * earlier) : rates(rates), earlier(earlier) {}

    // Appends tokens, which judge the last guesses, and makes new ones.
    void add(const llama_token * tokens, size_t n);

    // A guess, and the probability that it is right if all guesses before it are.
    struct guess {
        llama_token token;
        double      chance;
    };

    // Returns whether the first guess is likely enough to compare it with a draft of the head.
    bool is_promising() const { return !first.found.empty() && first.found[0].chance > pymtp_tuning::LEAST_CHANCE; }

    // Guesses at most n tokens that follow the text, and many only where the first are likely right.
    std::vector<guess> next(int n);

    // Guesses at most n tokens that follow the text and the given drafts.
    std::vector<guess> after(const llama_token * drafts, int n_drafts, int n);

private:
    // Guesses that the next tokens will judge.
    struct open_guesses {
        std::vector<llama_token> drafts; // the tokens that must come first
        std::vector<pymtp_guess> guesses;
        std::vector<guess>       found;  // the same with their probabilities
    };

    void look_up(open_guesses & open, const llama_token * drafts, int n_drafts, int n);
    void judge(open_guesses & open, const llama_token * tokens, size_t n);

    pymtp_guess_rates & rates;
    const pymtp_text *  earlier;
    pymtp_text          text;
    double              odds = 0.0; // the factor of this text, see pymtp_guess_rates
    open_guesses        first, second;
};
