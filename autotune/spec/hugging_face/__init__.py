"""Models from a Hugging Face `config.json`: shapes by family, and what an export carries over."""
