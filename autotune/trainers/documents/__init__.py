"""Configuration files in TOML, YAML, JSON and Python, shell scripts, and templates with
placeholders."""
