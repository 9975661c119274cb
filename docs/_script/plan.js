/* ---- plan: what a layout holds and what its step takes, a bar each ---------------------------- */

function drawPlan(record, planned, chosen) {
  if (!planned) {
    return { nodes: [], says: `${chosen.gpus} GPUs cannot be divided by tp ${chosen.tp} · pp ${chosen.pp}.` };
  }
  const [memory, seconds, tokens, mfu] = planned;
  const limit = record.limits[chosen.cluster];
  const held = sum(memory);
  const fits = held <= limit;
  const full = Math.max(limit / LIMIT_AT, held);
  const step = sum(seconds);
  const blocks = (names, sizes, all) =>
    names.map((name, i) => [sizes[i] / all, ...record.shades[i], name]);
  const swatches = (names) => legend(names.map((name, i) => [record.shades[i][0], name]));
  const dp = chosen.gpus / chosen.tp / chosen.pp;
  const fitting = fits ? `fits into ${limit}` : `is too much for ${limit}`;
  const rows = [
    bar({
      label: "Memory of a GPU",
      amount: html("span", { class: fits ? "course-fits" : "course-over" },
        `${held.toFixed(1)} GiB ${fits ? "✓ fits" : "✗ too much"}`),
      limit: limit / full,
      style: "course-chosen",
      parts: blocks(record.memory, memory, full),
    }),
    swatches(record.memory),
    bar({
      label: "Step",
      amount: `${step.toFixed(2)} s`,
      style: "course-chosen",
      parts: blocks(record.parts, seconds, step),
    }),
    swatches(record.parts),
  ];
  return {
    nodes: [html("div", { class: "course-bars", "aria-hidden": "true" }, ...rows)],
    says: `dp ${dp}, tp ${chosen.tp}, pp ${chosen.pp}: ${held.toFixed(1)} GiB ${fitting}. ` +
      `A step takes ${step.toFixed(2)} s, of which ${(step - seconds[0]).toFixed(2)} s are not ` +
      `computing; ${tokens.toLocaleString("en")} tokens/s per GPU, MFU ${mfu} %.`,
  };
}
