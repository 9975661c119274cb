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
