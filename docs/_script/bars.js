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
