"""The time of a step: kernels, communication, pipelines, and the step that they add up to."""
