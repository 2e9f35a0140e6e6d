"""Drafting: how many tokens to draft, what launches cost, and whether the head fits its model."""
