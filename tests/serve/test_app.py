"""The application over HTTP: right answers, and for every wrong request a status, a code and a sentence."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient
from starlette.requests import ClientDisconnect, Request

import abnn
from abnn.data.form import InputForm
from abnn.data.images import encode_png
from abnn.errors import InputError
from abnn.serve import Settings, create_app
from abnn.serve.app import Service
from abnn.serve.body import BodyLimits, read_images
from abnn.serve.guard import HANDLERS
from abnn.serve.images import decode
from abnn.serve.problems import Problem
from abnn.serve.samples import folder_samples
from tests.conftest import generator
from tests.serve.conftest import DIGITS, PNG, encoded, pixels, upload

B64 = base64.b64encode(PNG).decode()


def check_error(response: Any, status: int, code: str) -> str:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    content = response.json()
    assert set(content) == {"error"} and set(content["error"]) == {"code", "message"}
    assert content["error"]["code"] == code and content["error"]["message"]
    assert "Traceback" not in response.text and ".py" not in response.text
    return content["error"]["message"]


# -- answers -----------------------------------------------------------------------------------------------------------


def test_form_and_json_give_the_models_answer(client: TestClient, model: Any) -> None:
    x = InputForm.of(model).images(decode(PNG, 1, 10**6)[None])
    prediction = model.predict(x, draws=model.triage.draws, seed=model.triage.seed)
    first = upload(client, PNG).json()
    assert first["label"] == int(prediction.label[0])
    assert first["probabilities"] == pytest.approx(model.triage.probabilities(prediction)[0].tolist(), abs=1e-5)
    assert first["verdict"] == model.triage(prediction).verdict[0]
    assert client.post("/predict", json={"image": B64}).json() == first


def test_batch_keeps_the_order_and_gives_each_image_its_own_answer_or_error(client: TestClient) -> None:
    others = [encoded(pixels(seed=seed)) for seed in range(1, 4)]
    contents = [others[0], b"nonsense", others[1], PNG[:60], others[2]]
    texts = [base64.b64encode(each).decode() for each in contents]
    as_json = client.post("/predict/batch", json={"images": texts})
    assert as_json.status_code == 200
    results = as_json.json()["results"]
    assert [each.get("error", {}).get("code") for each in results] == [
        None,
        "image-type",
        None,
        "damaged-image",
        None,
    ]
    for content, result in zip(contents, results):
        if "error" not in result:
            alone = upload(client, content).json()
            assert result["probabilities"] == pytest.approx(alone["probabilities"], abs=1e-5)
    as_form = client.post("/predict/batch", files=[("images", ("x", content)) for content in contents])
    assert [each.get("label") for each in as_form.json()["results"]] == [each.get("label") for each in results]


def test_the_prepared_input_is_shown_on_request(client: TestClient) -> None:
    picture = (np.arange(64).reshape(8, 8) * 4).astype(np.uint8)
    shown = upload(client, encode_png(picture), show_input=True).json()["input"]
    assert (shown["width"], shown["height"]) == (8, 8)
    assert np.array_equal(decode(base64.b64decode(shown["png"]), 1, 100), picture)
    assert "input" not in upload(client, PNG).json()


def test_a_drawing_is_read_as_ink(client: TestClient) -> None:
    sheet = np.full((100, 100), 255, np.uint8)
    sheet[20:80, 45:55] = 0
    shown = upload(client, encode_png(sheet), prepare="ink", show_input=True).json()["input"]
    seen = decode(base64.b64decode(shown["png"]), 1, 100)
    assert seen.max() == 255 and seen[:, 0].max() == 0  # bright ink on a dark ground
    check_error(upload(client, encode_png(np.full((9, 9), 255, np.uint8)), prepare="ink"), 422, "no-ink")


def test_model_and_samples(client: TestClient, model: Any) -> None:
    info = client.get("/model").json()
    assert info["class_names"] == DIGITS and info["input_shape"] == [1, 8, 8] and info["drawing"] is True
    assert info["notice"] == pytest.approx(model.triage.notice, abs=1e-6) and info["score"] == model.triage.score
    samples = client.get("/samples").json()["samples"]
    groups = list(dict.fromkeys(each["group"] for each in samples))
    assert groups == ["Handwritten digits", "Printed digits", "Photographs"] and len(samples) == 18
    for sample in samples[::6]:
        answer = upload(client, base64.b64decode(sample["content"]))
        assert answer.status_code == 200 and sample["type"] == "image/png"
        given = answer.json()
        assert given["samples"]["mean"] == pytest.approx(np.mean(given["samples"]["probabilities"]), abs=1e-5)


def test_images_of_ones_own_to_click(model: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no folder"):
        folder_samples(tmp_path / "nothing")
    with pytest.raises(InputError, match="0 images"):
        folder_samples(tmp_path)
    (tmp_path / "cats").mkdir()
    (tmp_path / "cats" / "tom.png").write_bytes(PNG)
    (tmp_path / "one.jpg").write_bytes(encoded(pixels(), "JPEG"))
    samples = folder_samples(tmp_path)
    assert [(each["group"], each["title"], each["type"]) for each in samples] == [
        ("cats", "tom", "image/png"),
        ("Examples", "one", "image/jpeg"),
    ]
    client = TestClient(create_app(model, samples=samples))
    assert client.get("/samples").json()["samples"] == samples
    (tmp_path / "two.png").write_bytes(b"nonsense")
    with pytest.raises(InputError, match="two, which is no such image"):
        folder_samples(tmp_path)


def test_pages_say_what_they_are_about(model: Any) -> None:
    page = TestClient(create_app(model, name="<birds>")).get("/").text
    assert "<title>&lt;birds&gt;</title>" in page and "<birds>" not in page
    assert "birds" not in TestClient(create_app(model, Settings(token="x"), "birds")).get("/").text
    app = create_app(model)
    reference = TestClient(app).get("/docs").text
    for path, methods in app.openapi()["paths"].items():
        for method in methods:
            assert f'<span class="method">{method.upper()}</span> <code>{path}</code>' in reference
    assert "made to come true" in reference and "http://" not in reference.replace("http://127.0.0.1:8000", "")


def test_health_ready_and_what_happens_before_the_start(client: TestClient, model: Any) -> None:
    assert client.get("/health").json() == client.get("/ready").json() == {"status": "ok"}
    asleep = TestClient(create_app(model))  # without its lifespan: no worker yet
    assert asleep.get("/health").status_code == 200
    assert asleep.get("/ready").headers["retry-after"] == "1"
    check_error(asleep.get("/ready"), 503, "not-ready")
    check_error(upload(asleep, PNG), 503, "busy")


def test_metrics_count_requests_verdicts_and_batches(model: Any, settings: Settings) -> None:
    with TestClient(create_app(model, settings)) as client:
        verdicts = [upload(client, PNG).json()["verdict"] for _ in range(3)]
        upload(client, b"nonsense")
        client.get("/no/such/path")
        client.get("/no/such/other")
        text = client.get("/metrics").text
    assert f'abnn_verdicts_total{{verdict="{verdicts[0]}"}} 3.0' in text
    assert 'abnn_requests_total{route="/predict",status="200"} 3.0' in text
    assert 'abnn_requests_total{route="/predict",status="415"} 1.0' in text
    assert 'abnn_requests_total{route="other",status="404"} 2.0' in text and "/no/such" not in text
    assert 'abnn_request_seconds_count{route="/predict"} 4.0' in text
    assert "abnn_batch_size_count 3.0" in text and "abnn_queue_length 0.0" in text


def test_openapi_describes_every_route(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    assert set(paths) == {"/predict", "/predict/batch", "/health", "/ready", "/model", "/drift", "/samples", "/metrics"}
    body = paths["/predict"]["post"]["requestBody"]["content"]
    assert set(body) == {"multipart/form-data", "application/json"}


# -- requests that cannot be answered ----------------------------------------------------------------------------------


def raw(client: TestClient, content: bytes, kind: str, path: str = "/predict") -> Any:
    return client.post(path, content=content, headers={"content-type": kind})


@pytest.mark.parametrize(
    "content, kind, status, code",
    [
        (b"x", "text/plain", 415, "content-type"),
        (b"x", "", 415, "content-type"),
        (b"", "application/json", 400, "json"),
        (b"{", "application/json", 400, "json"),
        (b"\xff\xfe", "application/json", 400, "json"),
        (b'{"image": NaN}', "application/json", 400, "json"),
        (b"9" * 5000, "application/json", 400, "json"),
        (b"[" * 100_000, "application/json", 400, "json"),
        (b'{"image": {"image": "x"}}', "application/json", 400, "json"),
        (b'"text"', "application/json", 422, "json-form"),
        (b"{}", "application/json", 422, "json-form"),
        (b'{"image": 3}', "application/json", 422, "json-form"),
        (b'{"image": "eA==", "other": 1}', "application/json", 422, "json-form"),
        (b'{"image": "not base64!"}', "application/json", 422, "base64"),
        ('{"image": "é"}'.encode(), "application/json", 422, "base64"),
        (b'{"image": ""}', "application/json", 415, "image-type"),
        (b"x", "multipart/form-data", 400, "form"),
        (b"x", "multipart/form-data; boundary=y", 400, "form"),
        (b"", "multipart/form-data; boundary=y", 422, "no-image"),
        (b"--y\r\n\r\nx\r\n--y--\r\n", "multipart/form-data; boundary=y", 400, "form"),
    ],
)
def test_bodies_that_are_not_accepted(client: TestClient, content: bytes, kind: str, status: int, code: str) -> None:
    check_error(raw(client, content, kind), status, code)


def test_lists_in_the_place_of_an_image_are_explained(client: TestClient) -> None:
    said = check_error(client.post("/predict", json={"image": [1, 2]}), 400, "json")
    assert '{"image": "<base64>"}' in said and "the base64 of an image file is accepted" in said
    assert said.endswith("several images go to /predict/batch.")
    said = check_error(client.post("/predict/batch", json={"images": [[1, 2]]}), 400, "json")
    assert '{"images": ["<base64>", ...]}' in said and said.endswith("is accepted.")


def test_json_of_a_batch(client: TestClient) -> None:
    def post(content: Any) -> Any:
        return client.post("/predict/batch", json=content)

    check_error(post({"images": []}), 422, "no-image")
    check_error(post({"images": "x"}), 422, "json-form")
    check_error(post({"images": [1]}), 422, "json-form")
    check_error(post({"images": [[B64]]}), 400, "json")
    check_error(post({"images": [B64] * 9}), 413, "too-many-images")


def test_forms_without_or_with_too_many_files(client: TestClient) -> None:
    check_error(client.post("/predict", files={"other": ("x", PNG)}), 422, "no-image")
    check_error(client.post("/predict", data={"image": "text"}, files={"x": ("x", b"")}), 422, "no-image")
    check_error(client.post("/predict", files=[("image", ("x", PNG))] * 2), 413, "too-many-images")
    many = [("images", ("x", PNG))] * 9
    check_error(client.post("/predict/batch", files=many), 413, "too-many-images")
    check_error(client.post("/predict/batch", files=many * 3), 413, "too-many-images")


def test_parameters_are_checked(client: TestClient) -> None:
    assert "prepare" in check_error(upload(client, PNG, prepare="magic"), 422, "parameter")
    assert "secret" not in check_error(upload(client, PNG, show_input="secret"), 422, "parameter")


def test_images_that_are_not_accepted(client: TestClient) -> None:
    check_error(upload(client, b"GIF89a"), 422, "damaged-image")
    check_error(upload(client, b"<html>"), 415, "image-type")
    check_error(upload(client, encoded(np.zeros((1100, 1000), np.uint8))), 413, "too-many-pixels")


def test_file_names_are_never_used(client: TestClient) -> None:
    for name in ("../../etc/passwd", "/etc/passwd", "a\x00b", "x" * 5000):
        response = client.post("/predict", files={"image": (name, PNG)})
        assert response.status_code in (200, 400)


def test_large_bodies_are_refused_by_their_announcement_and_by_their_length(
    client: TestClient, settings: Settings
) -> None:
    check_error(upload(client, bytes(settings.max_bytes + 1)), 413, "body-too-large")

    def endless() -> Iterator[bytes]:
        for _ in range(1000):
            yield bytes(65_536)

    kind = {"content-type": "application/json"}
    check_error(client.post("/predict", content=endless(), headers=kind), 413, "body-too-large")


def limits_of(service: Service) -> BodyLimits:
    """The middleware of an application that has answered something."""
    middleware: Any = service.app.middleware_stack
    while not isinstance(middleware, BodyLimits):
        middleware = middleware.app
    return middleware


def test_all_bodies_together_are_bounded(model: Any) -> None:
    service = Service(model, Settings(body_memory=1000), "digits")
    with TestClient(service.app) as client:
        response = raw(client, bytes(1001), "application/json")
        assert response.headers["retry-after"] == "1"
        check_error(response, 503, "busy")
        assert limits_of(service).held_bytes == 0
        upload(client, b"nonsense")
        assert limits_of(service).held_bytes == 0


def test_bodies_are_counted_until_the_answer() -> None:
    """Also while they wait for a decoder or for the model."""
    counts: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["more_body"]:
            counts.append(limits.held_bytes)
        counts.append(limits.held_bytes)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"12345", "more_body": len(counts) < 2}

    limits = BodyLimits(app, Settings())
    asyncio.run(limits({"type": "http", "headers": []}, receive, None))  # type: ignore[arg-type]
    assert counts == [5, 10, 15] and limits.held_bytes == 0


def test_bodies_that_stop_in_the_middle() -> None:
    """A client that is too slow, and one that goes away; neither leaves anything behind."""

    def post(following: Callable[[], Awaitable[Any]], timeout: float) -> Exception:
        async def receive() -> Any:
            parts.append(1)
            return {"type": "http.request", "body": b"{", "more_body": True} if len(parts) == 1 else await following()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await read_images(Request(scope, receive), "image", 1, 100)

        parts: list[int] = []
        scope = {"type": "http", "headers": [(b"content-type", b"application/json")]}
        limits = BodyLimits(app, Settings(timeout=timeout, wait=0))
        with pytest.raises((Problem, ClientDisconnect)) as refused:
            asyncio.run(limits(scope, receive, None))  # type: ignore[arg-type]
        assert limits.held_bytes == 0
        return refused.value

    async def disconnect() -> Any:
        return {"type": "http.disconnect"}

    slow = post(asyncio.Event().wait, timeout=0.05)  # for ever
    assert isinstance(slow, Problem) and slow.status == 408
    assert isinstance(
        post(disconnect, timeout=60), ClientDisconnect
    )  # which is answered with "disconnected", if to anybody
    answer = asyncio.run(HANDLERS[ClientDisconnect](None, ClientDisconnect()))
    assert (answer.status_code, json.loads(answer.body)["error"]["code"]) == (400, "disconnected")


def test_a_colour_model_says_how_it_prepares() -> None:
    network = abnn.build_backbone("paper-resnet", 3, 3, width=8, blocks=2, stem="small", kaiming=False).eval()
    model = abnn.attach(network, torch.zeros(1, 3, 12, 10))
    model.extra = {"preprocess": {"mean": [0.5] * 3, "std": [0.2] * 3}}
    model.score = "entropy"
    batches = [(torch.rand(32, 3, 12, 10, generator=generator(seed)), torch.zeros(32).long()) for seed in range(3)]
    model.triage = abnn.Triage.calibrate(model, batches, draws=2)
    with TestClient(create_app(model)) as client:
        words = client.get("/model").json()["preparation"]
        assert "RGB" in words and "10 x 12" in words and "normalised" in words
        picture = pixels(10, 12)
        answer = upload(client, encoded(picture), show_input=True).json()
        assert answer["class_name"] in ("0", "1", "2")
        assert np.array_equal(decode(base64.b64decode(answer["input"]["png"]), 3, 10**4), picture)


def test_unknown_paths_and_methods(client: TestClient) -> None:
    check_error(client.get("/nothing/here"), 404, "not-found")
    check_error(client.get("/page/../app.py"), 404, "not-found")
    check_error(client.get("/page/%2e%2e/app.py"), 404, "not-found")
    response = client.delete("/predict")
    check_error(response, 405, "method")
    assert response.headers["allow"] == "POST"


@pytest.mark.parametrize("path", ["/predict/", "/model/", "//"])
def test_bytes_that_no_header_can_hold_in_the_query_of_an_odd_path(model: Any, path: str) -> None:
    """The redirect to the path without its last slash repeated them, and failed."""
    statuses: list[int] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        statuses.append(message.get("status", 0))

    scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b"\xff=\xfe"}
    scope |= {"headers": [(b"host", b"localhost")], "server": ("localhost", 80), "scheme": "http", "root_path": ""}
    asyncio.run(create_app(model)(scope, receive, send))
    assert 400 <= statuses[0] < 500


def test_head_is_get_without_its_body(client: TestClient) -> None:
    for path in ("/", "/health", "/ready", "/model", "/metrics", "/nothing"):
        asked, got = client.head(path), client.get(path)
        assert asked.status_code == got.status_code and asked.content == b""
        assert asked.headers["content-type"] == got.headers["content-type"]
    check = client.head("/predict")
    assert check.status_code == 405 and check.content == b""


def test_a_failing_model_is_500_without_details(model: Any) -> None:
    service = Service(model, Settings(), "digits")
    with TestClient(service.app) as client:
        service.batcher._answer = lambda x: 1 / 0  # type: ignore[assignment, return-value]
        check_error(upload(client, PNG), 500, "model")
        service.prepare = lambda pixels, how: 1 / 0  # type: ignore[method-assign, assignment, return-value]
        check_error(upload(client, PNG), 500, "internal")
        assert 'route="/predict",status="500"} 2.0' in client.get("/metrics").text


# -- who may ask, and what a browser is told ---------------------------------------------------------------------------


def test_headers_keep_browsers_from_guessing_framing_and_loading(client: TestClient) -> None:
    for response in (client.get("/"), client.get("/nothing"), upload(client, b"x"), client.get("/page/app.js")):
        policy = response.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
        assert response.headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in response.headers and "server" not in response.headers


def test_the_page_stands_alone(client: TestClient) -> None:
    page = client.get("/").text
    assert "://" not in page and "<style" not in page and " style=" not in page and "onclick" not in page
    for name in ("app.js", "drawing.js", "result.js", "style.css", "icon.svg"):
        text = client.get(f"/page/{name}").text
        assert "://" not in text.replace("http://www.w3.org/2000/svg", "")


def test_a_token_is_needed_for_everything_that_touches_the_model(model: Any) -> None:
    with TestClient(create_app(model, Settings(token="open sesame"))) as client:
        for path in ("/", "/page/app.js", "/health", "/ready", "/openapi.json"):
            assert client.get(path).status_code == 200
        for path in ("/model", "/drift", "/samples", "/metrics", "/nothing"):
            response = client.get(path)
            check_error(response, 401, "token")
            assert response.headers["www-authenticate"] == "Bearer"
        for value in ("Bearer wrong", "Bearer", "Basic open sesame", "Bearer open sesam", "Bearer öpen"):
            assert client.get("/model", headers={"authorization": value.encode()}).status_code == 401
        assert client.get("/model", headers={"authorization": "bearer open sesame"}).status_code == 200
        client.headers["authorization"] = "Bearer open sesame"
        assert upload(client, PNG).status_code == 200


def test_pages_of_other_sites_and_borrowed_names_are_refused(model: Any) -> None:
    with TestClient(create_app(model, Settings(hosts=("localhost", "[::1]")))) as client:
        check_error(client.get("/model"), 421, "host")  # the test client calls itself "testserver"
        for host in ("localhost", "localhost:8000", "LOCALHOST:1", "[::1]:8000"):
            assert client.get("/model", headers={"host": host}).status_code == 200
        own = {"host": "localhost:8000", "origin": "http://localhost:8000"}
        assert client.get("/model", headers=own).status_code == 200
        for origin in ("http://evil.example", "http://localhost:9000", "null", "http://["):
            check_error(client.get("/model", headers={**own, "origin": origin}), 403, "origin")


# -- what can be served ------------------------------------------------------------------------------------------------


def test_models_that_cannot_be_served(model: Any) -> None:
    def stand_in(shape: tuple[int, ...], triage: Any) -> Any:
        return SimpleNamespace(
            input_shape=shape, input_dtype=model.input_dtype, triage=triage, classes=10, extra={}, predict=model.predict
        )

    with pytest.raises(InputError, match="a model of pictures"):
        create_app(stand_in((6,), model.triage))
    with pytest.raises(InputError, match="without thresholds"):
        create_app(stand_in((1, 8, 8), None))
    with TestClient(create_app(stand_in((1, 8, 8), model.triage))) as client:  # no names, so no digits to draw
        assert client.get("/samples").json() == {"samples": []}
        check_error(upload(client, PNG, prepare="ink"), 422, "no-drawings")
        assert client.get("/model").json()["class_names"] == DIGITS


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_batch": 0},
        {"queue": True},
        {"timeout": 0},
        {"timeout": float("nan")},
        {"wait": -1},
        {"wait": 11.0},
        {"max_images": 300},
        {"threads": 0},
        {"token": "ö"},
        {"token": " "},
        {"token": "a\nb"},
    ],
)
def test_settings_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        Settings(**wrong)


def test_problems_are_json() -> None:
    response = Problem(418, "tea", "short “and stout”", {"X-Y": "z"}).response()
    assert json.loads(bytes(response.body)) == {"error": {"code": "tea", "message": "short “and stout”"}}
    assert response.headers["x-y"] == "z"
