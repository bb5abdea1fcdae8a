"""HTTP: the application, who may send what, and how errors are answered."""
