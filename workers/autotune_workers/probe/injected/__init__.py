"""Code that runs inside a user's program. Supports Python 3.8, and imports only the standard
library until the program has imported torch."""
