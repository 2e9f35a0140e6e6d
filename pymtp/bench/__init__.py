"""Benches of pymtp itself: `pymtp bench`."""
