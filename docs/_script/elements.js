/* ---- elements: how the parts below make them ------------------------------------------------- */

const bytes = (count) => `${count.toLocaleString("en")} B`;
const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);
const percent = (share) => `${(100 * share).toFixed(3)}%`;

function made(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function html(tag, attributes, ...children) {
  return made(document.createElement(tag), attributes, children);
}

function svg(tag, attributes, ...children) {
  return made(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function button(words, act, attributes = {}) {
  const pressed = html("button", { type: "button", ...attributes }, words);
  pressed.addEventListener("click", act);
  return pressed;
}

/* Entries of a legend: a swatch, described by its class or its color, and what it stands for. */
function legend(entries) {
  const said = entries.map(([swatch, words]) => {
    const shown = swatch.startsWith("#") ? { style: `background:${swatch}` } : { class: swatch };
    return html("span", {}, html("i", shown), words);
  });
  return html("p", { class: "course-legend" }, ...said);
}
