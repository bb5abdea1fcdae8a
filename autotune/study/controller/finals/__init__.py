"""The finals: which configs are measured again, which rounds count, and who won."""
