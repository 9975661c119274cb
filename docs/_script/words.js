/* ---- words of the glossary: what a word means, on hover, on focus, on a tap ----------------------

   The definition stands in the page, hidden, and describes its link to a screen reader too. The card
   stays while the pointer is on the word or on the card; Escape closes it. A tap opens it, and the
   card then leads on to the glossary. */

function explainWords(words) {
  if (!words.length || !("popover" in HTMLElement.prototype)) return; // the links remain
  const card = html("div", { class: "course-card", popover: "manual" });
  document.querySelector("article").append(card);
  let shown = null;
  let touched = false;
  let timer = null;

  const about = (word) => document.getElementById(`about-${word.hash.slice(1)}`);
  const soon = (milliseconds, action) => {
    clearTimeout(timer);
    timer = setTimeout(action, milliseconds);
  };
  const open = (word) => {
    clearTimeout(timer);
    if (word === shown) return;
    const more = html("a", { href: word.href, tabindex: "-1" }, "In the glossary");
    card.replaceChildren(...about(word).cloneNode(true).children, html("p", {}, more));
    card.showPopover();
    placeBeside(card, word);
    shown = word;
  };
  const close = () => {
    clearTimeout(timer);
    card.hidePopover();
    shown = null;
  };

  words.forEach((word) => {
    if (!about(word)) return;
    word.setAttribute("aria-describedby", about(word).id);
    word.addEventListener("pointerdown", (event) => {
      touched = event.pointerType !== "mouse";
    });
    word.addEventListener("click", (event) => {
      if (touched) event.preventDefault();
      if (touched) word === shown ? close() : open(word);
    });
    word.addEventListener("pointerenter", (event) => {
      if (event.pointerType === "mouse") soon(120, () => open(word));
    });
    word.addEventListener("pointerleave", (event) => {
      if (event.pointerType === "mouse") soon(300, close);
    });
    word.addEventListener("focus", () => word.matches(":focus-visible") && open(word));
    word.addEventListener("blur", () => card.matches(":hover") || soon(100, close));
  });
  card.addEventListener("pointerenter", () => clearTimeout(timer));
  card.addEventListener("pointerleave", (event) => {
    if (event.pointerType === "mouse") soon(300, close);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && shown) close();
  });
  document.addEventListener("pointerdown", (event) => {
    if (shown && !card.contains(event.target) && !shown.contains(event.target)) close();
  });
}

/* Below the word, or above it where there is more room; never beyond the screen's edges. */
function placeBeside(card, word) {
  const line = word.getClientRects()[0];
  const room = document.documentElement.clientWidth - card.offsetWidth - 12;
  const above = line.bottom + card.offsetHeight + 12 > innerHeight && line.top > innerHeight / 2;
  const top = above ? line.top - card.offsetHeight - 6 : line.bottom + 6;
  card.style.left = `${scrollX + Math.max(12, Math.min(line.left - 12, room))}px`;
  card.style.top = `${scrollY + top}px`;
}
