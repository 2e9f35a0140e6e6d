"""Benches: what `pymtp bench` and `pymtp tap` measure with, and their reports."""
