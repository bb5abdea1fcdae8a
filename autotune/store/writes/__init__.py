"""The writes of the store, one module for each subject."""
