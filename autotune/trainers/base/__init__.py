"""The parts that all trainers share: the base class, options, limits, and the beginning of a
launch."""
