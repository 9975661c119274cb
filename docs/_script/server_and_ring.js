/* ---- a model server and a ring: who sends to whom, and how much each has to carry --------------- */

const MIDDLE = 100; // of a drawing that is 200 wide and high
const ROUND = 78;

function drawTraffic(record, { gpus, busiest, total, says }) {
  const colour = (rank) => record.colours[rank % record.colours.length];
  const grain = Math.min((0.42 * Math.PI * ROUND) / gpus, 34 / Math.sqrt(2 * gpus), 9);
  const size = (amount) => grain * Math.sqrt(amount); // of a node that carries so many times W
  const ring = (2 * (gpus - 1)) / gpus; // times W: out of each rank, and into it
  const centre = [MIDDLE, MIDDLE];
  const nets = [
    net("Model server: rank 0", [
      ...around(gpus).map((place, i) => stripe(place, centre, colour(i + 1), 2)),
      ...around(gpus).map((place, i) => node(place, size(2), colour(i + 1))),
      node(centre, size(2 * gpus), colour(0)),
    ]),
    net("Ring", [
      ...around(gpus).map((place, i, all) => stripe(place, all[(i + 1) % gpus], colour(i), ring)),
      ...around(gpus).map((place, i) => node(place, size(2 * ring), colour(i))),
    ]),
  ];
  return {
    nodes: [
      html("div", { class: "course-nets", "aria-hidden": "true" }, ...nets),
      html(
        "div",
        { class: "course-bars course-pairs", "aria-hidden": "true" },
        pair("Busiest rank, in and out", busiest, colour(0)),
        pair("In all", total, record.host),
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

function node([cx, cy], r, fill) {
  return svg("circle", { cx, cy, r, fill, class: "item" });
}

/* Bytes on their way; `amount` is how many times W. */
function stripe([x1, y1], [x2, y2], stroke, amount) {
  const line = { x1, y1, x2, y2, stroke, "stroke-width": 2 * amount };
  return svg(
    "g",
    {},
    svg("line", { ...line, class: "track" }),
    svg("line", { ...line, class: "stripes" }),
  );
}

/* The server's bytes above the ring's, on one scale. */
function pair(title, counts, fill) {
  const most = Math.max(...Object.values(counts));
  const rows = Object.entries(counts).map(([name, count]) =>
    bar({
      label: name === "server" ? "model server" : name,
      amount: amount(count),
      parts: [[count / most, fill, "inherit", ""]],
      style: "course-flow",
    }),
  );
  return html("div", {}, html("p", { class: "course-lead" }, title), ...rows);
}

function amount(count) {
  if (count < 1e6) return bytes(Math.round(count));
  const [unit, name] = count < 1e9 ? [1e6, "MB"] : [1e9, "GB"];
  return `${(count / unit).toLocaleString("en", { maximumSignificantDigits: 4 })} ${name}`;
}
