"""The page in a real browser: samples, drawing, upload, keyboard, a phone, a token."""

from __future__ import annotations

import base64
import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvicorn
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

from abnn.serve import Settings, create_app
from tests.serve.conftest import PNG, encoded, pixels

CHROMIUM = Path("/usr/bin/chromium")
pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason="needs Debian's chromium")
expect.set_options(
    timeout=60_000
)  # milliseconds: a busy machine may take long, and nothing waits longer than it has to
WORDS = re.compile(r"^(Accept|Notice|Reject)\. ")
REFUSED = "Failed to load resource: the server responded with a status of 4"  # Chromium's note of every such answer
SCREENSHOTS = os.environ.get("ABNN_SCREENSHOTS")


class Running:
    """An application in a thread of this process."""

    def __init__(self, app: Any) -> None:
        config = uvicorn.Config(app, port=0, log_level="warning")
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        while not self.server.started:
            time.sleep(0.01)
        self.url = f"http://127.0.0.1:{self.server.servers[0].sockets[0].getsockname()[1]}/"

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join()


@pytest.fixture(scope="module")
def url(model: Any) -> Iterator[str]:
    running = Running(create_app(model, Settings(max_bytes=100_000), "digits"))
    yield running.url
    running.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(params=[(1280, 900), (390, 844)], ids=["desktop", "phone"])
