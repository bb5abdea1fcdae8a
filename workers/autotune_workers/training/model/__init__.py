"""The models: the bundled decoder, its loss, and stages of models built by code."""
