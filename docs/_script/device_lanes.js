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
