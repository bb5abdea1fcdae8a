"""Bayesian search keeps the contract, finds the best of a known world in a few trials, and says when it is done."""

from __future__ import annotations

from autotune.testing.searchers import SearcherContract


class TestBayesian(SearcherContract):
    searcher = "bayesian"
