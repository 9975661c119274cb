/* ---- own place: the page for an address that leads nowhere ------------------------------------ */

/* It names the site's place in a <base>, from which "#main-content" would lead to the home page. */
function stayOnPage() {
  const here = location.href.split("#")[0];
  document.querySelectorAll('a[href^="#"]').forEach((link) => {
    link.href = here + link.getAttribute("href");
  });
}
