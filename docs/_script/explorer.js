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
