/* The course's only script: the quiz, the notebook button, printing, and the stepper.
   Every page reads without it. It asks nothing of the network. */
"use strict";

/* ---- quiz: a list of <details> becomes a group of radio buttons ------------------------------ */

function makeQuiz(box) {
  const list = box.querySelector(".course-choices");
  const said = box.querySelector(".course-said");
  list.setAttribute("role", "radiogroup");
  list.setAttribute("aria-labelledby", box.dataset.quiz);
  const choices = [...list.children].map((item) => {
    const choice = document.createElement("div");
    choice.className = "course-choice";
    choice.setAttribute("role", "radio");
    choice.setAttribute("aria-checked", "false");
    choice.append(...item.querySelector("summary").childNodes);
    const answer = item.querySelector("details > p");
    item.setAttribute("role", "presentation");
    item.replaceChildren(choice);
    return { choice, answer, right: item.dataset.right };
  });

  function focus(index) {
    const place = (index + choices.length) % choices.length;
    choices.forEach(({ choice }, i) => {
      choice.tabIndex = i === place ? 0 : -1;
    });
    choices[place].choice.focus();
  }

  function choose(index) {
    choices.forEach(({ choice }, i) => {
      choice.setAttribute("aria-checked", String(i === index));
      choice.tabIndex = i === index ? 0 : -1;
    });
    const { choice, answer, right } = choices[index];
    choice.dataset.tried = right;
    said.dataset.right = right;
    said.replaceChildren(answer.cloneNode(true));
  }

  /* Arrow keys move only: an answer shows when you ask for it, with space or Enter. */
  choices.forEach(({ choice }, index) => {
    choice.tabIndex = index === 0 ? 0 : -1;
    choice.addEventListener("click", () => choose(index));
    choice.addEventListener("keydown", (event) => {
      const moves = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 };
      if (event.key in moves) focus(index + moves[event.key]);
      else if (event.key === " " || event.key === "Enter") choose(index);
      else return;
      event.preventDefault();
    });
  });
}

/* ---- the notebook button: only where a lab may answer ---------------------------------------- */

function offerNotebook(box) {
  if (!location.protocol.startsWith("http")) return;
  box.querySelector("[data-open-notebook]").hidden = false;
  box.querySelector("[data-how-to-start]").hidden = true;
}

/* ---- the steppers: a step of data parallelism, an all-reduce, as recorded by the build ---------- */

const COLUMNS = ["rows", "weights", "outputs", "gradients"];
const LEFT = 47,
  COLUMN = 66,
  HEAD = 20,
  LANE = 48,
  WIDTH = LEFT + COLUMNS.length * COLUMN;
/* Work is a solid bar: who works in which movement, and from which column to which. */
const WORK = {
  parallel_apply: { name: "forward", from: 0, to: 2, works: (held) => held.rows },
  backward: { name: "backward", from: 3, to: 3, works: (held) => held.gradients },
  step: { name: "step", from: 1, to: 1, works: (held, gpu) => gpu === 0 },
};

const bytes = (count) => `${count.toLocaleString("en")} B`;
const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);
const gpuOf = (device) => (device === "cpu" ? -1 : Number(device.split(":")[1]));
const nameOf = (place) =>
  place === "cpu" ? "CPU" : place.startsWith("cuda:") ? `GPU ${gpuOf(place)}` : place;

