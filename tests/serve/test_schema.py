"""Requests made up from the OpenAPI description: every answer is of a described form, and nothing fails inside."""

from __future__ import annotations

import base64
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from abnn.serve import Settings, create_app
from tests.serve.conftest import PNG, encoded, pixels

CHECKS = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    unsupported_method,
)
CONTENTS = (PNG, encoded(pixels(), "JPEG"), encoded(pixels(), "GIF"), encoded(pixels(), "BMP"), PNG[:50], b"", b"x")
# So that many of the made-up requests get past the first gate.
schemathesis.openapi.format("image-base64", st.sampled_from([base64.b64encode(each).decode() for each in CONTENTS]))
schemathesis.openapi.format("binary", st.sampled_from(CONTENTS) | st.binary(max_size=200))


OPERATIONS = (
    "POST /predict",
    "POST /predict/batch",
    "GET /health",
    "GET /ready",
    "GET /model",
    "GET /drift",
    "DELETE /drift",
    "GET /samples",
    "GET /metrics",
)


@pytest.fixture(scope="module")
def app(model: Any) -> Any:
    return create_app(model, Settings(max_images=4, max_bytes=100_000, max_pixels=10_000))


CASES = [
    *((name, GenerationMode.POSITIVE) for name in OPERATIONS),
    *((name, GenerationMode.NEGATIVE) for name in OPERATIONS if name.startswith("POST")),  # the others take nothing
]


@pytest.mark.parametrize("name, mode", CASES)
def test_answers_are_as_described(name: str, mode: GenerationMode, app: Any) -> None:
    description = schemathesis.openapi.from_dict(app.openapi())
    description.app = app  # which schemathesis starts, and stops at the end of the process
    assert {each.ok().label for each in description.get_all_operations()} == set(OPERATIONS)
    method, path = name.split()

    @settings(
        max_examples=60 if method == "POST" else 3,
        deadline=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(description[path][method].as_strategy(generation_mode=mode))
    def check(case: Any) -> None:
        seen.append(case.call_and_validate(checks=CHECKS).status_code)

    seen: list[int] = []
    check()
    if mode is GenerationMode.NEGATIVE:
        assert {400, 415, 422} & set(seen)
    else:
        assert 200 in seen
        if name == "POST /predict":  # in a batch, each image has its own error
            assert {415, 422} <= set(seen)
