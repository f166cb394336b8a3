"""The application: routes, and how one request goes through the rooms of this package."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from typing import Annotated, Any, Literal

import torch
from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from torch import Tensor

from abnn._version import __version__
from abnn.data.drawing import NoInkError, read_drawing, reads_drawings
from abnn.data.form import InputForm
from abnn.errors import InputError, explain
from abnn.serve.answers import Answerer, finite, outline
from abnn.serve.batcher import Batcher
from abnn.serve.body import Bodies
from abnn.serve.guard import Guard
from abnn.serve.images import decode, encode_png
from abnn.serve.jsons import dumps
from abnn.serve.measures import Measures
from abnn.serve.problems import Problem
from abnn.serve.samples import digit_samples
from abnn.serve.schema import Answer, BatchAnswer, Drift, ModelInfo, Samples, State, body_of, failures
from abnn.serve.settings import Settings
from abnn.serve.traffic import Traffic

DECODERS = 2
PAGE = {
    "index.html": "text/html",
    "app.js": "text/javascript",
    "drawing.js": "text/javascript",
    "result.js": "text/javascript",
    "style.css": "text/css",
    "icon.svg": "image/svg+xml",
}
REFUSED = (400, 401, 403, 408, 413, 415, 421, 422, 500, 503)
Prepare = Annotated[
    Literal["image", "ink"],
    Query(description="image: as the model was trained on pictures; ink: a pen drawing, for models that read digits."),
]
ShowInput = Annotated[bool, Query(description="Also return the prepared input as a picture.")]


def create_app(model: Any, settings: Settings | None = None, name: str = "model") -> FastAPI:
    """An ASGI application around a model with thresholds, as :func:`abnn.load` returns it."""
    return Service(model, settings or Settings(), name).app


class Service:
    """One model, its queue and its counters, behind one application."""

    def __init__(self, model: Any, settings: Settings, name: str) -> None:
        self.form = InputForm.of(model)
        if self.form.kind != "images":
            fix = "Use abnn predict, or predict() from Python."
            raise InputError(explain("model", f"inputs of shape {self.form.shape}", "a model of pictures", fix))
        self.settings, self.name = settings, name
        self.answerer = Answerer(model)
        self.drawing = reads_drawings(model)
        self.samples = list(digit_samples()) if self.drawing else []
        self.measures = Measures()
        self.batcher = Batcher(self.answerer, settings, self.measures.batch)
        self.measures.follow(self.batcher)
        self.traffic = Traffic(self.answerer.triage, settings.drift)
        self.measures.watch(self.traffic)
        self.bodies = Bodies(settings)
        self.decoders: ThreadPoolExecutor | None = None  # from the start of the application to its end
        self.app = self._application()

    # -- one request --------------------------------------------------------------------------------------------------

    async def answer(self, request: Request, field: str, prepare: str, show: bool) -> list[dict[str, Any] | Problem]:
        """Read, decode and prepare all images, let the model answer, and put everything back into order."""
        if prepare == "ink" and not self.drawing:
            raise Problem(422, "no-drawings", "prepare: got 'ink'; accepted: 'image', for this model reads pictures.")
        most = 1 if field == "image" else self.settings.max_images
        with self.batcher.admit() as ticket:
            contents = await self.bodies.images(request, field, most)
            loop = asyncio.get_running_loop()
            work = [loop.run_in_executor(self.decoders, self.prepared, content, prepare) for content in contents]
            prepared = await asyncio.gather(*work)
            good = [each for each in prepared if isinstance(each, Tensor)]
            if not good:
                return [each for each in prepared if isinstance(each, Problem)]
            answers = iter(await self.batcher.submit(good, ticket))
        results: list[dict[str, Any] | Problem] = []
        for each in prepared:
            result = each if isinstance(each, Problem) else next(answers)
            if isinstance(result, dict):
                self.measures.verdicts.labels(result["verdict"]).inc()
                if show and isinstance(each, Tensor):
                    result = {**result, "input": self.picture(each)}
            results.append(result)
        self.traffic.update([result["score"] for result in results if isinstance(result, dict)])
        return results

    def prepared(self, content: bytes, prepare: str) -> Tensor | Problem:
        """One image as an input of the model."""
        try:
            if prepare == "ink":
                return read_drawing(decode(content, 1, self.settings.max_pixels)).to(self.form.dtype)
            return self.form.images(decode(content, self.form.shape[0], self.settings.max_pixels)[None])[0]
        except NoInkError as error:
            return Problem(422, "no-ink", str(error))
        except Problem as problem:
            return problem

    def picture(self, x: Tensor) -> dict[str, Any]:
        pixels = self.form.pictures(x[None])[0]
        png = base64.b64encode(encode_png(pixels)).decode()
        return {"width": pixels.shape[1], "height": pixels.shape[0], "png": png}

    def info(self) -> dict[str, Any]:
        triage, settings = self.answerer.triage, self.settings
        channels, height, width = self.form.shape
        colours = "grey" if channels == 1 else "RGB"
        preparation = f"upright, {colours}, resized to {width} x {height} (bilinear, antialiased), scaled to [0, 1]"
        if self.form.mean is not None:
            preparation += ", normalised as in training"
        return {
            "name": self.name,
            "version": __version__,
            "classes": len(self.answerer.names),
            "class_names": self.answerer.names,
            "input_shape": list(self.form.shape),
            "preparation": preparation,
            "drawing": self.drawing,
            "score": triage.score,
            "draws": triage.draws,
            "notice": finite(triage.notice),
            "reject": finite(triage.reject),
            "calibration": {
                "inputs": getattr(triage, "inputs", None),
                "noticed": finite(getattr(triage, "noticed", None)),
                "rejected": finite(getattr(triage, "rejected", None)),
                "quantiles": outline(self.answerer.calibration),
            },
            "limits": {
                "max_bytes": settings.max_bytes,
                "max_pixels": settings.max_pixels,
                "max_images": settings.max_images,
            },
        }

    # -- the application ----------------------------------------------------------------------------------------------

    def _application(self) -> FastAPI:
        app = FastAPI(
            title="abnn serve",
            version=__version__,
            description="A prediction, and whether to trust it: accept, notice or reject.",
            lifespan=self._life,
            docs_url=None,  # FastAPI's own pages load scripts from elsewhere
            redoc_url=None,
        )
        app.add_middleware(Guard, settings=self.settings, measures=self.measures)
        app.add_exception_handler(Problem, _problem)
        app.add_exception_handler(HTTPException, _http_error)
        app.add_exception_handler(RequestValidationError, _invalid)
        self._add_predictions(app)
        self._add_state(app)
        self._add_page(app)
        return app

    @contextlib.asynccontextmanager
    async def _life(self, app: FastAPI) -> AsyncIterator[None]:
        await asyncio.to_thread(self.batcher.start, torch.zeros(1, *self.form.shape, dtype=self.form.dtype))
        stopping = asyncio.Event()
        keeping = asyncio.create_task(self.traffic.keep(stopping))
        with ThreadPoolExecutor(DECODERS, "abnn-decode") as self.decoders:
            try:
                yield
            finally:
                await asyncio.to_thread(self.batcher.stop)
                stopping.set()
                await keeping

    def _add_predictions(self, app: FastAPI) -> None:
        @app.post(
            "/predict",
            summary="One image",
            responses={200: {"model": Answer}, **failures(*REFUSED)},
            openapi_extra=body_of("image", 1),
        )
        async def predict(request: Request, prepare: Prepare = "image", show_input: ShowInput = False) -> Response:
            (result,) = await self.answer(request, "image", prepare, show_input)
            return result.response() if isinstance(result, Problem) else _json(result)

        @app.post(
            "/predict/batch",
            summary="Several images; each has its own answer or error",
            responses={200: {"model": BatchAnswer}, **failures(*REFUSED)},
            openapi_extra=body_of("images", self.settings.max_images),
        )
        async def predict_batch(
            request: Request, prepare: Prepare = "image", show_input: ShowInput = False
        ) -> Response:
            results = await self.answer(request, "images", prepare, show_input)
            return _json({"results": [{"error": r.content()} if isinstance(r, Problem) else r for r in results]})

    def _add_state(self, app: FastAPI) -> None:
        guarded = failures(401, 403, 421)

        @app.get("/health", summary="The process lives", responses={200: {"model": State}, **failures(403, 421)})
        async def health() -> Response:
            return _json({"status": "ok"})

        @app.get("/ready", summary="The model can answer", responses={200: {"model": State}, **failures(403, 421, 503)})
        async def ready() -> Response:
            if not self.batcher.ready:
                raise Problem(503, "not-ready", "The server is starting or stopping.", {"Retry-After": "1"})
            return _json({"status": "ok"})

        @app.get("/model", summary="Classes, thresholds, input", responses={200: {"model": ModelInfo}, **guarded})
        async def model() -> Response:
            return _json(self.info())

        @app.get("/drift", summary="Is the traffic like calibration?", responses={200: {"model": Drift}, **guarded})
        async def drift() -> Response:
            return _json(self.traffic.state())

        @app.get("/samples", summary="Images to try", responses={200: {"model": Samples}, **guarded})
        async def samples() -> Response:
            return _json({"samples": self.samples})

        prometheus = {200: {"content": {"text/plain": {}}, "description": "Prometheus text"}, **guarded}

        @app.get("/metrics", summary="For Prometheus", response_class=Response, responses=prometheus)  # type: ignore[arg-type]
        async def metrics() -> Response:
            return Response(self.measures.text(), media_type="text/plain; version=0.0.4")

    def _add_page(self, app: FastAPI) -> None:
        """The files of the page, read once; a request's path is only compared with these names."""
        for file, kind in PAGE.items():
            content = (files("abnn.serve") / "page" / file).read_bytes()
            route = "/" if file == "index.html" else f"/page/{file}"
            app.add_api_route(route, _constant(content, kind), include_in_schema=False)


def _constant(content: bytes, kind: str) -> Any:
    async def page() -> Response:
        return Response(content, media_type=kind, headers={"Cache-Control": "no-cache"})

    return page


def _json(content: object) -> Response:
    return Response(dumps(content), media_type="application/json")


async def _problem(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, Problem)
    return problem.response()


async def _http_error(request: Request, error: Exception) -> Response:
    """Unknown paths and methods, in the common form."""
    assert isinstance(error, HTTPException)
    codes = {404: "not-found", 405: "method"}
    return Problem(error.status_code, codes.get(error.status_code, "http"), str(error.detail), error.headers).response()


async def _invalid(request: Request, error: Exception) -> Response:
    """Query parameters that are not accepted: which, and why; what was given is not repeated."""
    assert isinstance(error, RequestValidationError)
    details: Sequence[Any] = error.errors()
    message = "; ".join(f"{each['loc'][-1]}: {each['msg']}" for each in details)
    return Problem(422, "parameter", message[:300]).response()
