from tests.data.conftest import server  # noqa: F401
