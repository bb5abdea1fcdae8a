"""What a rank says of itself: time, memory, its GPU, and how far it has come."""
