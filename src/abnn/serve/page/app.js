// Wiring: where images come from, the requests, and what happens when one fails.

import { makePaper, fromBase64 } from "./drawing.js";
import { make, percent, showAnswer, showError, showNothing, showScale } from "./result.js";

const PAUSE = 600; // milliseconds after a stroke before the drawing is checked by itself
const MOST_PAST = 8;
const byId = (id) => document.getElementById(id);

let model = null;
let shown = null; // the last answer, to be drawn again when the width changes
let past = []; // the last checks, the newest first: answer, title, the picture's address
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
    byId("hint").hidden = !(model.drawing && image === upload && prepare === "image" && answer.verdict === "reject");
    remember({ answer, title, given: URL.createObjectURL(image) });
    show(past[0]);
    await showTraffic();
    if (image === upload) bringIntoView();
  } catch (error) {
    if (error.name === "AbortError") return; // something newer was asked for
    shown = null;
    showError(error.message);
    say(error.message);
    bringIntoView();
  } finally {
    if (running === mine) byId("result").removeAttribute("aria-busy");
  }
}

function show(entry) {
  shown = entry.answer;
  say(showAnswer(entry.answer, model, entry.title, entry.given));
  for (const each of byId("history").children) each.setAttribute("aria-pressed", String(each.entry === entry));
}

function remember(entry) {
  past.unshift(entry);
  for (const dropped of past.splice(MOST_PAST)) URL.revokeObjectURL(dropped.given);
  byId("past").hidden = past.length === 0;
  byId("history").replaceChildren(
    ...past.map((each) => {
      const { verdict, class_name: name, probability } = each.answer;
      const words = `${each.title}: ${verdict}, ${name} with ${percent(probability)}`;
      const picture = make("img", { src: each.given, alt: words, title: words });
      const button = make("button", { type: "button", class: verdict }, picture, make("span", { "aria-hidden": "true" }, verdict));
      button.entry = each;
      button.addEventListener("click", () => {
        press(null);
        byId("hint").hidden = true;
        show(each);
      });
      return button;
    }),
  );
}

// After an upload the verdict is what a person looks for, wherever the page was.
function bringIntoView() {
  const { top, bottom } = byId(byId("answer").hidden ? "error" : "verdict").getBoundingClientRect();
  if (top < 0 || bottom > innerHeight) byId("result").scrollIntoView({ block: "start" });
}

// Whether all images that the server has seen look like those of calibration.
async function showTraffic(options = {}) {
  const drift = await ask("/drift", options).catch(() => null);
  const alarm = Boolean(drift?.alarm);
  byId("traffic").hidden = !drift?.watching || alarm;
  byId("alarm").hidden = !alarm;
  if (!drift?.watching) return;
  const rate = Number((100 * drift.false_alarm_rate).toPrecision(2));
  byId("traffic").textContent = `All images given to this server: ${drift.message}`;
  byId("alarm-text").textContent = alarm
    ? `Drift. ${drift.message} Without drift, such an alarm has a probability of at most ${rate} %.`
    : "";
}

function press(button) {
  for (const each of document.querySelectorAll("#groups button")) {
    each.setAttribute("aria-pressed", String(each === button));
  }
}

function addSamples(samples) {
  const groups = new Map();
  for (const sample of samples) {
    if (!groups.has(sample.group)) groups.set(sample.group, []);
    groups.get(sample.group).push(sample);
  }
  for (const [name, members] of groups) {
    const thumbs = make("div", { class: "thumbs" });
    for (const sample of members) {
      const image = fromBase64(sample.content, sample.type);
      const small = members.every((each) => each.content.length < 2000);
      const picture = make("img", { src: URL.createObjectURL(image), alt: sample.title, class: small ? "pixels" : "" });
      const button = make("button", { type: "button", "aria-pressed": "false", title: sample.title }, picture);
      button.addEventListener("click", () => {
        press(button);
        check(image, sample.title, "image");
      });
      thumbs.append(button);
    }
    const about = members[0].about ? `: ${members[0].about}` : "";
    const legend = make("legend", {}, make("strong", {}, name), about);
    byId("groups").append(make("fieldset", { class: "tier" }, legend, thumbs));
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
    bringIntoView();
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
    document.title = document.querySelector("h1").textContent = model.name;
    byId("about").textContent =
      `It knows ${model.classes.toLocaleString("en")} classes and sees ${width} x ${height} pixels, in ${channels === 1 ? "grey" : "colour"}.`;
    addSamples(samples);
    if (model.drawing) addPaper();
    addUploads();
    await showTraffic(); // before anything is seen, which an alarm would move
  } catch (error) {
    showError(error.message);
    say(error.message);
  }
  byId("main").hidden = false;
}

byId("access").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("abnn-token", byId("token").value);
  start();
});
byId("reset").addEventListener("click", () => showTraffic({ method: "DELETE" }).then(() => say("The drift monitor starts again")));
let width = innerWidth;
addEventListener("resize", () => {
  if (shown && innerWidth !== width) showScale(shown, model);
  width = innerWidth;
});
new IntersectionObserver(([answer]) => byId("summary").classList.toggle("away", answer.isIntersecting)).observe(byId("verdict"));
start();
