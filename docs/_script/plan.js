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
