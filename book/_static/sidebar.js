// The parts of the contents fold; the one with this page is open, and the page's own entry is in view.
document.addEventListener("DOMContentLoaded", () => {
  const contents = document.querySelector(".bd-sidebar-primary .bd-links");
  for (const caption of contents?.querySelectorAll("p.caption") ?? []) {
    const pages = caption.nextElementSibling;
    const part = document.createElement("details");
    part.open = pages.querySelector(".current") !== null;
    const name = document.createElement("summary");
    name.append(caption.querySelector(".caption-text"));
    part.append(name, pages);
    caption.replaceWith(part);
  }
  contents?.querySelector(".current.active")?.scrollIntoView({ block: "center" });
});
