"""Many requests on one pair of contexts: who runs when, and the rounds of all that write."""
