"""The measurements of `pymtp bench` and `pymtp tap`, and their reports."""
