"""HTTP: the application, access control, limits, and errors as responses."""
