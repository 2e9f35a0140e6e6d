"""The prefix cache: what was read once and need not be read again, in sequences, host memory and files."""
