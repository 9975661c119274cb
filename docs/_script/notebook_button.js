/* ---- the notebook button: only where a lab may answer ---------------------------------------- */

function offerNotebook(box) {
  if (!location.protocol.startsWith("http")) return;
  box.querySelector("[data-open-notebook]").hidden = false;
  box.querySelector("[data-how-to-start]").hidden = true;
}
