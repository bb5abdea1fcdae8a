"""Contract suites that any searcher, store, runner or trainer inherits; one module per kind."""
