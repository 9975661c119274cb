/* ---- messages of the checker: find one by its id or by a word of it ----------------------------- */

function offerToFind(section) {
  const entries = [...section.querySelectorAll("dt")].map((term) => {
    const words = `${term.textContent} ${term.nextElementSibling.textContent}`.toLowerCase();
    return { term, words };
  });
  const field = html("input", { type: "search", id: "course-find", autocomplete: "off" });
  const count = html("span", { role: "status" });
  const label = html("label", { for: "course-find" }, "Find a message, by its id or a word of it");
  section.querySelector("p").after(html("div", { class: "course-find" }, label, field, count));

  const choose = () => {
    const wanted = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    let found = 0;
    entries.forEach(({ term, words }) => {
      const fits = wanted.every((word) => words.includes(word));
      term.hidden = term.nextElementSibling.hidden = !fits;
      found += fits;
    });
    section.querySelectorAll("section").forEach((part) => {
      part.hidden = !part.querySelector("dt:not([hidden])");
    });
    count.textContent = wanted.length ? `${found} of ${entries.length}` : "";
  };
  field.addEventListener("input", choose);
  addEventListener("hashchange", () => {  // a link leads to an entry that is filtered out
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!section.contains(target) || target.checkVisibility()) return;
    field.value = "";
    choose();
    target.scrollIntoView();
  });
}
