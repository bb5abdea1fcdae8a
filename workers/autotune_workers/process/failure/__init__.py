"""Why a program failed, as its log and recorders show."""
