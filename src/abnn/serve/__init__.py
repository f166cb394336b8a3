"""The web application: a saved model behind HTTP, and a page that says "I don't know".

::

    app = abnn.serve.create_app(model)        # any model with thresholds; any ASGI server runs it

One thread owns the model and takes concurrent requests together; see :mod:`abnn.serve.batcher`. ``abnn serve`` runs it.
"""

from __future__ import annotations

from importlib.util import find_spec

from abnn.errors import MissingExtraError

for _package in ("fastapi", "prometheus_client", "python_multipart", "uvicorn"):
    if find_spec(_package) is None:
        raise MissingExtraError(_package.replace("_", "-"), "serve")

from abnn.serve.app import create_app
from abnn.serve.settings import Settings

__all__ = ["Settings", "create_app"]
