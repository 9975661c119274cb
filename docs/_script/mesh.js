/* ---- mesh: ranks on their machines, and which of them are a group ----------------------------- */

/* A group has the color of its first rank, and a letter. */
function drawMesh(record, directions, chosen) {
  const { ranks, tp, pp, shown } = chosen;
  if (!directions) {
    return { nodes: [], says: `${ranks} ranks cannot be divided by tp ${tp} · pp ${pp}.` };
  }
  const { groups, says } = directions[shown];
  const cells = [];
  groups.forEach((group, i) => {
    const [fill, ink] = record.inks[group[0] % record.inks.length];
    const letter = group.length > 1 ? String.fromCharCode(65 + i) : "";
    for (const rank of group) {
      const style = letter ? `background:${fill};color:${ink}` : "";
      cells[rank] = html("span", { style }, `${rank}`, html("b", {}, letter));
    }
  });
  const machines = [];
  for (let first = 0; first < cells.length; first += record.node) {
    const name = html("strong", {}, `Machine ${first / record.node}`);
    machines.push(html("div", {}, name, ...cells.slice(first, first + record.node)));
  }
  return {
    nodes: [html("div", { class: "course-mesh", "aria-hidden": "true" }, ...machines)],
    says,
  };
}
