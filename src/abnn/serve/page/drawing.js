// A sheet of paper for a pen: mouse, finger or keyboard.

const STEP = 10;
const PEN = 30; // about a tenth of the paper, as thick as the strokes of the training data once the digit fills its box
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

export function fromBase64(text, type) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Blob([bytes], { type });
}

export function makePaper(canvas, pen, { finished, check, say }) {
  const context = canvas.getContext("2d");
  let last = null; // where the stroke of a pointer is
  let cursor = [canvas.width / 2, canvas.height / 4];
  let down = false; // the pen of the keyboard

  function clear() {
    context.fillStyle = "#fff";
    context.fillRect(0, 0, canvas.width, canvas.height);
    down = false;
    pen.classList.remove("down");
  }

  function stroke(from, to) {
    context.strokeStyle = "#000";
    context.lineWidth = PEN;
    context.lineCap = context.lineJoin = "round";
    context.beginPath();
    context.moveTo(...from);
    context.lineTo(...to);
    context.stroke();
  }

  function place(event) {
    const box = canvas.getBoundingClientRect();
    return [
      ((event.clientX - box.left) * canvas.width) / box.width,
      ((event.clientY - box.top) * canvas.height) / box.height,
    ];
  }

  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    canvas.setPointerCapture(event.pointerId);
    last = place(event);
    stroke(last, last);
    event.preventDefault();
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!last) return;
    for (const each of event.getCoalescedEvents?.() ?? [event]) {
      const next = place(each);
      stroke(last, next);
      last = next;
    }
  });
  for (const kind of ["pointerup", "pointercancel"]) {
    canvas.addEventListener(kind, () => {
      if (last) finished();
      last = null;
    });
  }

  function showPen() {
    pen.style.left = `${(100 * cursor[0]) / canvas.width}%`;
    pen.style.top = `${(100 * cursor[1]) / canvas.height}%`;
    pen.classList.toggle("down", down);
  }
  canvas.addEventListener("focus", () => {
    showPen();
    pen.hidden = !canvas.matches(":focus-visible");
  });
  canvas.addEventListener("blur", () => (pen.hidden = true));
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in ARROWS) {
      const [x, y] = ARROWS[event.key];
      const next = [
        Math.min(canvas.width, Math.max(0, cursor[0] + STEP * x)),
        Math.min(canvas.height, Math.max(0, cursor[1] + STEP * y)),
      ];
      if (down) stroke(cursor, next);
      cursor = next;
    } else if (event.key === " ") {
      down = !down;
      if (down) stroke(cursor, cursor);
      say(down ? "Pen down" : "Pen up");
    } else if (event.key === "Enter") {
      check();
    } else if (event.key === "Delete" || event.key === "Backspace") {
      clear();
      say("Paper cleared");
    } else {
      return;
    }
    pen.hidden = false;
    showPen();
    event.preventDefault();
  });

  clear();
  return { clear, image: () => fromBase64(canvas.toDataURL("image/png").split(",")[1], "image/png") };
}