function html(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function svg(tag, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/* A frame that the build has drawn already. */
class Drawn {
  constructor(record, side, gpus) {
    this.frames = record.runs[gpus][side];
  }

  draw(index) {
    const picture = html("div", { class: "course-film" });
    picture.innerHTML = this.frames[index].svg;
    return picture;
  }
}

/* One side of the stepper: lanes for the devices, columns for what travels. */
class Drawing {
  constructor(record, side, gpus) {
    this.record = record;
    this.gpus = gpus;
    this.frames = record.runs[gpus][side];
    this.chunks = this.frames[1].holds.map((held) => held.rows);
    this.most = Math.max(...this.frames.flatMap((frame) => frame.copies.map((copy) => copy.bytes)));
  }

  colour(gpu) {
    return gpu < 0 ? this.record.host : this.record.colours[gpu];
  }
  laneOf(gpu) {
    return HEAD + (gpu + 1) * LANE;
  }
  columnOf(name) {
    return LEFT + COLUMNS.indexOf(name) * COLUMN;
  }

  draw(index) {
    const frame = this.frames[index];
    const before = this.frames[Math.max(index - 1, 0)];
    const height = HEAD + (this.gpus + 1) * LANE + 2;
    const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${height}`, "aria-hidden": "true" });
    COLUMNS.forEach((name) =>
      picture.append(svg("text", { x: this.columnOf(name) + 4, y: 12, class: "muted" }, name)),
    );
    for (let gpu = -1; gpu < this.gpus; gpu += 1) picture.append(this.lane(gpu));
    picture.append(...this.held(index === 0 ? frame : before, frame));
    frame.copies.forEach((copy) => picture.append(this.arrow(copy, frame)));
    picture.append(...this.work(frame));
    return picture;
  }

  lane(gpu) {
    const y = this.laneOf(gpu),
      colour = this.colour(gpu);
    return svg(
      "g",
      {},
      svg("rect", { x: 0.5, y: y + 1, width: WIDTH - 1, height: LANE - 4, rx: 7, class: "lane" }),
      svg("rect", { x: 0.5, y: y + 1, width: 5, height: LANE - 4, rx: 2.5, fill: colour }),
      svg("text", { x: 10, y: y + LANE / 2 + 3, class: "strong" }, gpu < 0 ? "CPU" : `GPU ${gpu}`),
    );
  }

  /* What every device holds. What this movement brought comes in after its arrow; what it took
     away stays as a shadow. */
  held(before, frame) {
    const shapes = [this.squares(-1, "rows", this.record.rows, 0, "")];
    const anyNew = frame.holds.some((held) => held.weights === 1);
    frame.holds.forEach((held, gpu) => {
      const old = before.holds[gpu];
      for (const what of COLUMNS) {
        const [there, was] = [held, old].map((has) =>
          what === "weights" ? has[what] !== null : has[what],
        );
        if (!there && !was) continue;
        const style = !there ? "leaves" : held[what] === old[what] ? "" : "arrives";
        shapes.push(...this.item(gpu, what, (there ? held : old)[what], style, anyNew));
      }
    });
    return shapes;
  }

  item(gpu, what, amount, style, anyNew) {
    const first = sum(this.chunks.slice(0, gpu));
    if (what === "weights") {
      const label = anyNew ? ["old", "new"][amount] : "";
      return [this.bar(gpu, what, [amount ? "new" : "old"], label, style)];
    }
    if (what === "gradients") {
      const whole = amount === "whole";
      const parts = this.chunks.flatMap((rows, part) =>
        rows && (whole || part === gpu) ? [part] : [],
      );
      const bar = this.bar(gpu, what, parts, "", style);
      return whole ? [bar, this.words(gpu, what, "all rows", `muted ${style}`)] : [bar];
    }
    const gathered = what === "outputs" && amount > this.chunks[gpu];
    return [this.squares(gpu, what, amount, gathered ? 0 : first, style)];
  }

  /* Rows and their outputs, five to a line, each in the colour of the GPU it belongs to. */
  squares(gpu, column, count, first, style) {
    const group = svg("g", { class: style });
    const ends = this.chunks.map((_, i) => sum(this.chunks.slice(0, i + 1)));
    for (let i = 0; i < count; i += 1) {
      const owner = ends.findIndex((end) => first + i < end);
      const place = {
        x: this.columnOf(column) + 5 + (i % 5) * 8,
        y: this.laneOf(gpu) + 8 + Math.floor(i / 5) * 8,
      };
      const tall = column === "rows" ? 6.5 : 4;
      group.append(
        svg("rect", {
          ...place,
          width: 6.5,
          height: tall,
          rx: 1.5,
          fill: this.colour(owner),
          class: "item",
        }),
      );
    }
    return group;
  }

  bar(gpu, column, parts, label, style) {
    const x = this.columnOf(column) + 5,
      y = this.laneOf(gpu) + 9,
      wide = 39 / parts.length;
    const group = svg("g", { class: style });
    parts.forEach((part, i) =>
      group.append(
        svg("rect", {
          x: x + i * wide,
          y,
          width: wide,
          height: 13,
          class: typeof part === "string" ? `item ${part}` : "item",
          ...(typeof part === "number" && { fill: this.colour(part) }),
        }),
      ),
    );
    if (label)
      group.append(svg("text", { x: x + 19.5, y: y + 10, class: `inside ${parts[0]}` }, label));
    return group;
  }

  words(gpu, column, said, style) {
    const place = { x: this.columnOf(column) + 3, y: this.laneOf(gpu) + 38 };
    return svg("text", { ...place, class: style }, said);
  }

  /* Out of the sender's lane, along a track of its own, into the receiver's lane. */
  arrow(copy, frame) {
    const [from, to] = [gpuOf(copy.source), gpuOf(copy.target)];
    const far = Math.max(from, to);
    const x = this.columnOf(copy.column);
    const start = x + 46,
      track = x + 52 + Math.max(far, 0) * 3.8;
    const shift = from < to ? 3 : -3;
    const [y1, y2] = [this.laneOf(from) + 16 + shift, this.laneOf(to) + 16 - shift];
    const path = `M${start} ${y1}H${track}V${y2}H${start + 5}`;
    const width = 2 + 1.6 * (copy.bytes / this.most),
      colour = this.colour(from);
    return svg(
      "g",
      { class: "copy" },
      svg("path", { d: path, stroke: colour, "stroke-width": width, class: "track" }),
      svg("path", { d: path, stroke: colour, "stroke-width": width, class: "stripes" }),
      svg("path", { d: `M${start - 1} ${y2}l6.5 -4v8z`, fill: colour }),
      svg("rect", {
        x: -4,
        y: -4,
        width: 8,
        height: 8,
        rx: 2,
        fill: colour,
        class: "packet item",
        style: `offset-path:path("${path}")`,
      }),
      this.words(far, copy.column, bytes(copy.bytes), "amount"),
    );
  }

  work(frame) {
    const work = WORK[frame.movement];
    if (!work) return [];
    return frame.holds.flatMap((held, gpu) => {
      if (!work.works(held, gpu)) return [];
      const x = LEFT + work.from * COLUMN + 2,
        y = this.laneOf(gpu) + 28;
      const width = (work.to - work.from + 1) * COLUMN - 7;
      return [
        svg(
          "g",
          { class: "work" },
          svg("rect", { x, y, width, height: 14, rx: 4, fill: this.colour(gpu) }),
          svg(
            "text",
            { x: x + width / 2, y: y + 11, class: `strong ${gpu ? "dark" : "light"}` },
            work.name,
          ),
        ),
      ];
    });
  }
}

/* The sentence a screen reader hears for one side of a movement. */
function spoken(title, frame) {
  const copies = frame.copies.map(
    (copy) => `${nameOf(copy.source)} to ${nameOf(copy.target)}, ${bytes(copy.bytes)}`,
  );
  return `${title}: ${frame.says} ${copies.length ? `${copies.join("; ")}.` : ""}`;
}

class Stepper {
  constructor(box) {
    this.box = box;
    this.record = JSON.parse(box.querySelector("script").textContent);
    this.name = `course-stepper-${[...document.querySelectorAll(".course-stepper")].indexOf(box)}`;
    this.index = 0;
    this.gpus = Math.max(...Object.keys(this.record.runs).map(Number));
    this.timer = null;
    this.build();
    this.show(1); // after the start: the first picture shows what the pictures are about
  }

  get last() {
    return Object.values(this.record.runs[this.gpus])[0].length - 1;
  }

  build() {
    const stage = this.box.querySelector(".course-stage");
    this.box.querySelector(".course-numbers").open = false;
    this.sides = Object.fromEntries(
      Object.entries(this.record.sides).map(([side, about]) => [side, this.buildSide(side, about)]),
    );
    this.list = html("ol", { class: "course-movements" });
    this.buildChips();
    this.status = html("p", { class: "course-heard", role: "status" });
    stage.append(
      this.chooser(),
      this.list,
      html(
        "div",
        { class: "course-sides" },
        ...Object.values(this.sides).map((side) => side.figure),
      ),
      this.buttons(),
      ...(this.record.drawn ? [] : [legend()]), // a drawn frame brings its own
      this.status,
    );
    stage.setAttribute("role", "group");
    stage.setAttribute("aria-label", this.record.title);
    stage.tabIndex = 0; // a click on the drawing, or Tab, and the keys work
    stage.addEventListener("keydown", (event) => this.key(event));
    this.listenToSwipes(stage);
  }

  /* One button per step; how many there are may depend on the number of GPUs or ranks. */
  buildChips() {
    const frames = Object.values(this.record.runs[this.gpus])[0];
    this.chips = frames.map((frame, index) => {
      const chip = html("button", { type: "button" }, frame.label);
      chip.addEventListener("click", () => {
        this.pause();
        this.show(index);
      });
      return chip;
    });
    this.list.replaceChildren(...this.chips.map((chip) => html("li", {}, chip)));
  }

  buildSide(side, about) {
    const parts = {
      picture: html("div", { class: "course-drawing" }),
      code: html("code", {}),
      says: html("p", { class: "course-says" }),
      total: html("span", { class: "course-total" }),
    };
    parts.figure = html(
      "section",
      { "aria-label": about.title },
      html("div", { class: "course-side" }, html("strong", {}, about.title), parts.total),
      html("p", { class: "course-habit" }, about.habit),
      parts.picture,
      html("p", { class: "course-line" }, parts.code),
      parts.says,
    );
    return parts;
  }

  chooser() {
    const group = html("fieldset", { class: "course-gpus" }, html("legend", {}, this.record.unit));
    Object.keys(this.record.runs).forEach((gpus) => {
      const choice = html("input", { type: "radio", name: this.name, value: gpus });
      choice.checked = Number(gpus) === this.gpus;
      choice.addEventListener("change", () => {
        this.gpus = Number(gpus);
        this.buildChips();
        this.show(this.index);
      });
      group.append(html("label", {}, choice, gpus));
    });
    return group;
  }

  buttons() {
    const button = (words, act) => {
      const made = html("button", { type: "button" }, words);
      made.addEventListener("click", act);
      return made;
    };
    this.back = button("← Back", () => {
      this.pause();
      this.show(this.index - 1);
    });
    this.play = button("Play", () => this.toggle());
    this.next = button("Next →", () => {
      this.pause();
      this.show(this.index + 1);
    });
    this.count = html("span", { class: "course-count" });
    const keys = html("span", { class: "course-keys" }, "keys: ← → Home End, space plays");
    return html(
      "div",
      { class: "course-buttons" },
      this.back,
      this.play,
      this.next,
      this.count,
      keys,
    );
  }

  show(wanted) {
    const index = Math.min(Math.max(wanted, 0), this.last);
    const forward = index > this.index;
    this.index = index;
    for (const [side, parts] of Object.entries(this.sides)) {
      const drawing = new (this.record.drawn ? Drawn : Drawing)(this.record, side, this.gpus);
      const frame = drawing.frames[index];
      const sent = sum(
        drawing.frames.slice(0, index + 1).flatMap((f) => f.copies.map((c) => c.bytes)),
      );
      parts.picture.replaceChildren(drawing.draw(index));
      parts.picture.classList.toggle("course-moving", forward);
      parts.code.textContent = frame.code || "\u00a0";
      parts.says.textContent = frame.says;
      parts.total.textContent = frame.total ?? `${bytes(sent)} sent so far`;
    }
    this.chips.forEach((chip, i) => {
      if (i === index) chip.setAttribute("aria-current", "step");
      else chip.removeAttribute("aria-current");
    });
    if (this.chips.includes(document.activeElement))
      this.chips[index].focus({ preventScroll: true });
    const chip = this.chips[index]; // on a phone the list of movements is a strip that scrolls
    this.list.scrollTo({ left: chip.offsetLeft - (this.list.clientWidth - chip.offsetWidth) / 2 });
    this.back.disabled = index === 0;
    this.next.disabled = index === this.last;
    this.count.textContent = this.place();
    this.box.querySelectorAll("[data-gpus]").forEach((table) => {
      table.hidden = Number(table.dataset.gpus) !== this.gpus;
    });
    this.say();
  }

  place() {
    return `${this.index} of ${this.last}`;
  } // the start is number 0

  say() {
    const told = Object.entries(this.record.sides).map(([side, { title }]) =>
      spoken(title, this.record.runs[this.gpus][side][this.index]),
    );
    const label = this.chips[this.index].textContent;
    this.status.textContent = `${label}, ${this.place()}. ${told.join(" ")}`;
  }

  toggle() {
    if (this.timer) {
      this.pause();
      return;
    }
    this.play.textContent = "Pause";
    this.show(this.index === this.last ? 0 : this.index + 1);
    this.timer = setInterval(() => {
      this.show(this.index + 1);
      if (this.index === this.last) this.pause();
    }, 3500);
  }

  pause() {
    clearInterval(this.timer);
    this.timer = null;
    this.play.textContent = "Play";
  }

  key(event) {
    const places = {
      ArrowRight: this.index + 1,
      ArrowLeft: this.index - 1,
      Home: 0,
      End: this.last,
    };
    const inChooser = event.target.matches("input"); // there, arrow keys choose the number of GPUs
    if (event.key in places && !inChooser) {
      this.pause();
      this.show(places[event.key]);
    } else if (event.key === " " && !event.target.matches("button, input")) this.toggle();
    else return;
    event.preventDefault();
  }

  listenToSwipes(stage) {
    let start = null;
    stage.addEventListener(
      "touchstart",
      (event) => {
        start = event.touches[0];
      },
      { passive: true },
    );
    stage.addEventListener("touchend", (event) => {
      const end = event.changedTouches[0];
      const [x, y] = [end.clientX - start.clientX, end.clientY - start.clientY];
      if (Math.abs(x) < 40 || Math.abs(x) < 2 * Math.abs(y)) return;
      this.pause();
      this.show(this.index + (x < 0 ? 1 : -1));
    });
  }
}

function legend() {
  return html(
    "p",
    { class: "course-legend" },
    html("span", { class: "course-solid" }),
    "solid: compute",
    html("span", { class: "course-striped" }),
    "striped: bytes on their way, thicker means more",
  );
}

/* ---- start ----------------------------------------------------------------------------------- */

document.querySelectorAll("[data-quiz]").forEach(makeQuiz);
document.querySelectorAll(".course-stepper").forEach((box) => new Stepper(box));
document.querySelectorAll(".course-open").forEach(offerNotebook);