def page(request: pytest.FixtureRequest, browser: Browser, url: str) -> Iterator[Page]:
    width, height = request.param
    context = browser.new_context(viewport={"width": width, "height": height}, has_touch=width < 500)
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on(
        "console", lambda each: errors.append(each.text) if each.type == "error" and REFUSED not in each.text else None
    )
    outside: list[str] = []
    page.on(
        "request", lambda each: outside.append(each.url) if not each.url.startswith((url, "data:", "blob:")) else None
    )
    page.goto(url)
    expect(page.locator("#samples")).to_be_visible()
    yield page
    if SCREENSHOTS:
        page.screenshot(path=f"{SCREENSHOTS}/{request.node.name}.png", full_page=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= width  # nothing sticks out
    assert errors == [] and outside == []
    context.close()


def draw_seven(page: Page) -> None:
    canvas = page.locator("#canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    assert box is not None
    points = [(0.25, 0.2), (0.75, 0.2), (0.45, 0.85)]
    places = [(box["x"] + box["width"] * x, box["y"] + box["height"] * y) for x, y in points]
    page.mouse.move(*places[0])
    page.mouse.down()
    for place in places[1:]:
        page.mouse.move(*place, steps=5)
    page.mouse.up()


def test_samples_of_each_tier_are_checked_and_read_out(page: Page) -> None:
    expect(page.locator("#empty")).to_be_visible()
    for name in ("Handwritten 2", "Printed 4", "Photograph, patch 3"):
        button = page.get_by_role("button", name=name, exact=True)
        button.click()
        expect(button).to_have_attribute("aria-pressed", "true")
        expect(page.locator("#seen")).to_have_attribute("alt", re.compile(f"^{name}, as the model sees it, 8 by 8"))
        expect(page.locator("#status")).to_have_text(WORDS)
        verdict = page.locator("#verdict").get_attribute("class")
        assert verdict in ("accept", "notice", "reject")
        expect(page.locator("#verdict strong")).to_have_text(verdict.capitalize())
        expect(page.locator("#verdict svg")).to_be_visible()
        expect(page.locator("#status")).to_contain_text(page.locator("#reason").inner_text())
        expect(page.locator("#samples-text")).to_contain_text("without its attachments and with them")
        parts = page.locator("#parts tbody tr").count()
        assert parts <= 4 and page.locator("#unusual").is_visible() == (parts > 0 and verdict != "accept")
        expect(page.locator("#given")).to_have_attribute("alt", f"{name}, as it was given")
        assert page.locator("#answers tbody tr").count() == 4 and page.locator("#classes tbody tr").count() == 10
        assert page.locator("#scale svg[role=img]").get_attribute("aria-label").startswith("Score ")  # type: ignore[union-attr]
    assert page.locator("#status").get_attribute("aria-live") == "polite"
    phone = page.viewport_size["width"] < 500  # type: ignore[index]
    expect(page.locator("#summary")).to_be_visible(visible=phone)
    if phone:  # it leads to the result and gives way to it
        page.locator("#summary").click()
        expect(page.locator("#verdict")).to_be_in_viewport()
        expect(page.locator("#summary")).to_be_hidden()


def test_a_drawing_is_checked_by_itself_and_can_be_cleared(page: Page) -> None:
    draw_seven(page)
    expect(page.locator("#seen")).to_have_attribute("alt", re.compile("^Your drawing"))
    expect(page.locator("#status")).to_have_text(WORDS)
    page.get_by_role("button", name="Clear").click()
    expect(page.locator("#empty")).to_be_visible()
    page.get_by_role("button", name="Check the drawing").click()
    expect(page.locator("#error")).to_contain_text("empty")
    expect(page.locator("#status")).to_contain_text("empty")


def test_a_drawing_with_the_keyboard_alone(page: Page) -> None:
    page.locator("#groups button").last.focus()
    page.keyboard.press("Tab")
    expect(page.locator("#canvas")).to_be_focused()
    page.keyboard.press("Space")
    expect(page.locator("#status")).to_have_text("Pen down")
    for _ in range(14):
        page.keyboard.press("ArrowDown")
    expect(page.locator("#pen")).to_be_visible()
    page.keyboard.press("Enter")
    expect(page.locator("#status")).to_have_text(WORDS)
    page.keyboard.press("Delete")
    expect(page.locator("#status")).to_have_text("Paper cleared")
    page.keyboard.press("Enter")
    expect(page.locator("#error")).to_be_visible()


def test_an_upload_is_checked_as_picture_or_as_ink(page: Page, tmp_path: Path) -> None:
    file = tmp_path / "mine.png"
    file.write_bytes(PNG)
    page.get_by_label("Choose an image").set_input_files(file)
    expect(page.locator("#seen")).to_have_attribute("alt", re.compile("^mine.png"))
    expect(page.locator("#status")).to_have_text(WORDS)
    hinted = page.locator("#verdict").get_attribute("class") == "reject"
    expect(page.locator("#as-ink")).to_be_visible(visible=hinted)
    before = page.locator("#seen").get_attribute("src")
    page.get_by_label("It is a digit written or printed on paper").check()
    expect(page.locator("#seen")).not_to_have_attribute("src", before or "")
    expect(page.locator("#as-ink")).to_be_hidden()
    file = tmp_path / "broken.gif"
    file.write_bytes(b"GIF89a and then nothing")
    page.get_by_label("Choose an image").set_input_files(file)
    expect(page.locator("#error")).to_contain_text("cannot be decoded")
    file = tmp_path / "large.png"
    file.write_bytes(bytes(200_000))
    page.get_by_label("Choose an image").set_input_files(file)
    expect(page.locator("#error")).to_contain_text("larger than")


@pytest.mark.parametrize("event, holder", [("paste", "clipboardData"), ("drop", "dataTransfer")])
def test_paste_and_drop(page: Page, event: str, holder: str) -> None:
    page.evaluate(
        """([event, holder, text]) => {
            const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
            const data = new DataTransfer();
            data.items.add(new File([bytes], "given.png", { type: "image/png" }));
            const kind = event === "paste" ? ClipboardEvent : DragEvent;
            document.body.dispatchEvent(new kind(event, { [holder]: data, bubbles: true, cancelable: true }));
        }""",
        [event, holder, base64.b64encode(PNG).decode()],
    )
    expect(page.locator("#seen")).to_have_attribute("alt", re.compile("^given.png"))


def test_after_an_upload_the_verdict_is_in_view_and_kept_among_the_last(page: Page, tmp_path: Path) -> None:
    page.locator("footer").scroll_into_view_if_needed()
    for number in range(10):
        file = tmp_path / f"picture {number}.png"
        file.write_bytes(encoded(pixels(seed=number)))
        page.get_by_label("Choose an image").set_input_files(file)
        expect(page.locator("#seen")).to_have_attribute("alt", re.compile(f"^picture {number}.png"))
    expect(page.locator("#verdict")).to_be_in_viewport()
    assert page.locator("#history button").count() == 8
    scale = page.locator("#scale .zone").evaluate_all("(zones) => zones.map((zone) => zone.getAttribute('width'))")
    page.locator("#history button").last.click()
    expect(page.locator("#given")).to_have_attribute("alt", "picture 2.png, as it was given")
    assert page.locator("#given").evaluate("(picture) => picture.naturalWidth") == 20
    expect(page.locator("#history button").last).to_have_attribute("aria-pressed", "true")
    again = page.locator("#scale .zone").evaluate_all("(zones) => zones.map((zone) => zone.getAttribute('width'))")
    assert scale == again  # one scale for all


def test_an_alarm_is_seen_and_can_be_reset(browser: Browser, model: Any) -> None:
    app = create_app(model, Settings(), "digits")
    running = Running(app)
    page = browser.new_page()
    try:
        page.goto(running.url)
        expect(page.locator("#traffic")).to_contain_text("No sign of drift in 0 images")
        for _ in range(2):
            page.evaluate(
                """(content) => Promise.all(Array.from({ length: 20 }, () => {
                    const form = new FormData();
                    form.append("image", new Blob([Uint8Array.from(content)]), "image");
                    return fetch("/predict", { method: "POST", body: form });
                }))""",
                list(encoded(np.full((8, 8), 255, np.uint8) * (np.indices((8, 8)).sum(0) % 2).astype(np.uint8))),
            )
        page.reload()
        expect(page.get_by_role("alert")).to_contain_text("Drift. Scores are")
        page.get_by_role("button", name="Start again").click()
        expect(page.get_by_role("alert")).to_be_hidden()
        expect(page.locator("#traffic")).to_contain_text("No sign of drift in 0 images")
    finally:
        page.close()
        running.stop()


@pytest.mark.parametrize("path", ["", "docs"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width, height", [(1280, 800), (390, 844)])
def test_axe_finds_nothing(browser: Browser, url: str, path: str, scheme: Any, width: int, height: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    page.goto(url + path)
    if not path:
        page.locator("#groups button").last.click()
        expect(page.locator("#status")).to_have_text(WORDS)
    violations = Axe().run(page).response["violations"]
    assert [(each["id"], [node["target"] for node in each["nodes"]]) for each in violations] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()


def test_everything_has_a_name_and_a_place_in_the_order(page: Page) -> None:
    names = page.evaluate(
        """() => [...document.querySelectorAll("button, input, canvas, a")]
            .filter((each) => each.checkVisibility() && each.tabIndex >= 0)
            .map((each) => (each.getAttribute("aria-label") || each.innerText || each.labels?.[0]?.innerText ||
                            each.querySelector("img")?.alt || "").trim())"""
    )
    assert all(names), names
    assert names[0] == "Skip to the result" and names.index("Paper to draw a digit on") > 17
    assert page.locator("h1").count() == 1 and page.locator("html").get_attribute("lang") == "en"


def test_text_stands_out_in_light_and_dark(page: Page) -> None:
    """WCAG 2 AA: a contrast of at least 4.5 for text, 3 for the marks of verdicts, against the card."""
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        colours = page.evaluate(
            """() => Object.fromEntries(["ink", "muted", "link", "on-link", "card", "page", "accept", "reject", "accept-tint",
                "notice-tint", "reject-tint"].map((name) =>
                    [name, getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim()]))"""
        )
        for text, ground in [
            *(("ink", ground) for ground in ("card", "page", "accept-tint", "notice-tint", "reject-tint")),
            *(("muted", ground) for ground in ("card", "page")),
            ("link", "card"),
            ("on-link", "link"),
        ]:
            assert contrast(colours[text], colours[ground]) >= 4.5, (scheme, text, ground)
        for mark in ("accept", "reject"):
            assert contrast(colours[mark], colours["card"]) >= 3


def contrast(one: str, two: str) -> float:
    def luminance(colour: str) -> float:
        parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(two)))
    return (high + 0.05) / (low + 0.05)


def test_a_token_is_asked_for(browser: Browser, model: Any) -> None:
    running = Running(create_app(model, Settings(token="sesame"), "digits"))
    page = browser.new_page()
    try:
        page.goto(running.url)
        expect(page.locator("#error")).to_contain_text("token")
        page.get_by_label("Token").fill("wrong")
        page.get_by_role("button", name="Use it").click()
        expect(page.locator("#error")).to_contain_text("token")
        page.get_by_label("Token").fill("sesame")
        page.get_by_role("button", name="Use it").click()
        expect(page.locator("#samples")).to_be_visible()
        expect(page.locator("#access")).to_be_hidden()
        page.locator(".thumbs button").first.click()
        expect(page.locator("#status")).to_have_text(WORDS)
    finally:
        page.close()
        running.stop()
