/* ---- a model server and a ring: who sends to whom, and how much each has to carry ------------ */

const MIDDLE = 100; // of a drawing that is 200 wide and high
const ROUND = 78;

function drawTraffic(record, { gpus, busiest, total, written, says }) {
  const inks = (rank) => record.colors[rank % record.colors.length]; // of a rank: fill and ink
  const grain = Math.min((0.42 * Math.PI * ROUND) / gpus, 34 / Math.sqrt(2 * gpus), 9);
  const size = (amount) => grain * Math.sqrt(amount); // of a node that carries so many times W
  const ring = (2 * (gpus - 1)) / gpus; // times W: out of each rank, and into it
  const grade = Math.min(2, 48 / gpus); // width of a link that carries W
  const center = [MIDDLE, MIDDLE];
  const nets = [
    net("Model server (rank 0)", [
      ...around(gpus).map((place, i) => stripe(straight(place, center), inks(i + 1), 2 * grade)),
      ...around(gpus).map((place, i) => node(place, size(2), inks(i + 1), i + 1)),
      node(center, size(2 * gpus), inks(0), 0),
    ]),
    net("Ring", [
      ...around(gpus).map((place, i, all) =>
        stripe(bent(place, all[(i + 1) % gpus]), inks(i), ring * grade),
      ),
      ...around(gpus).map((place, i) => node(place, size(2 * ring), inks(i), i)),
    ]),
  ];
  return {
    nodes: [
      html("div", { class: "course-nets", "aria-hidden": "true" }, ...nets),
      html(
        "div",
        { class: "course-bars course-pairs", "aria-hidden": "true" },
        pair("Busiest rank, in and out", busiest, written.busiest, inks(0)[0]),
        pair("In all", total, written.total, record.host),
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

/* A rank, with its number where there is room for it. */
function node([cx, cy], r, [fill, ink], rank) {
  const shapes = [svg("circle", { cx, cy, r, fill, class: "item" })];
  if (r > 6.5) shapes.push(svg("text", { x: cx, y: cy, style: `fill:${ink}` }, `${rank}`));
  return svg("g", {}, ...shapes);
}

const straight = ([x1, y1], [x2, y2]) => `M${x1} ${y1}L${x2} ${y2}`;
const bent = ([x1, y1], [x2, y2]) => `M${x1} ${y1}A${ROUND} ${ROUND} 0 0 1 ${x2} ${y2}`;

/* Bytes on their way. */
function stripe(d, [stroke], width) {
  const line = { d, stroke, "stroke-width": width };
  return svg(
    "g",
    {},
    svg("path", { ...line, class: "track" }),
    svg("path", { ...line, class: "stripes" }),
  );
}

/* The server's bytes above the ring's, on one scale. */
function pair(title, counts, written, fill) {
  const most = Math.max(...Object.values(counts));
  const rows = Object.entries(counts).map(([name, count]) =>
    bar({
      label: name === "server" ? "model server" : name,
      amount: written[name],
      parts: [[count / most, fill, "inherit", ""]],
      style: "course-flow",
    }),
  );
  return html("div", {}, html("p", { class: "course-lead" }, title), ...rows);
}
