"use strict";
document.documentElement.classList.add("js");
const all = (selector, root = document) => [...root.querySelectorAll(selector)];

// Knobs: one of the states is shown; its sentence is announced.
for (const knob of all(".knob")) {
  const states = all(".state", knob), said = knob.querySelector(".said"), output = knob.querySelector("output");
  const turn = (index) => {
    states.forEach((state, at) => state.classList.toggle("here", at === index));
    said.textContent = states[index].querySelector("figcaption").textContent;
    if (output) output.textContent = states[index].dataset.label;
    for (const range of all("input[type=range]", knob)) range.setAttribute("aria-valuetext", states[index].dataset.label);
    measure();
  };
  knob.querySelector("fieldset").hidden = false;
  knob.addEventListener("input", (event) => turn(Number(event.target.value)));
  const checked = knob.querySelector("input:checked, input[type=range]");
  turn(Number(checked.value));
}

// Maps: pointing at a range, or walking through the ranges with the arrow keys, says what it is.
for (const map of all("svg:has(.range)")) {
  const ranges = all(".range", map), told = document.createElement("p");
  const words = ranges.map((range) => range.querySelector("title").textContent);
  let here = -1;
  told.className = "told";
  told.setAttribute("role", "status");
  told.textContent = "Point at a range, or move here with Tab and through the ranges with the arrow keys.";
  map.closest("figure").querySelector(".picture").after(told);
  map.setAttribute("tabindex", "0");
  const tell = (index) => {
    if (here >= 0) ranges[here].classList.remove("here");
    here = (index + ranges.length) % ranges.length;
    ranges[here].classList.add("here");
    told.textContent = words[here];
  };
  map.addEventListener("pointerover", (event) => {
    const index = ranges.indexOf(event.target.closest(".range"));
    if (index >= 0) tell(index);
  });
  map.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (step) { event.preventDefault(); tell(here < 0 && step < 0 ? -1 : here + step); }
  });
}

for (const box of all(".code")) {
  const button = document.createElement("button"), text = box.querySelector("pre").textContent;
  button.type = "button";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    try { await navigator.clipboard.writeText(text); button.textContent = "Copied"; }
    catch { button.textContent = "Not allowed here"; }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  box.prepend(button);
}

// On a narrow window the contents list is one line.
for (const contents of all(".contents details")) if (innerWidth < 1200) contents.open = false;

// A box that scrolls sideways can be reached with Tab; one that does not is no stop.
function measure() {
  for (const box of all("pre, .picture, .scroll")) {
    if (box.scrollWidth > box.clientWidth + 1) box.setAttribute("tabindex", "0");
    else box.removeAttribute("tabindex");
  }
}
addEventListener("resize", measure);
addEventListener("load", measure);
document.addEventListener("toggle", measure, true);

// A printed page has everything on it, and a link into a folded part opens it.
addEventListener("beforeprint", () => all("details").forEach((part) => { part.open = true; }));
function open() {
  let part = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const target = part;
  for (; part; part = part.parentElement) if (part.tagName === "DETAILS") part.open = true;
  if (target) target.scrollIntoView();
}
addEventListener("hashchange", open);
open();

// Search: all words of the question, in the sections of all pages.
const index = document.getElementById("search-index");
if (index) {
  const sections = JSON.parse(index.textContent), question = document.getElementById("question");
  const results = document.getElementById("results"), found = document.getElementById("found");
  const search = () => {
    const words = question.value.toLowerCase().split(/\s+/).filter(Boolean);
    const hits = words.length ? sections.filter((section) => {
      const text = `${section.page} ${section.title} ${section.text}`.toLowerCase();
      return words.every((word) => text.includes(word));
    }) : [];
    found.textContent = words.length ? `${hits.length} sections` : "";
    results.replaceChildren(...hits.slice(0, 30).map((section) => {
      const item = document.createElement("li"), link = document.createElement("a"), quote = document.createElement("p");
      const at = Math.max(0, section.text.toLowerCase().indexOf(words[0]) - 60);
      link.href = section.link;
      link.textContent = `${section.page}: ${section.title}`;
      quote.textContent = section.text.slice(at, at + 180);
      item.append(link, quote);
      return item;
    }));
  };
  question.value = new URLSearchParams(location.search).get("q") || "";
  question.addEventListener("input", search);
  question.form.addEventListener("submit", (event) => { event.preventDefault(); search(); });
  search();
}
