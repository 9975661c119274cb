/* ---- copies: who sends to whom, in words ------------------------------------------------------ */

const gpuOf = (device) => (device === "cpu" ? -1 : Number(device.split(":")[1]));
const nameOf = (place) =>
  place === "cpu" ? "CPU" : place.startsWith("cuda:") ? `GPU ${gpuOf(place)}` : place;

/* The sentence a screen reader hears for one side of a movement. */
function spoken(title, frame) {
  const copies = frame.copies.map(
    (copy) => `${nameOf(copy.source)} to ${nameOf(copy.target)}, ${bytes(copy.bytes)}`,
  );
  return `${title}: ${frame.says} ${copies.length ? `${copies.join("; ")}.` : ""}`;
}
