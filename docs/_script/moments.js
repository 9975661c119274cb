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
