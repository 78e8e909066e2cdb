"""The locks: pytest tests, each a sentence of the specification."""
