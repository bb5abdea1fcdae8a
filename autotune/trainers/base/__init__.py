"""What all trainers share: the base class, options, limits, and how a launch begins."""
