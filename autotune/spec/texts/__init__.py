"""Values as people write them: quantities with units, figures as text, usual names, secrets."""
