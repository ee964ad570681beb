// The parts of the contents fold. The one with this page is open and named above its title, and the page's own
// entry is in view.
document.addEventListener("DOMContentLoaded", () => {
  const contents = document.querySelector(".bd-sidebar-primary .bd-links");
  for (const caption of contents?.querySelectorAll("p.caption") ?? []) {
    const pages = caption.nextElementSibling;
    const name = caption.querySelector(".caption-text");
    const part = document.createElement("details");
    part.open = pages.querySelector(".current") !== null;
    if (part.open) {
      const above = document.createElement("p");
      above.className = "part";
      above.textContent = name.textContent;
      document.querySelector(".bd-article h1")?.before(above);
    }
    const summary = document.createElement("summary");
    summary.append(name);
    part.append(summary, pages);
    caption.replaceWith(part);
  }
  // a link to another part says so
  const partOf = (link) => link?.closest("details")?.querySelector("summary").textContent.trim();
  const ownPart = partOf(contents?.querySelector(".current.active > a"));
  for (const link of document.querySelectorAll(".prev-next-area a")) {
    const entry = [...(contents?.querySelectorAll("a") ?? [])].find((each) => each.href === link.href);
    const part = partOf(entry);
    if (part && part !== ownPart) link.querySelector(".prev-next-title").prepend(`${part}: `);
  }
  contents?.querySelector(".current.active")?.scrollIntoView({ block: "center" });
});
