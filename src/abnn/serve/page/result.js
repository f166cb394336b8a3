// From an answer of POST /predict to what a person reads.

const WORDS = {
  accept: ["Accept", "Trust the prediction."],
  notice: ["Notice", "Use the prediction with care."],
  reject: ["Reject", "Do not use the prediction."],
};
const SHAPES = {
  accept: [["circle", { class: "tone", cx: 20, cy: 20, r: 19 }], ["path", { class: "mark", d: "M11 21l6 6 12-13" }]],
  notice: [
    ["path", { class: "tone", d: "M20 2 39 37H1z" }],
    ["path", { class: "mark", d: "M20 15v10" }],
    ["circle", { class: "dot", cx: 20, cy: 31, r: 2 }],
  ],
  reject: [
    ["path", { class: "tone", d: "M12.5 1h15L39 12.5v15L27.5 39h-15L1 27.5v-15z" }],
    ["path", { class: "mark", d: "M13 13l14 14M27 13 13 27" }],
  ],
};
const MOST_CLASSES = 10;
const MOST_PARTS = 4;

const byId = (id) => document.getElementById(id);
export const percent = (share) =>
  share > 0.995 && share < 1 ? "> 99 %" : share > 0 && share < 0.005 ? "< 1 %" : `${Math.round(100 * share)} %`;

const short = (number) => String(Number(number.toPrecision(3)));

export function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function drawn(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function icon(verdict) {
  const shapes = SHAPES[verdict].map(([tag, attributes]) => drawn(tag, attributes));
  return drawn("svg", { viewBox: "0 0 40 40", "aria-hidden": "true" }, ...shapes);
}

export function showAnswer(answer, model, title, given) {
  const [word, advice] = WORDS[answer.verdict];
  const refused = answer.verdict === "reject";
  byId("empty").hidden = byId("error").hidden = true;
  byId("answer").hidden = false;
  byId("verdict").className = answer.verdict;
  byId("verdict").replaceChildren(icon(answer.verdict), make("div", {}, make("strong", {}, word), advice));
  byId("given").src = given;
  byId("given").alt = `${title}, as it was given`;
  const seen = byId("seen");
  seen.src = `data:image/png;base64,${answer.input.png}`;
  seen.alt = `${title}, as the model sees it, ${answer.input.width} by ${answer.input.height} pixels`;
  for (const each of [seen, byId("given")]) each.classList.toggle("pixels", answer.input.width < 64);
  const name = make(refused ? "s" : "b", {}, answer.class_name);
  byId("guess").replaceChildren(refused ? "Best guess " : "Prediction ", name, ` with ${percent(answer.probability)}`);
  byId("reason").textContent = answer.reason;
  showScale(answer, model);
  showParts(answer, model);
  showSamples(answer, model);
  showClasses(answer, model);
  const summary = byId("summary");
  summary.hidden = false;
  summary.classList.remove("accept", "notice", "reject");
  summary.classList.add(answer.verdict);
  const short = refused ? word : `${word}: ${answer.class_name}`;
  summary.replaceChildren(icon(answer.verdict), make("strong", {}, short), make("span", { class: "more" }, "See why"));
  const guess = refused ? "Best guess" : "Prediction";
  return `${word}. ${guess} ${answer.class_name} with ${percent(answer.probability)}. ${answer.reason}`;
}

export function showNothing() {
  byId("answer").hidden = byId("error").hidden = byId("summary").hidden = true;
  byId("empty").hidden = false;
}

export function showError(message) {
  byId("empty").hidden = byId("answer").hidden = byId("summary").hidden = true;
  byId("error").hidden = false;
  byId("error").textContent = message;
}

// The three zones of the score, the good inputs used for calibration as thin lines, and this image as a triangle. The scale is
// the same for every image of a model, so that images can be compared; what lies beyond it stands at its end.
export function showScale(answer, model) {
  const width = Math.max(240, byId("scale").clientWidth);
  const past = model.calibration.quantiles ?? [];
  const { notice, reject } = answer.thresholds;
  const limits = [model.notice, model.reject, notice, reject].filter((limit) => limit !== null);
  const near = Math.min(...limits, past[0] ?? 0);
  const last = Math.max(...limits, past[past.length - 1] ?? 1);
  const end = last + 0.35 * (last - near || 1);
  const x = (score) => (width * (Math.min(end, Math.max(near, score)) - near)) / (end - near);
  const edges = [near, notice ?? end, reject ?? end, end];
  const parts = [];
  ["accept", "notice", "reject"].forEach((verdict, place) => {
    const [left, right] = [x(edges[place]), x(edges[place + 1])];
    if (right <= left) return;
    parts.push(drawn("rect", { class: `zone ${verdict}`, x: left, y: 24, width: right - left, height: 14 }));
    if (right - left > 40) parts.push(drawn("text", { x: (left + right) / 2, y: 54, "text-anchor": "middle" }, verdict));
  });
  for (const score of past) parts.push(drawn("path", { class: "past", d: `M${x(score).toFixed(1)} 60v14` }));
  const here = Math.min(width - 8, Math.max(8, x(answer.score)));
  const beyond = answer.score > end;
  parts.push(drawn("path", { class: "here", d: beyond ? `M${here - 5} 5v14l12-7z` : `M${here - 7} 12h14l-7 11z` }));
  const anchor = beyond || here > width - 40 ? "end" : here < 40 ? "start" : "middle";
  const label = beyond ? here - 10 : anchor === "start" ? here - 7 : anchor === "end" ? here + 7 : here;
  parts.push(drawn("text", { x: label, y: beyond ? 17 : 9, "text-anchor": anchor }, beyond ? "this image, beyond the scale" : "this image"));
  const height = past.length ? 76 : 58;
  const above = (limit) => (limit === null ? "never" : `above ${short(limit)}`);
  const words = `Score ${short(answer.score)}. Notice ${above(notice)}, reject ${above(reject)}.`;
  byId("scale").replaceChildren(
    drawn("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": words }, ...parts),
  );
  const share = answer.calibration.share_below;
  const lines = past.length ? " Thin lines: good inputs that the limits were calibrated on." : "";
  const said = share === null || answer.verdict !== "accept"; // the reason says it otherwise
  const place = said ? "" : ` More uncertain than ${percent(share)} of the good inputs used for calibration.`;
  byId("scale-text").textContent = `Score ${short(answer.score)}, larger is more uncertain.${place}${lines}`;
}

