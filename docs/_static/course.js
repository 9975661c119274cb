/* The course's only script: quizzes, the notebook button, steppers, explorers, timelines that
   answer, words that explain themselves, search and print. Every page reads without it. It asks
   nothing of the network. */
"use strict";

/* ---- elements: how the parts below make them ------------------------------------------------- */

const bytes = (count) => `${count.toLocaleString("en")} B`;
const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);
const percent = (share) => `${(100 * share).toFixed(3)}%`;

function made(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function html(tag, attributes, ...children) {
  return made(document.createElement(tag), attributes, children);
}

function svg(tag, attributes, ...children) {
  return made(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function button(words, act, attributes = {}) {
  const pressed = html("button", { type: "button", ...attributes }, words);
  pressed.addEventListener("click", act);
  return pressed;
}

/* Entries of a legend: a swatch, described by its class or its color, and what it stands for. */
function legend(entries) {
  const said = entries.map(([swatch, words]) => {
    const shown = swatch.startsWith("#") ? { style: `background:${swatch}` } : { class: swatch };
    return html("span", {}, html("i", shown), words);
  });
  return html("p", { class: "course-legend" }, ...said);
}

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

/* ---- explorer: choose, and see the case that belongs to it --------------------------------------

   A record comes from the build (docs/_ext/course/explorers): its choices, and a case for every
   combination of them. An explorer looks the case up and lets a drawing show it. DRAWINGS says
   which drawing a record asks for. A drawing takes the record, the case and what is chosen, and
   returns the nodes to show and the sentence that says the same. */

const DRAWINGS = {
  memory: drawMemory,
  mesh: drawMesh,
  plan: drawPlan,
  schedule: drawSchedule,
  traffic: drawTraffic,
};

class Explorer {
  constructor(box, record) {
    this.box = box;
    this.record = record;
    const all = [...document.querySelectorAll(".course-explorer")];
    this.name = `course-explorer-${all.indexOf(box)}`;
    this.chosen = Object.fromEntries(this.record.choices.map(({ name, chosen }) => [name, chosen]));
    this.stage = box.querySelector(".course-stage");
    this.stage.setAttribute("role", "group");
    this.stage.setAttribute("aria-label", this.record.title);
    box.querySelector(".course-numbers").open = false;
    this.build();
    this.choose();
  }

  /* The values of the choices, but for those that only change how a case is shown. */
  get key() {
    const asked = this.record.choices.filter((choice) => !choice.view);
    return asked.map((choice) => this.chosen[choice.name]).join(" ");
  }

  get case() {
    return this.record.cases[this.key];
  }

  build() {
    this.picture = html("div", { class: "course-drawing" });
    this.status = html("p", { class: "course-result", role: "status" });
    this.stage.append(this.choosers(), this.picture, this.status);
  }

  choosers() {
    const groups = this.record.choices.map((choice) => this.chooser(choice));
    return html("div", { class: "course-choosers" }, ...groups);
  }

  chooser({ name, label, options }) {
    const group = html("fieldset", { class: "course-chooser" }, html("legend", {}, label));
    for (const [value, words] of options) {
      const choice = html("input", { type: "radio", name: `${this.name}-${name}`, value });
      choice.checked = value === this.chosen[name];
      choice.addEventListener("change", () => {
        this.chosen[name] = value;
        this.choose();
      });
      group.append(html("label", {}, choice, words));
    }
    return group;
  }

  /* After every choice: the tables of other cases are put away, and the case is shown. */
  choose() {
    this.box.querySelectorAll("[data-case]").forEach((table) => {
      table.hidden = table.dataset.case !== this.key;
    });
    this.show();
  }

  show() {
    const { nodes, says } = DRAWINGS[this.record.draw](this.record, this.case, this.chosen);
    this.picture.replaceChildren(...nodes);
    this.status.textContent = says;
  }
}

/* ---- copies: who sends to whom, in words ------------------------------------------------------ */

const gpuOf = (device) => (device === "cpu" ? -1 : Number(device.split(":")[1]));
const nameOf = (place) =>
  place === "cpu" ? "CPU" : place.startsWith("cuda:") ? `GPU ${gpuOf(place)}` : place;

/* The sentence a screen reader hears for one side of a movement. */
function spoken(title, frame) {
  const copies = frame.copies.map(
    (copy) => `${nameOf(copy.source)} to ${nameOf(copy.target)}, ${bytes(copy.bytes)}`,
  );
  return `${title}: ${frame.says} ${copies.length ? `${copies.join("; ")}.` : ""}`;
}

/* ---- stepper: an explorer whose cases are films ------------------------------------------------

   A case has one list of frames for each side (by hand, nn.DataParallel). A frame has a label,
   what is said and typed, and the copies under way. */

const EVERY = 3500; // milliseconds of a frame that plays

/* A frame that the build has drawn already; it brings its own legend. */
function drawnFrame(frame) {
  const picture = html("div", { class: "course-film" });
  picture.innerHTML = frame.svg;
  return picture;
}

class Stepper extends Explorer {
  get last() {
    return this.frames.length - 1;
  }

  /* Of the first side; the others have as many. */
  get frames() {
    return Object.values(this.case)[0];
  }

  build() {
    this.index = this.record.opens ?? 1; // 1: the first picture shows what the pictures are about
    this.timer = null;
    this.sides = Object.fromEntries(
      Object.entries(this.record.sides).map(([side, about]) => [side, this.buildSide(about)]),
    );
    const sections = Object.values(this.sides).map((side) => side.section);
    this.list = html("ol", { class: "course-movements" });
    this.status = html("p", { class: "course-heard", role: "status" });
    this.stage.append(
      this.choosers(),
      this.list,
      html("div", { class: "course-sides" }, ...sections),
      this.buttons(),
      ...(this.record.draw === "device lanes" ? [legend(ON_THEIR_WAY)] : []),
      this.status,
    );
    this.stage.tabIndex = 0; // a click on the drawing, or Tab, and the keys work
    this.stage.addEventListener("keydown", (event) => this.press(event));
    this.listenToSwipes();
  }

  buildSide({ title, habit }) {
    const parts = {
      picture: html("div", { class: "course-drawing" }),
      code: html("code", {}),
      says: html("p", { class: "course-says" }),
      total: html("span", { class: "course-total" }),
    };
    parts.section = html(
      "section",
      { "aria-label": title },
      html("div", { class: "course-side" }, html("strong", {}, title), parts.total),
      html("p", { class: "course-habit" }, habit),
      parts.picture,
      html("p", { class: "course-line" }, parts.code),
      parts.says,
    );
    return parts;
  }

  /* One button per step; how many there are may depend on the number of GPUs or ranks. */
  buildChips() {
    this.chips = this.frames.map((frame, index) => button(frame.label, () => this.go(index)));
    this.list.replaceChildren(...this.chips.map((chip) => html("li", {}, chip)));
  }

  buttons() {
    this.back = button("← Back", () => this.go(this.index - 1));
    this.play = button("Play", () => this.toggle());
    this.next = button("Next →", () => this.go(this.index + 1));
    this.count = html("span", { class: "course-count" });
    const keys = html("span", { class: "course-keys" }, "keys: ← → Home End, space plays");
    const all = [this.back, this.play, this.next, this.count, keys];
    return html("div", { class: "course-buttons" }, ...all);
  }

  choose() {
    this.buildChips();
    super.choose();
  }

  /* The reader's own step ends the playing. */
  go(wanted) {
    this.pause();
    this.show(wanted);
  }

  show(wanted = this.index) {
    const index = Math.min(Math.max(wanted, 0), this.last);
    const forward = index > this.index;
    this.index = index;
    for (const [side, parts] of Object.entries(this.sides))
      this.showSide(parts, this.case[side], forward);
    this.markChip();
    this.back.disabled = index === 0;
    this.next.disabled = index === this.last;
    this.count.textContent = this.place;
    this.status.textContent = this.spoken();
  }

  showSide(parts, frames, forward) {
    const frame = frames[this.index];
    const lanes = this.record.draw === "device lanes";
    const picture = lanes
      ? new DeviceLanes(this.record, frames).draw(this.index)
      : drawnFrame(frame);
    const sent = sum(frames.slice(0, this.index + 1).flatMap((f) => f.copies.map((c) => c.bytes)));
    parts.picture.replaceChildren(picture);
    parts.picture.classList.toggle("course-moving", forward);
    parts.code.textContent = frame.code || "\u00a0";
    parts.says.textContent = frame.says;
    parts.total.textContent = frame.total ?? `${bytes(sent)} sent so far`;
  }

  markChip() {
    this.chips.forEach((chip, i) => {
      if (i === this.index) chip.setAttribute("aria-current", "step");
      else chip.removeAttribute("aria-current");
    });
    const chip = this.chips[this.index];
    if (this.chips.includes(document.activeElement)) chip.focus({ preventScroll: true });
    // On a phone the list of movements is a strip that scrolls.
    this.list.scrollTo({ left: chip.offsetLeft - (this.list.clientWidth - chip.offsetWidth) / 2 });
  }

  get place() {
    return `${this.index} of ${this.last}`; // the start is number 0
  }

  spoken() {
    const told = Object.entries(this.record.sides).map(([side, { title }]) =>
      spoken(title, this.case[side][this.index]),
    );
    return `${this.chips[this.index].textContent}, ${this.place}. ${told.join(" ")}`;
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
    }, EVERY);
  }

  pause() {
    clearInterval(this.timer);
    this.timer = null;
    this.play.textContent = "Play";
  }

  press(event) {
    const places = {
      ArrowRight: this.index + 1,
      ArrowLeft: this.index - 1,
      Home: 0,
      End: this.last,
    };
    const inChooser = event.target.matches("input"); // there, arrow keys choose the number of GPUs
    if (event.key in places && !inChooser) this.go(places[event.key]);
    else if (event.key === " " && !event.target.matches("button, input")) this.toggle();
    else return;
    event.preventDefault();
  }

  listenToSwipes() {
    let start = null;
    const noted = (event) => {
      start = event.touches[0];
    };
    this.stage.addEventListener("touchstart", noted, { passive: true });
    this.stage.addEventListener("touchend", (event) => {
      const end = event.changedTouches[0];
      const [x, y] = [end.clientX - start.clientX, end.clientY - start.clientY];
      if (Math.abs(x) < 40 || Math.abs(x) < 2 * Math.abs(y)) return;
      this.go(this.index + (x < 0 ? 1 : -1));
    });
  }
}

const ON_THEIR_WAY = [
  ["course-solid", "solid: compute"],
  ["course-striped", "striped: bytes on their way, thicker means more"],
];

/* ---- device lanes: one side of a step of data parallelism ---------------------------------------

   The frames of other steppers are drawn by the build. Here there are 60, on the lesson's page and on
   the landing page: drawn they would add 400 to 500 KB to each, and their data is 22 KB. */

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

/* One side of the stepper: lanes for the devices, columns for what travels. */
class DeviceLanes {
  constructor(record, frames) {
    this.record = record;
    this.frames = frames;
    this.gpus = frames[0].holds.length;
    this.chunks = this.frames[1].holds.map((held) => held.rows);
    this.most = Math.max(...this.frames.flatMap((frame) => frame.copies.map((copy) => copy.bytes)));
  }

  color(gpu) {
    return gpu < 0 ? this.record.host : this.record.colors[gpu];
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
    frame.copies.forEach((copy) => picture.append(this.arrow(copy)));
    picture.append(...this.work(frame));
    return picture;
  }

  lane(gpu) {
    const y = this.laneOf(gpu),
      color = this.color(gpu);
    return svg(
      "g",
      {},
      svg("rect", { x: 0.5, y: y + 1, width: WIDTH - 1, height: LANE - 4, rx: 7, class: "lane" }),
      svg("rect", { x: 0.5, y: y + 1, width: 5, height: LANE - 4, rx: 2.5, fill: color }),
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

  /* Rows and their outputs, five to a line, each in the color of the GPU it belongs to. */
  squares(gpu, column, count, first, style) {
    const group = svg("g", { class: style });
    const ends = this.chunks.map((_, i) => sum(this.chunks.slice(0, i + 1)));
    for (let i = 0; i < count; i += 1) {
      const owner = ends.findIndex((end) => first + i < end);
      const x = this.columnOf(column) + 5 + (i % 5) * 8;
      const y = this.laneOf(gpu) + 8 + Math.floor(i / 5) * 8;
      const size = { width: 6.5, height: column === "rows" ? 6.5 : 4, rx: 1.5 };
      group.append(svg("rect", { x, y, ...size, fill: this.color(owner), class: "item" }));
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
          ...(typeof part === "number" && { fill: this.color(part) }),
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
  arrow(copy) {
    const [from, to] = [gpuOf(copy.source), gpuOf(copy.target)];
    const far = Math.max(from, to);
    const x = this.columnOf(copy.column);
    const start = x + 46,
      track = x + 52 + Math.max(far, 0) * 3.8;
    const shift = from < to ? 3 : -3;
    const [y1, y2] = [this.laneOf(from) + 16 + shift, this.laneOf(to) + 16 - shift];
    const path = `M${start} ${y1}H${track}V${y2}H${start + 5}`;
    const width = 2 + 1.6 * (copy.bytes / this.most),
      color = this.color(from);
    return svg(
      "g",
      { class: "copy" },
      svg("path", { d: path, stroke: color, "stroke-width": width, class: "track" }),
      svg("path", { d: path, stroke: color, "stroke-width": width, class: "stripes" }),
      svg("path", { d: `M${start - 1} ${y2}l6.5 -4v8z`, fill: color }),
      svg("rect", {
        x: -4,
        y: -4,
        width: 8,
        height: 8,
        rx: 2,
        fill: color,
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
          svg("rect", { x, y, width, height: 14, rx: 4, fill: this.color(gpu) }),
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

/* ---- bars: bytes in parts, against a limit or against each other ----------------------------- */

const LIMIT_AT = 0.68; // of the width, unless a bar needs more: what does not fit goes beyond it

/* One bar. `parts` are [share of the width, fill, ink, name]. */
function bar({ label, amount, parts, limit, style = "" }) {
  let from = 0;
  const blocks = parts.map(([share, fill, ink, name]) => {
    const place = `left:${percent(from)};width:${percent(share)}`;
    const style = `${place};background-color:${fill};color:${ink}`;
    from += share;
    return html("span", { class: "course-part", style }, html("span", {}, name));
  });
  const track = html("div", { class: "course-bar" }, ...blocks);
  if (limit) {
    track.prepend(html("span", { class: "course-room", style: `width:${percent(limit)}` }));
    track.append(html("span", { class: "course-limit", style: `left:${percent(limit)}` }));
  }
  const words = html("div", { class: "course-side" }, html("strong", {}, label), amount);
  return html("div", { class: `course-row ${style}` }, words, track);
}

/* A bar for each stage of ZeRO, the chosen one in its GPU's color. */
function drawMemory(record, stages, chosen) {
  const limit = 1e9 * Number(chosen.limit);
  const totals = stages.map(({ parts }) => sum(Object.values(parts)));
  const full = Math.max(limit / LIMIT_AT, ...totals);
  const rows = stages.map(({ label, parts, amount }, stage) => {
    const mine = label === chosen.stage;
    const shades = record.shades[mine ? "chosen" : "other"];
    const fits = totals[stage] <= limit;
    const words = `${amount} ${fits ? "✓ fits" : "✗ too much"}`;
    const blocks = Object.entries(parts).map(([name, count], i) => [
      count / full,
      ...shades[i],
      name,
    ]);
    return bar({
      label,
      amount: html("span", { class: fits ? "course-fits" : "course-over" }, words),
      limit: limit / full,
      style: mine ? "course-chosen" : "",
      parts: blocks,
    });
  });
  const stage = stages.findIndex(({ label }) => label === chosen.stage);
  const { says, parts } = stages[stage];
  const room = limit - totals[stage];
  const left = `${(room / 1e9).toFixed(1)} GB are left for activations`;
  const names = Object.keys(parts).map((name, i) => [record.shades.chosen[i][0], name]);
  const key = legend([...names, ["course-limit", `the limit, ${chosen.limit} GB`]]);
  return {
    nodes: [html("div", { class: "course-bars", "aria-hidden": "true" }, ...rows, key)],
    says: `${says} ${room < 0 ? "That is too much" : left}: the GPU has ${chosen.limit} GB.`,
  };
}

/* ---- plan: what a layout holds and what its step takes, a bar each ---------------------------- */

const MESSAGES = ["tensor", "pipeline", "data"]; // parts of a step that are striped

function drawPlan(record, planned, chosen) {
  const { gpus, tp, pp } = chosen;
  if (!planned) {
    return { nodes: [], says: `${gpus} GPUs cannot be divided by tp ${tp} · pp ${pp}.` };
  }
  const [memory, seconds, tokens, mfu, fits] = planned;
  const limit = record.limits[chosen.cluster];
  const held = sum(memory);
  const full = Math.max(limit / LIMIT_AT, held);
  const step = sum(seconds);
  const blocks = (names, sizes, all) =>
    names.map((name, i) => [sizes[i] / all, ...record.shades[i], name]);
  const numbers = (names, sizes, unit) =>
    names.map((name, i) => `${name} ${sizes[i].toFixed(unit === "s" ? 2 : 1)} ${unit}`);
  const swatches = (words) => legend(words.map((each, i) => [record.shades[i][0], each]));
  const uses = numbers(record.memory, memory, "GiB");
  const parts = numbers(record.parts, seconds, "s");
  const verdict = fits ? "✓ fits" : "✗ too much";
  const amount = html("span", { class: fits ? "course-fits" : "course-over" },
    `${held.toFixed(1)} GiB ${verdict}`);
  const time = bar({
    label: "Step", amount: `${step.toFixed(2)} s`, style: "course-chosen",
    parts: blocks(record.parts, seconds, step),
  });
  time.querySelectorAll(".course-part").forEach((part, i) => {
    part.classList.toggle("course-message", MESSAGES.includes(record.parts[i]));
  });
  const rows = [
    bar({
      label: "Memory of a GPU", amount, limit: limit / full, style: "course-chosen",
      parts: blocks(record.memory, memory, full),
    }),
    swatches(uses),
    time,
    swatches(parts),
  ];
  return {
    nodes: [html("div", { class: "course-bars", "aria-hidden": "true" }, ...rows)],
    says: `dp ${gpus / tp / pp}, tp ${tp}, pp ${pp}: ${held.toFixed(1)} GiB ` +
      `${fits ? "fits into" : "is too much for"} ${limit} GiB (${uses.join(", ")}). ` +
      `A step takes ${step.toFixed(2)} s (${parts.join(", ")}): ` +
      `${tokens.toLocaleString("en")} tokens/s per GPU, MFU ${mfu} %.`,
  };
}

/* ---- mesh: ranks on their machines, and which of them are a group ----------------------------- */

/* A group has the color of its first rank, and a letter. */
function drawMesh(record, directions, chosen) {
  const { ranks, tp, pp, shown } = chosen;
  if (!directions) {
    return { nodes: [], says: `${ranks} ranks cannot be divided by tp ${tp} · pp ${pp}.` };
  }
  const { groups, says } = directions[shown];
  const cells = [];
  groups.forEach((group, i) => {
    const [fill, ink] = record.inks[group[0] % record.inks.length];
    const letter = group.length > 1 ? String.fromCharCode(65 + i) : "";
    for (const rank of group) {
      const style = letter ? `background:${fill};color:${ink}` : "";
      cells[rank] = html("span", { style }, `${rank}`, html("b", {}, letter));
    }
  });
  const machines = [];
  for (let first = 0; first < cells.length; first += record.node) {
    const name = html("strong", {}, `Machine ${first / record.node}`);
    machines.push(html("div", {}, name, ...cells.slice(first, first + record.node)));
  }
  return {
    nodes: [html("div", { class: "course-mesh", "aria-hidden": "true" }, ...machines)],
    says,
  };
}

/* ---- schedule: a lane for each rank of a pipeline, a block for each micro-batch -------------- */

const KINDS = { f: "forward", b: "backward" };

function drawSchedule(record, shown, chosen) {
  const [ranks, total] = [Number(chosen.ranks), shown.time];
  const lanes = Array.from({ length: ranks }, (_, rank) => {
    const own = shown.steps.filter((step) => step[0] === rank);
    const blocks = own.map((step) => block(step, shown, record.inks[rank], ranks));
    return html(
      "div",
      { class: "course-lane" },
      html("strong", {}, `rank ${rank}`),
      html("div", { class: "course-time" }, ...blocks),
      heldBar(shown.held[rank], shown.rounds * Number(chosen.micro_batches), record.inks[rank]),
    );
  });
  const marks = [0, 1, 2, 3].map((third) => html("span", {}, `${(third * total) / 3}`));
  const head = html(
    "div",
    { class: "course-lane course-head" },
    html("span", {}),
    html("div", { class: "course-marks" }, ...marks),
    html("span", {}, "in flight"),
  );
  const key = legend([
    ["course-pale", "forward"],
    ["course-solid", "backward"],
    ["course-empty", "empty: bubble"],
  ]);
  return {
    nodes: [...answering(html("div", { class: "course-lanes" }, ...lanes, head)), key],
    says: shown.says,
  };
}

function block([rank, kind, microBatch, stage, start], { time, costs }, inks, ranks) {
  const long = costs[kind === "f" ? 0 : 1];
  const [fill, ink] = inks[kind];
  const thin = long / time < 0.012 ? "course-thin" : "";
  const place = `left:${percent(start / time)};width:${percent(long / time)}`;
  const who = stage === rank ? `rank ${rank}` : `rank ${rank}, stage ${stage}`;
  const when = `from ${start} to ${start + long}`;
  const label = `${microBatch}${"′".repeat(Math.floor(stage / ranks))}`;
  return html(
    "span",
    {
      class: `course-block ${thin}`,
      style: `${place};--fill:${fill};--rim:${inks.b[0]};color:${ink}`,
      "data-lane": `rank ${rank}`,
      "data-start": start,
      "data-of": `micro-batch ${microBatch}`,
      "data-says": `${who}: ${KINDS[kind]} of micro-batch ${microBatch}, ${when}`,
    },
    html("span", label.length > 1 ? { class: "course-long" } : {}, label),
  );
}

/* What a rank holds at most, as a bar filled against the whole batch. */
function heldBar(count, all, inks) {
  const fill = `width:${percent(count / all)};background-color:${inks.b[0]}`;
  return html(
    "span",
    { class: "course-held" },
    html("span", { class: "course-tank" }, html("span", { style: fill })),
    `${count} of ${all}`,
  );
}

/* ---- a model server and a ring: who sends to whom, and how much each has to carry ------------ */

const MIDDLE = 100; // of a drawing that is 200 wide and high
const ROUND = 78;

function drawTraffic(record, { gpus, busiest, total, written, says }) {
  const inks = (rank) => record.colors[rank % record.colors.length]; // of a rank: fill and ink
  const grain = Math.min((0.42 * Math.PI * ROUND) / gpus, 34 / Math.sqrt(2 * gpus), 9);
  const size = (amount) => grain * Math.sqrt(amount); // of a node that carries so many times W
  const ring = (2 * (gpus - 1)) / gpus; // times W: out of each rank, and into it
  const grade = Math.min(2, 48 / gpus); // width of a link that carries W
  const center = [MIDDLE, MIDDLE];
  const nets = [
    net("Model server (rank 0)", [
      ...around(gpus).map((place, i) => stripe(straight(place, center), inks(i + 1), 2 * grade)),
      ...around(gpus).map((place, i) => node(place, size(2), inks(i + 1), i + 1)),
      node(center, size(2 * gpus), inks(0), 0),
    ]),
    net("Ring", [
      ...around(gpus).map((place, i, all) =>
        stripe(bent(place, all[(i + 1) % gpus]), inks(i), ring * grade),
      ),
      ...around(gpus).map((place, i) => node(place, size(2 * ring), inks(i), i)),
    ]),
  ];
  return {
    nodes: [
      html("div", { class: "course-nets", "aria-hidden": "true" }, ...nets),
      html(
        "div",
        { class: "course-bars course-pairs", "aria-hidden": "true" },
        pair("Busiest rank, in and out", busiest, written.busiest, inks(0)[0]),
        pair("In all", total, written.total, record.host),
      ),
      legend([
        ["course-striped", "bytes on their way, thicker means more"],
        ["course-dot", "a rank: its area is what goes in and out"],
      ]),
    ],
    says,
  };
}

/* Places on a circle, the first at the top. */
function around(count) {
  return Array.from({ length: count }, (_, i) => {
    const angle = (2 * Math.PI * i) / count - Math.PI / 2;
    return [MIDDLE + ROUND * Math.cos(angle), MIDDLE + ROUND * Math.sin(angle)];
  });
}

function net(title, shapes) {
  const drawn = svg("svg", { viewBox: "0 0 200 200" }, ...shapes);
  return html("figure", {}, drawn, html("figcaption", {}, title));
}

/* A rank, with its number where there is room for it. */
function node([cx, cy], r, [fill, ink], rank) {
  const shapes = [svg("circle", { cx, cy, r, fill, class: "item" })];
  if (r > 6.5) shapes.push(svg("text", { x: cx, y: cy, style: `fill:${ink}` }, `${rank}`));
  return svg("g", {}, ...shapes);
}

const straight = ([x1, y1], [x2, y2]) => `M${x1} ${y1}L${x2} ${y2}`;
const bent = ([x1, y1], [x2, y2]) => `M${x1} ${y1}A${ROUND} ${ROUND} 0 0 1 ${x2} ${y2}`;

/* Bytes on their way. */
function stripe(d, [stroke], width) {
  const line = { d, stroke, "stroke-width": width };
  return svg(
    "g",
    {},
    svg("path", { ...line, class: "track" }),
    svg("path", { ...line, class: "stripes" }),
  );
}

/* The server's bytes above the ring's, on one scale. */
function pair(title, counts, written, fill) {
  const most = Math.max(...Object.values(counts));
  const rows = Object.entries(counts).map(([name, count]) =>
    bar({
      label: name === "server" ? "model server" : name,
      amount: written[name],
      parts: [[count / most, fill, "inherit", ""]],
      style: "course-flow",
    }),
  );
  return html("div", {}, html("p", { class: "course-lead" }, title), ...rows);
}

/* ---- moments: a timeline answers to the pointer, to a finger and to arrow keys ------------------

   Its parts come from the package, or from the drawing of a schedule, with their place in time:
   data-lane and data-start, and data-of for what belongs together. What is said of them stands in
   their <title>, or in data-says. */

class Moments {
  constructor(picture) {
    this.picture = picture;
    this.parts = [...picture.querySelectorAll("[data-lane]")];
    this.lanes = new Map(this.parts.map((part) => [part.dataset.lane, []]));
    this.parts.forEach((part) => this.lanes.get(part.dataset.lane).push(part));
    this.lanes.forEach((lane) => lane.sort((one, other) => startOf(one) - startOf(other)));
    this.here = null;
    this.build();
    this.listen();
  }

  build() {
    this.said = html("p", { role: "status" }, "Point at a bar, tap it, or use the arrow keys.");
    this.reading = html(
      "div",
      { class: "course-reading" },
      button("‹", () => this.step(-1), { "aria-label": "The bar before" }),
      button("›", () => this.step(1), { "aria-label": "The next bar" }),
      this.said,
    );
    this.picture.classList.add("course-moments");
    this.picture.tabIndex = 0;
    this.picture.setAttribute("role", "group");
    this.picture.setAttribute("aria-label", "Timeline. Arrow keys go from bar to bar.");
  }

  listen() {
    this.picture.addEventListener("keydown", (event) => this.press(event));
    this.picture.addEventListener("pointermove", (event) => {
      const part = event.target.closest("[data-lane]");
      if (part) this.read(part);
    });
    this.picture.addEventListener("click", (event) => this.read(this.nearest(event)));
    this.picture.addEventListener("pointerleave", (event) => {
      if (event.pointerType === "mouse") this.mark(null);
    });
    this.picture.addEventListener("blur", () => this.mark(null));
  }

  /* A finger is wider than many a bar. */
  nearest({ clientX, clientY }) {
    const far = (part) => {
      const { left, right, top, bottom } = part.getBoundingClientRect();
      const aside = Math.max(left - clientX, 0, clientX - right);
      return aside + 3 * Math.max(top - clientY, 0, clientY - bottom); // rather in the same lane
    };
    return this.parts.reduce((best, part) => (far(part) < far(best) ? part : best));
  }

  press(event) {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const lane = this.here ? this.lanes.get(this.here.dataset.lane) : [...this.lanes.values()][0];
    const moves = {
      ArrowRight: () => this.step(1),
      ArrowLeft: () => this.step(-1),
      ArrowDown: () => this.cross(1),
      ArrowUp: () => this.cross(-1),
      Home: () => this.read(lane[0]),
      End: () => this.read(lane.at(-1)),
      Escape: () => this.mark(null),
    };
    if (!(event.key in moves)) return;
    moves[event.key]();
    event.preventDefault();
    event.stopPropagation();
  }

  /* On or back in the same lane. */
  step(by) {
    const lane = this.here ? this.lanes.get(this.here.dataset.lane) : [...this.lanes.values()][0];
    const place = this.here ? lane.indexOf(this.here) + by : 0;
    this.read(lane[Math.min(Math.max(place, 0), lane.length - 1)]);
  }

  /* To what another lane has nearest to this moment; first of all, what belongs to this one. */
  cross(by) {
    if (!this.here) return this.step(0);
    const names = [...this.lanes.keys()];
    const name = names[names.indexOf(this.here.dataset.lane) + by];
    if (name === undefined) return;
    const far = (part) =>
      Math.abs(startOf(part) - startOf(this.here)) / (this.belongs(part) ? 1e6 : 1);
    this.read(this.lanes.get(name).reduce((best, part) => (far(part) < far(best) ? part : best)));
  }

  belongs(part) {
    const { of } = part.dataset;
    return of !== undefined && of === this.here?.dataset.of;
  }

  read(part) {
    if (part === this.here && part.classList.contains("course-here")) return;
    this.mark(part);
    this.said.textContent = part.dataset.says ?? part.querySelector("title").textContent;
  }

  /* The part stands out, and a little less what belongs to it; null takes the marks away. */
  mark(part) {
    this.here = part ?? this.here;
    this.picture.classList.toggle("course-marked", part !== null);
    this.parts.forEach((each) => {
      each.classList.toggle("course-here", each === part);
      each.classList.toggle("course-too", part !== null && each !== part && this.belongs(each));
    });
  }
}

const startOf = (part) => Number(part.dataset.start);

/* A picture with moments, and the line below it that reads them. */
function answering(picture) {
  return [picture, new Moments(picture).reading];
}

function makeAnswering(drawn) {
  const whole = html("div", { class: "course-answering" });
  drawn.replaceWith(whole);
  whole.append(...answering(html("div", {}, drawn)));
}

/* ---- words of the glossary: what a word means, on hover, on focus, on a tap ----------------------

   The definition stands in the page, hidden, and describes its link to a screen reader too. The card
   stays while the pointer is on the word or on the card; Escape closes it. A tap opens it, and the
   card then leads on to the glossary. */

function explainWords(words) {
  if (!words.length || !("popover" in HTMLElement.prototype)) return; // the links remain
  const card = html("div", { class: "course-card", popover: "manual" });
  document.querySelector("article").append(card);
  let shown = null;
  let touched = false;
  let timer = null;

  const about = (word) => document.getElementById(`about-${word.hash.slice(1)}`);
  const soon = (milliseconds, action) => {
    clearTimeout(timer);
    timer = setTimeout(action, milliseconds);
  };
  const open = (word) => {
    clearTimeout(timer);
    if (word === shown) return;
    const more = html("a", { href: word.href, tabindex: "-1" }, "In the glossary");
    card.replaceChildren(...about(word).cloneNode(true).children, html("p", {}, more));
    card.showPopover();
    placeBeside(card, word);
    shown = word;
  };
  const close = () => {
    clearTimeout(timer);
    card.hidePopover();
    shown = null;
  };

  words.forEach((word) => {
    if (!about(word)) return;
    word.setAttribute("aria-describedby", about(word).id);
    word.addEventListener("pointerdown", (event) => {
      touched = event.pointerType !== "mouse";
    });
    word.addEventListener("click", (event) => {
      if (touched) event.preventDefault();
      if (touched) word === shown ? close() : open(word);
    });
    word.addEventListener("pointerenter", (event) => {
      if (event.pointerType === "mouse") soon(120, () => open(word));
    });
    word.addEventListener("pointerleave", (event) => {
      if (event.pointerType === "mouse") soon(300, close);
    });
    word.addEventListener("focus", () => word.matches(":focus-visible") && open(word));
    word.addEventListener("blur", () => card.matches(":hover") || soon(100, close));
  });
  card.addEventListener("pointerenter", () => clearTimeout(timer));
  card.addEventListener("pointerleave", (event) => {
    if (event.pointerType === "mouse") soon(300, close);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && shown) close();
  });
  document.addEventListener("pointerdown", (event) => {
    if (shown && !card.contains(event.target) && !shown.contains(event.target)) close();
  });
}

/* Below the word, or above it where there is more room; never beyond the screen's edges. */
function placeBeside(card, word) {
  const line = word.getClientRects()[0];
  const room = document.documentElement.clientWidth - card.offsetWidth - 12;
  const above = line.bottom + card.offsetHeight + 12 > innerHeight && line.top > innerHeight / 2;
  const top = above ? line.top - card.offsetHeight - 6 : line.bottom + 6;
  card.style.left = `${scrollX + Math.max(12, Math.min(line.left - 12, room))}px`;
  card.style.top = `${scrollY + top}px`;
}

/* ---- messages of the checker: find one by its id or by a word of it ----------------------------- */

function offerToFind(section) {
  const entries = [...section.querySelectorAll("dt")].map((term) => {
    const words = `${term.textContent} ${term.nextElementSibling.textContent}`.toLowerCase();
    return { term, words };
  });
  const chapters = section.querySelector(".course-chapters");
  const field = html("input", { type: "search", id: "course-find", autocomplete: "off" });
  const count = html("span", { role: "status" });
  const label = html("label", { for: "course-find" }, "Find a message, by its id or a word of it");
  section.querySelector("p").after(html("div", { class: "course-find" }, label, field, count));

  const choose = () => {
    const wanted = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    let found = 0;
    entries.forEach(({ term, words }) => {
      const fits = wanted.every((word) => words.includes(word));
      term.hidden = term.nextElementSibling.hidden = !fits;
      found += fits;
    });
    section.querySelectorAll("section").forEach((part) => {
      part.hidden = !part.querySelector("dt:not([hidden])");
    });
    chapters.hidden = wanted.length > 0;  // what fits follows the field at once
    count.textContent = wanted.length ? `${found} of ${entries.length}` : "";
  };
  field.addEventListener("input", choose);
  addEventListener("hashchange", () => {  // a link leads to an entry that is filtered out
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!section.contains(target) || target.checkVisibility()) return;
    field.value = "";
    choose();
    target.scrollIntoView();
  });
}

/* ---- search: a lesson before its notebook, what is read before what is looked up ----------------- */

function orderSearch() {
  if (typeof Scorer === "undefined") return;
  const later = { troubleshooting: 0.2, exercises: 0.5, _notebooks: 1, reference: 4, 404: 99 };
  const exact = Scorer.objNameMatch + Scorer.objPrio[1];
  Scorer.score = ([page, , , about, score]) => {
    const partOfAnId = about?.startsWith("message of the checker") && score < exact;
    return score - (later[page.split("/")[0]] ?? 0) - (partOfAnId ? exact : 0);
  };
}

/* ---- paper is white ------------------------------------------------------------------------------ */

function printInLight() {
  const page = document.documentElement;
  let theme;
  addEventListener("beforeprint", () => {
    theme = page.dataset.theme;
    page.dataset.theme = "light";
  });
  addEventListener("afterprint", () => {
    page.dataset.theme = theme;
  });
}

/* ---- own place: the page for an address that leads nowhere ------------------------------------ */

/* It names the site's place in a <base>, from which "#main-content" would lead to the home page. */
function stayOnPage() {
  const here = location.href.split("#")[0];
  document.querySelectorAll('a[href^="#"]').forEach((link) => {
    link.href = here + link.getAttribute("href");
  });
}

/* ---- start ----------------------------------------------------------------------------------- */

document.querySelectorAll("[data-quiz]").forEach(makeQuiz);
document.querySelectorAll(".course-explorer").forEach((box) => {
  const record = JSON.parse(box.querySelector("script").textContent);
  const steps = box.classList.contains("course-stepper");
  return steps ? new Stepper(box, record) : new Explorer(box, record);
});
document.querySelectorAll("svg.multigpu-picture:has([data-lane])").forEach(makeAnswering);
document.querySelectorAll(".course-open").forEach(offerNotebook);
document.querySelectorAll(".course-messages").forEach(offerToFind);
explainWords(document.querySelectorAll("a.course-word"));
orderSearch();
printInLight();
if (document.querySelector("base")) stayOnPage();
