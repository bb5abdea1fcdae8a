"""Metrics of the service and of running studies, for Prometheus."""
