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