function bars(caption, rows) {
  const body = make("tbody");
  for (const { head, share, other, number } of rows) {
    const fill = make("span", { class: "fill" });
    fill.style.width = `${100 * share}%`;
    const track = make("span", { class: "track", "aria-hidden": "true" }, fill);
    body.append(
      make(
        "tr",
        other ? { class: "other" } : {},
        make("th", { scope: "row" }, make("span", { title: head }, head)),
        make("td", {}, track),
        make("td", { class: "number" }, number ?? percent(share)),
      ),
    );
  }
  return make("table", { class: "bars" }, make("caption", {}, caption), body);
}

// What the verdict comes from: by how much the score would be lower if a part of it were usual.
function showParts(answer, model) {
  const causes = Object.entries(answer.causes ?? {}).slice(0, MOST_PARTS);
  const most = Math.max(...causes.map(([, drop]) => drop), 0);
  const rows = causes.map(([name, drop]) => ({
    head: capital(model.parts[name] ?? name),
    share: drop / most,
    other: true,
    number: drop >= 1000 ? "> 999" : drop.toFixed(drop < 10 ? 2 : 0),
  }));
  const { notice, reject } = answer.thresholds;
  const limit = answer.verdict === "reject" ? reject : notice;
  byId("unusual").hidden = answer.verdict === "accept" || rows.length === 0;
  byId("unusual-title").textContent = answer.verdict === "reject" ? "What refused it" : "What made it doubtful";
  const over = short(answer.score - limit);
  const caption = `The score is ${over} above the limit. If this alone were usual, it would be lower by so much:`;
  byId("parts").replaceChildren(bars(caption, rows));
}

const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

function showSamples(answer, model) {
  const { labels, probabilities, names } = answer.samples;
  const agreeing = labels.filter((label) => label === answer.label).length;
  const rows = probabilities.map((share, place) => {
    const other = labels[place] !== answer.label;
    const says = other ? ` says “${model.class_names[labels[place]]}”` : "";
    return { head: `${capital(names[place])}${says}`, share, other };
  });
  rows.push({ head: "In the prediction", share: answer.probability });
  const draws = names.some((name) => name.startsWith("draw"));
  byId("samples-text").textContent =
    (names.length === 1
      ? "The model answers once."
      : draws
        ? "The model answers several times, each time with slightly different weights."
        : "The network answers without its attachments and with them.") +
    (names.length === 1 ? "" : " Answers that name different classes or give different probabilities are a sign of doubt.");
  byId("samples-text").textContent += " The more an input looks changed, the more the answer with attachments counts; else the network’s own answer stands. It is corrected so that it comes true on data like the calibration data.";
  const caption = `${agreeing} of ${names.length} answers name “${answer.class_name}”. What each gives to it:`;
  byId("answers").replaceChildren(bars(caption, rows));
}

function showClasses(answer, model) {
  const order = answer.probabilities.map((share, label) => ({ share, head: model.class_names[label], label }));
  const many = order.length > MOST_CLASSES;
  if (many) order.sort((one, two) => two.share - one.share);
  const caption = many ? `The ${MOST_CLASSES} most probable of ${order.length.toLocaleString("en")} classes, in the prediction:` : "All classes, in the prediction:";
  byId("classes").replaceChildren(bars(caption, order.slice(0, MOST_CLASSES)));
}
