"""The application: routes, and how one request goes through the rooms of this package."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import FastAPI, Query, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse

from abnn._version import __version__
from abnn.data.drawing import NoInkError, read_drawing, reads_drawings
from abnn.data.form import InputForm
from abnn.data.images import encode_png
from abnn.errors import InputError, explain
from abnn.files import templates
from abnn.serve.answers import Answerer
from abnn.serve.batcher import Batcher
from abnn.serve.body import BodyLimits, read_images
from abnn.serve.decoders import Decoders
from abnn.serve.guard import HANDLERS, Guard
from abnn.serve.problems import Problem
from abnn.serve.samples import Sample, digit_samples
from abnn.serve.schema import Answer, BatchAnswer, Drift, ModelInfo, SampleImages, State, body_of, failures
from abnn.serve.settings import Settings
from abnn.serve.traffic import DRIFT_GAUGES, QUEUE_GAUGES, Measures, Traffic

KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
Prepare = Annotated[
    Literal["image", "ink"],
    Query(description="image: as the model was trained on pictures; ink: a pen drawing, for models that read digits."),
]
ShowInput = Annotated[bool, Query(description="Also return the prepared input as a picture.")]


def create_app(
    model: Any, settings: Settings | None = None, name: str = "model", samples: Sequence[Sample] | None = None
) -> FastAPI:
    """Return an ASGI application around a model with thresholds, as :func:`abnn.load` returns it.

    samples  images to click on the page, see :mod:`abnn.serve.samples`; None: digits for a model that reads them
    """
    return Service(model, settings or Settings(), name, samples).app


class Service:
    """One model, its queue and its counters, behind one application."""

    def __init__(self, model: Any, settings: Settings, name: str, samples: Sequence[Sample] | None = None) -> None:
        self.form = InputForm.of(model)
        if self.form.kind != "images":
            fix = "Use abnn predict, or predict() from Python."
            raise InputError(explain("model", f"inputs of shape {self.form.shape}", "a model of pictures", fix))
        self.settings, self.name = settings, name
        self.answerer = Answerer(model)
        self.drawing = reads_drawings(model)
        self.samples = samples if samples is not None else digit_samples() if self.drawing else []
        self.measures = Measures()
        self.batcher = Batcher(self.answerer, settings, self.measures.count_batch)
        self.traffic = Traffic(self.answerer.triage, settings.drift)
        self.measures.follow(self.batcher, QUEUE_GAUGES)
        if self.traffic.monitor is not None:
            self.measures.follow(self.traffic.monitor, DRIFT_GAUGES)
        self.decoders = Decoders(settings)
        self.app = FastAPI(
            title="abnn serve",
            version=__version__,
            description="A prediction, and whether to trust it: accept, notice or reject.",
            lifespan=self._life,
            exception_handlers=HANDLERS,
            docs_url=None,  # FastAPI's own pages load scripts from elsewhere
            redoc_url=None,
            redirect_slashes=False,  # a redirect repeats the query, which may hold bytes that no header can
        )
        self.app.add_middleware(BodyLimits, settings=settings)
        self.app.add_middleware(Guard, settings=settings, measures=self.measures)  # the last one is the outermost
        self._add_predictions()
        self._add_state()
        self._add_pages()

    @contextlib.asynccontextmanager
    async def _life(self, app: FastAPI) -> AsyncIterator[None]:
        blank = self.form.inputs(np.zeros((1, *self.form.shape), self.form.number))
        async with self.decoders.running(), self.traffic.keeping(), self.batcher.running(blank):
            yield

    # -- one request --------------------------------------------------------------------------------------------------

    async def answer(self, request: Request, field: str, prepare: str, show: bool) -> list[dict[str, Any] | Problem]:
        """Read, decode and prepare all images, let the model answer, and put everything back into order."""
        if prepare == "ink" and not self.drawing:
            raise Problem(422, "no-drawings", "prepare: got 'ink'; accepted: 'image', for this model reads pictures.")
        most = 1 if field == "image" else self.settings.max_images
        self.batcher.check_place()
        deadline = asyncio.get_running_loop().time() + self.settings.timeout
        contents = await read_images(request, field, most, self.settings.max_bytes)
        with self.batcher.admit():
            channels = 1 if prepare == "ink" else self.form.shape[0]
            inputs = await self.decoders.read(contents, channels, partial(self.prepare, how=prepare), deadline)
            readable = [x for x in inputs if not isinstance(x, Problem)]
            answers = iter(await self.batcher.submit(readable, deadline) if readable else [])
        results = [x if isinstance(x, Problem) else next(answers) for x in inputs]
        for x, result in zip(inputs, results):
            if isinstance(result, dict):
                self.measures.verdicts.labels(result["verdict"]).inc()
                if show and not isinstance(x, Problem):
                    result["input"] = self.picture(x)
        self.traffic.update([result["score"] for result in results if isinstance(result, dict)])
        return results

    def prepare(self, pixels: np.ndarray, how: str) -> Any:
        """Return one picture as an input of the model, or why it is none."""
        if how == "image":
            return self.form.images(pixels[None])[0]
        try:
            return self.form.inputs(read_drawing(pixels).numpy().astype(self.form.number))
        except NoInkError as error:
            return Problem(422, "no-ink", str(error))

    def picture(self, x: Any) -> dict[str, Any]:
        """Return an input as PNG."""
        pixels = self.form.pictures(x[None])[0]
        png = base64.b64encode(encode_png(pixels)).decode()
        return {"width": pixels.shape[1], "height": pixels.shape[0], "png": png}

    def check_ready(self) -> dict[str, str]:
        """Return what GET /ready says, or 503."""
        if not self.batcher.ready:
            raise Problem(503, "not-ready", "The server is starting or stopping.", {"Retry-After": "1"})
        return {"status": "ok"}

    def describe(self) -> dict[str, Any]:
        """Return what GET /model says."""
        triage, names, (channels, height, width) = self.answerer.triage, self.answerer.names, self.form.shape
        colours = "grey" if channels == 1 else "RGB"
        preparation = f"upright, {colours}, resized to {width} x {height} (bilinear, antialiased), scaled to [0, 1]"
        calibration = {name: getattr(triage, name) for name in ("inputs", "noticed", "rejected")}
        return {
            **{name: getattr(triage, name) for name in ("score", "draws", "notice", "reject")},
            "name": self.name,
            "version": __version__,
            "classes": len(names),
            "class_names": names,
            "input_shape": list(self.form.shape),
            "preparation": preparation + (", normalised as in training" if self.form.mean is not None else ""),
            "drawing": self.drawing,
            "parts": self.answerer.parts,
            "calibration": {**calibration, "quantiles": list(triage.calibration) or None},
            "limits": {name: getattr(self.settings, name) for name in ("max_bytes", "max_pixels", "max_images")},
        }

    # -- routes -------------------------------------------------------------------------------------------------------

    def _add_predictions(self) -> None:
        post: Any = partial(self.app.post, response_model_exclude_unset=True, responses=failures())
        one, several = body_of("image", 1), body_of("images", self.settings.max_images)
        summary = "Several images; each has its own answer or error"

        @post("/predict", summary="One image", response_model=Answer, openapi_extra=one)
        async def predict(request: Request, prepare: Prepare = "image", show_input: ShowInput = False) -> Any:
            (result,) = await self.answer(request, "image", prepare, show_input)
            return result.response() if isinstance(result, Problem) else result

        @post("/predict/batch", summary=summary, response_model=BatchAnswer, openapi_extra=several)
        async def predict_batch(request: Request, prepare: Prepare = "image", show_input: ShowInput = False) -> Any:
            results = await self.answer(request, "images", prepare, show_input)
            return {"results": [each.content() if isinstance(each, Problem) else each for each in results]}

    def _add_state(self) -> None:
        add: Any = partial(self.app.add_api_route, response_model_exclude_unset=True)
        guarded = failures(401, 403, 421)
        text = {200: {"content": {"text/plain": {}}, "description": "Prometheus text"}, **guarded}
        for path, summary, model, read, responses in (
            ("/health", "The process lives", State, lambda: {"status": "ok"}, failures(403, 421)),
            ("/ready", "The model can answer", State, self.check_ready, failures(403, 421, 503)),
            ("/model", "Classes, thresholds, input", ModelInfo, self.describe, guarded),
            ("/drift", "Is the traffic like calibration?", Drift, self.traffic.state, guarded),
            ("/samples", "Images to try", SampleImages, lambda: {"samples": self.samples}, guarded),
            ("/metrics", "For Prometheus", None, self.measures.response, text),
        ):
            options: Any = {"response_model": model, "response_class": JSONResponse if model else Response}
            add(path, _endpoint(read), name=path[1:], summary=summary, responses=responses, **options)
        options = {"methods": ["DELETE"], "response_model": Drift, "responses": guarded}
        add("/drift", self.traffic.reset, summary="Forget the traffic so far, and an alarm", **options)

    def _add_pages(self) -> None:
        """Read the files of the page once; a request's path is only compared with their names.

        With a token, the page does not say what the model is called before the token is given.
        """
        add = partial(self.app.add_api_route, include_in_schema=False, response_model=None)
        title = escape("Should you trust it?" if self.settings.token else self.name)
        for file in (Path(__file__).parent / "page").iterdir():
            kind, content = KINDS[file.suffix], file.read_bytes()
            if file.name == "index.html":
                content = content.replace(b"{{title}}", title.encode())
            answer = partial(Response, content, media_type=kind, headers={"Cache-Control": "no-cache"})
            add("/" if file.name == "index.html" else f"/page/{file.name}", _endpoint(answer))
        add("/docs", _endpoint(lambda: HTMLResponse(_reference(self.app.openapi()))))


def _endpoint(read: Callable[[], Any]) -> Callable[[], Any]:
    async def endpoint() -> Any:
        return read()

    return endpoint


def _reference(description: dict[str, Any]) -> str:
    """Return the HTML page about all routes, with parameters, an example and the fields of answers, from the OpenAPI description."""
    schemas = description["components"]["schemas"]

    def fields(schema: dict[str, Any]) -> dict[str, dict[str, str]]:
        """The fields of an answer, with their types in a word and what they mean."""
        own = schemas.get(name_of(schema), {}).get("properties", {})
        return {name: {"type": type_of(each), "about": each.get("description", "")} for name, each in own.items()}

    def name_of(schema: dict[str, Any]) -> str:
        return schema.get("$ref", "").rpartition("/")[2]

    def type_of(schema: dict[str, Any]) -> str:
        inner = next(each for each in schema.get("anyOf", [schema]) if each.get("type") != "null")
        if inner.get("type") == "array":
            return f"list of {type_of(inner['items'])}"
        return name_of(inner) or inner.get("type", "object")

    routes = [
        {"method": method.upper(), "path": path, **what, "answer": what["responses"]["200"].get("content", {})}
        for path, methods in description["paths"].items()
        for method, what in methods.items()
    ]
    named = {each.__name__: each for each in (fields, name_of, type_of)}
    inner = {name for name in schemas if name.startswith(("Samples", "Place", "Thresholds", "Picture", "Calibration"))}
    template = templates(Path(__file__).parent).get_template("reference.html")
    return template.render(info=description["info"], routes=routes, inner=sorted(inner), **named)
