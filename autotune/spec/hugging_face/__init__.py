"""Models from a Hugging Face `config.json`: shapes by family, and the figures that exports carry
over."""
