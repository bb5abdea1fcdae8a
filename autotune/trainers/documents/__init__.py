"""Files of configuration: TOML, YAML, JSON and Python, and templates filled in for a config."""
