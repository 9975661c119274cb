/* ---- bars: bytes in parts, against a limit or against each other ------------------------------- */

const LIMIT_AT = 0.68; // of the width: what does not fit is seen to go on beyond it

const gigabytes = (count) =>
  count >= 1e8
    ? `${(count / 1e9).toLocaleString("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 })} GB`
    : `${(count / 1e6).toFixed(1)} MB`;

/* One bar. `parts` are [share of the width, fill, ink, name]; what is beyond the width is cut. */
function bar({ label, amount, parts, limit, style = "" }) {
  let from = 0;
  const blocks = parts.map(([share, fill, ink, name]) => {
    const place = `left:${percent(from)};width:${percent(share)};background-color:${fill};color:${ink}`;
    from += share;
    return html("span", { class: "course-part", style: place }, html("span", {}, name));
  });
  const track = html("div", { class: `course-bar ${from > 1 ? "course-cut" : ""}` }, ...blocks);
  if (limit) {
    track.prepend(html("span", { class: "course-room", style: `width:${percent(limit)}` }));
    track.append(html("span", { class: "course-limit", style: `left:${percent(limit)}` }));
  }
  const words = html("div", { class: "course-side" }, html("strong", {}, label), amount);
  return html("div", { class: `course-row ${style}` }, words, track);
}

/* A bar for each stage of ZeRO, the chosen one in its GPU's colour. */
function drawMemory(record, stages, chosen) {
  const limit = 1e9 * Number(chosen.limit);
  const rows = stages.map(({ label, parts }) => {
    const mine = label === chosen.stage;
    const shades = record.shades[mine ? "chosen" : "other"];
    const total = sum(Object.values(parts));
    const verdict = html("span", { class: total > limit ? "course-over" : "course-fits" });
    verdict.append(`${gigabytes(total)} ${total > limit ? "✗ too much" : "✓ fits"}`);
    return bar({
      label,
      amount: verdict,
      limit: LIMIT_AT,
      style: mine ? "course-chosen" : "",
      parts: Object.entries(parts).map(([name, count], i) => [
        (count / limit) * LIMIT_AT,
        ...shades[i],
        name,
      ]),
    });
  });
  const { says, parts } = stages.find(({ label }) => label === chosen.stage);
  const room = limit - sum(Object.values(parts));
  const rest = room < 0 ? "That is too much" : `${gigabytes(room)} are left for activations`;
  const names = Object.keys(parts).map((name, i) => [record.shades.chosen[i][0], name]);
  const key = legend([...names, ["course-limit", `the limit, ${chosen.limit} GB`]]);
  return {
    nodes: [html("div", { class: "course-bars", "aria-hidden": "true" }, ...rows, key)],
    says: `${says} ${rest}: the GPU has ${chosen.limit} GB.`,
  };
}
