"""Services that these tests share with those of the service."""

from tests.service.conftest import service, tuning

__all__ = ["service", "tuning"]
