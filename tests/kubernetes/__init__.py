"""Studies as jobs of Kubernetes."""
