"""How a database came to be, step by step; `autotune.store.schema` applies what is missing."""
