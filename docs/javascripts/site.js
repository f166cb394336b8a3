// What the theme makes in the browser, for people who use a keyboard or a screen reader: what scrolls can be focused, and buttons beside code have names.
document$.subscribe(() => {
  document.querySelectorAll(".md-typeset pre > code, .md-typeset__scrollwrap").forEach((each) => each.setAttribute("tabindex", "0"));
  const name = () =>
    document.querySelectorAll("nav.md-code__nav:not([aria-label])").forEach((nav) => {
      const place = [...document.querySelectorAll(".md-typeset pre > code")].indexOf(nav.closest("pre").querySelector("code"));
      nav.setAttribute("aria-label", `Code ${place + 1}`);
    });
  name();
  new MutationObserver(name).observe(document.querySelector(".md-content"), { childList: true, subtree: true });
});
