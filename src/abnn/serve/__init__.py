"""The web application: a saved model behind HTTP, and a page that says "I don't know".

::

    app = abnn.serve.create_app(model)        # any model with thresholds; any ASGI server runs it

One thread owns the model and takes concurrent requests together; see :mod:`abnn.serve.batcher`. ``abnn serve`` runs it.
"""

from __future__ import annotations

from abnn.errors import MissingExtraError

try:
    import fastapi as _fastapi  # noqa: F401
    import prometheus_client as _prometheus_client  # noqa: F401
    import python_multipart as _python_multipart  # noqa: F401
    import uvicorn as _uvicorn  # noqa: F401
except ImportError as error:
    raise MissingExtraError(str(error.name), "serve") from None

from abnn.serve.app import create_app
from abnn.serve.settings import Settings

__all__ = ["Settings", "create_app"]
