"""Models from a Hugging Face `config.json`: shapes by family, and values that exports carry
over."""
