"""Drafting: the draft depth, the measured time of rounds, and the check of the head."""
