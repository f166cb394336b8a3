// Wiring: where images come from, the requests, and what happens when one fails.

import { makePaper, pngFromBase64 } from "./drawing.js";
import { make, showAnswer, showError, showNothing, showScale } from "./result.js";

const TIERS = {
  id: ["Handwritten digits", "what the model was trained on"],
  semi: ["Printed digits", "another style, still readable"],
  full: ["Photographs", "nothing to read"],
};
const PAUSE = 600; // milliseconds after a stroke before the drawing is checked by itself
const byId = (id) => document.getElementById(id);

let model = null;
let shown = null; // the last answer, to be drawn again when the width changes
let upload = null; // the last uploaded image, to be checked again when its kind changes
let running = null;

const say = (text) => (byId("status").textContent = text);
const token = () => sessionStorage.getItem("abnn-token");

async function ask(path, options = {}) {
  const headers = token() ? { Authorization: `Bearer ${token()}` } : {};
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server cannot be reached. Is it still running?");
  }
  const content = await response.json().catch(() => null);
  if (response.ok && content) return content;
  if (response.status === 401) byId("access").hidden = false;
  if (response.status === 503) throw new Error("The server is busy. Try again in a moment.");
  throw new Error(content?.error?.message ?? `The server answered with status ${response.status}.`);
}

async function check(image, title, prepare) {
  running?.abort();
  const mine = (running = new AbortController());
  const form = new FormData();
  form.append("image", image, "image");
  byId("result").setAttribute("aria-busy", "true");
  try {
    const path = `/predict?prepare=${prepare}&show_input=true`;
    const answer = await ask(path, { method: "POST", body: form, signal: mine.signal });
    shown = answer;
    byId("hint").hidden = !(model.drawing && image === upload && prepare === "image" && answer.verdict === "reject");
    say(showAnswer(answer, model, title));
    showTraffic();
  } catch (error) {
    if (error.name === "AbortError") return; // something newer was asked for
    shown = null;
    showError(error.message);
    say(error.message);
  } finally {
    if (running === mine) byId("result").removeAttribute("aria-busy");
  }
}

// Whether all images that the server has seen look like those of calibration.
async function showTraffic() {
  const drift = await ask("/drift").catch(() => null);
  byId("traffic").hidden = !drift?.watching;
  if (!drift?.watching) return;
  const rate = Number((100 * drift.false_alarm_rate).toPrecision(2));
  byId("traffic").textContent =
    `All images given to this server: ${drift.message}` +
    (drift.alarm ? ` Without drift, such an alarm has a probability of at most ${rate} %.` : "");
}

function press(button) {
  for (const each of document.querySelectorAll(".thumbs button")) {
    each.setAttribute("aria-pressed", String(each === button));
  }
}

function addSamples(samples) {
  for (const [tier, [name, words]] of Object.entries(TIERS)) {
    const thumbs = make("div", { class: "thumbs" });
    for (const sample of samples.filter((each) => each.tier === tier)) {
      const picture = make("img", { src: `data:image/png;base64,${sample.png}`, alt: sample.title });
      const button = make("button", { type: "button", "aria-pressed": "false", title: sample.title }, picture);
      button.addEventListener("click", () => {
        press(button);
        check(pngFromBase64(sample.png), sample.title, "image");
      });
      thumbs.append(button);
    }
    const legend = make("legend", {}, make("strong", {}, name), `: ${words}`);
    byId("tiers").append(make("fieldset", { class: "tier" }, legend, thumbs));
  }
  byId("samples").hidden = samples.length === 0;
}

function addPaper() {
  let timer = null;
  const checkDrawing = () => {
    clearTimeout(timer);
    press(null);
    check(paper.image(), "Your drawing", "ink");
  };
  const finished = () => {
    clearTimeout(timer);
    timer = setTimeout(checkDrawing, PAUSE);
  };
  const paper = makePaper(byId("canvas"), byId("pen"), { finished, check: checkDrawing, say });
  byId("canvas").addEventListener("pointerdown", () => clearTimeout(timer));
  byId("check").addEventListener("click", checkDrawing);
  byId("clear").addEventListener("click", () => {
    clearTimeout(timer);
    running?.abort();
    paper.clear();
    shown = null;
    showNothing();
    say("Paper cleared");
  });
  byId("draw").hidden = byId("ink-choice").hidden = false;
}

function checkUpload() {
  if (!upload) return;
  press(null);
  check(upload, upload.name || "Your image", byId("ink").checked ? "ink" : "image");
}

function take(files) {
  const file = [...(files ?? [])][0];
  if (!file) return false;
  if (file.size > model.limits.max_bytes) {
    showError(`The file is larger than ${Math.floor(model.limits.max_bytes / 2 ** 20)} MB.`);
    say(byId("error").textContent);
    return true;
  }
  upload = file;
  checkUpload();
  return true;
}

function addUploads() {
  byId("file").addEventListener("click", (event) => (event.target.value = "")); // the same file may have changed
  byId("file").addEventListener("change", (event) => take(event.target.files));
  byId("ink").addEventListener("change", checkUpload);
  byId("as-ink").addEventListener("click", () => {
    byId("ink").checked = true;
    byId("result").focus({ preventScroll: true }); // the button is about to vanish
    checkUpload();
  });
  document.addEventListener("paste", (event) => {
    if (take(event.clipboardData?.files)) event.preventDefault();
  });
  const dragging = (on) => document.body.classList.toggle("dragging", on);
  document.addEventListener("dragover", (event) => {
    event.preventDefault();
    dragging(true);
  });
  document.addEventListener("dragleave", (event) => event.relatedTarget === null && dragging(false));
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    dragging(false);
    take(event.dataTransfer?.files);
  });
}

async function start() {
  try {
    model = await ask("/model");
    const { samples } = await ask("/samples");
    byId("access").hidden = true;
    showNothing();
    const [channels, height, width] = model.input_shape;
    byId("about").textContent =
      `Model: ${model.name}, ${model.classes} classes, input ${width} x ${height} ${channels === 1 ? "grey" : "colour"}, ` +
      `${model.draws ? `${model.draws} draws` : "mean weights"}.`;
    addSamples(samples);
    if (model.drawing) addPaper();
    addUploads();
    showTraffic();
  } catch (error) {
    showError(error.message);
    say(error.message);
  }
}

byId("access").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("abnn-token", byId("token").value);
  start();
});
let width = innerWidth;
addEventListener("resize", () => {
  if (shown && innerWidth !== width) showScale(shown, model);
  width = innerWidth;
});
new IntersectionObserver(([answer]) => byId("summary").classList.toggle("away", answer.isIntersecting)).observe(byId("verdict"));
start();
