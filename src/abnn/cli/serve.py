"""abnn serve: a saved model as a web application, and its page."""

import contextlib
import ipaddress
import logging
import os
import socket
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from abnn.cli._common import Backbone, Device, Weights, command, move_to_device, name_of, open_model, say
from abnn.errors import InputError, explain, import_extra, unknown

LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True, kw_only=True)
class ServeRequest:
    model: Annotated[Path | None, Argument(help="Folder of a saved model.", show_default=False)] = None
    demo: Annotated[bool, Option("--demo", help="Serve a demo: digits, or with --demo photos photographs.")] = False
    host: Annotated[str, Option(help="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8000
    token: Annotated[str | None, Option(envvar="ABNN_SERVE_TOKEN", help="Bearer token of requests.")] = None
    max_batch: Annotated[int, Option(min=1, help="Images that the model takes at once; 1: one by one.")] = 32
    wait: Annotated[float, Option(min=0, help="Milliseconds to wait for requests on their way.")] = 4.0
    queue: Annotated[int, Option(min=1, help="Requests under way; further ones are answered with 503.")] = 256
    timeout: Annotated[float, Option(min=0.01, help="Seconds that one request may take.")] = 10.0
    max_bytes: Annotated[int, Option(min=1, help="Largest body of a request.")] = 10 * 2**20
    max_pixels: Annotated[int, Option(min=1, help="Largest image, width times height.")] = 25_000_000
    threads: Annotated[int | None, Option(min=1, help="For batches of four and more; default: all cores.")] = None
    backbone: Backbone = None
    weights: Weights = None
    device: Device = "auto"
    examples: Annotated[Path | None, Option(help="Folder of images to click on the page, in sub-folders.")] = None
    drift: Annotated[Path | None, Option(help="Keep the drift monitor's state in this file, over restarts.")] = None
    quiet: Annotated[bool, Option("--quiet", "-q", help="No progress bars, and no line for each request.")] = False


@command
def serve(request: ServeRequest) -> None:
    """Serve a saved model over HTTP, with a page where a person can try it."""
    from abnn.serve import Settings, create_app
    from abnn.serve.samples import folder_samples
    from abnn.serve.server import run

    host, local = request.host, is_local(request.host)
    same = ("max_batch", "queue", "timeout", "max_bytes", "max_pixels", "drift")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    settings = Settings(
        **{name: getattr(request, name) for name in same},
        wait=request.wait / 1000,
        max_images=min(64, request.queue),
        token=request.token or None,
        hosts=(*LOCAL_NAMES, host) if local else None,
        threads=request.threads or cores,
    )
    warnings.filterwarnings("ignore", module="PIL")  # Both speak of damaged uploads, which are answered as such.
    logging.getLogger("python_multipart").setLevel(logging.ERROR)
    examples = None if request.examples is None else folder_samples(request.examples)
    model, name, place, samples = _open_model(request)
    application = create_app(model, settings, name, examples or samples)
    with contextlib.closing(listen(host, request.port)) as listener:
        if not local and settings.token is None:
            danger = f"{host} can be reached from other machines and there is no token: anybody may use the model"
            fix = "Set one with --token or ABNN_SERVE_TOKEN, or leave --host out."
            typer.echo(f"abnn: warning: {danger}. {fix}", err=True)
        url = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}/"
        say(f"Serving {name} on {url} (computed on {place}; stop with Ctrl+C)")
        run(application, settings, listener, request.quiet)


def _open_model(request: ServeRequest) -> tuple[Any, str, str, Any]:
    """Return the model, its name, where it computes, and images to click; None: what the model itself suggests."""
    if not request.demo:
        if request.model is None:
            raise InputError(explain("model", "neither a folder nor --demo", "a folder of a saved model, or --demo"))
        model, place = open_model(request.model, request.backbone, request.weights, request.device, request.threads)
        return model, name_of(request.model), place, None
    import_extra("torch", "torch")
    which, samples = str(request.model or "digits"), None
    if which == "digits":
        from abnn.demo.digits import demo_model

        model, name = demo_model(request.quiet)[0], "Digit reader"
    elif which == "photos":
        from abnn.demo.photos import demo_pictures, photo_model
        from abnn.serve.samples import make_sample

        model, name = photo_model(), "What is in a photograph?"
        samples = [make_sample(*each) for each in demo_pictures()]
    else:
        raise unknown("--demo", which, ("digits", "photos"))
    return model, name, move_to_device(model, request.device), samples


def is_local(host: str) -> bool:
    """Whether only this machine can reach it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def listen(host: str, port: int) -> socket.socket:
    """Return a bound socket, so that a taken port is known before anything is promised."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        fix = "Choose another with --port, or --port 0 for any."
        actual = f"{host}:{port} ({error.strerror or error})"
        raise InputError(explain("host and port", actual, "a free address of this machine", fix)) from None
