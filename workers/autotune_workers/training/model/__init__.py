"""What is trained: the decoder that ships, its loss, and stages of models that code builds."""
