// Elements, numbers and tables, without HTML in texts.

const SVG = "http://www.w3.org/2000/svg";

// Control characters (terminals take some for commands) and those that turn the direction of writing are shown as escapes.
export function visible(text) {
  return String(text).replace(/[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g,
    (found) => `\\u${found.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

export function element(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

export function drawn(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(made, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) if (value !== "" || key !== "class") made.setAttribute(key, value);
  for (const child of children.flat()) made.append(child?.nodeType ? child : visible(child ?? ""));
  return made;
}

export const card = (...children) => element("div", { class: "card" }, ...children);

export function button(text, act, kind = "", more = {}) {
  const made = element("button", { type: "button", class: kind, ...more }, text);
  made.addEventListener("click", act);
  return made;
}

export function select(name, choices) {
  return element("select", { "aria-label": name }, choices.map(([value, text]) => element("option", { value }, text)));
}

export function number(value) {
  return value == null ? "" : Number(value).toLocaleString("en");
}

export function count(value) {
  if (value == null) return "";
  const steps = [[1e9, "G"], [1e6, "M"], [1e4, "k"]];
  for (const [size, unit] of steps) if (value >= size) return `${(value / (unit === "k" ? 1e3 : size)).toFixed(1)} ${unit}`;
  return value >= 100 || Number.isInteger(value) ? String(Math.round(value)) : value.toFixed(1);
}

export function bytes(value) {
  if (value == null) return "";
  const units = ["B", "KiB", "MiB", "GiB"];
  let at = 0;
  while (value >= 1024 && at < 3) { value /= 1024; at += 1; }
  return `${at ? value.toFixed(1) : Math.round(value)} ${units[at]}`;
}

export function time(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString("en-GB");
}

// Columns begin with "#" if they have numbers, with "-" if narrow windows leave them out. Each cell knows its column, as in
// narrow windows each row is a list. A cell is a text, or an element.
export function row(columns, cells, kind = "") {
  return element("tr", { class: kind }, cells.map((cell, at) => {
    const found = cell?.tagName === "TD" ? cell : element("td", {}, cell ?? "");
    found.className += kindOf(columns[at]);
    found.dataset.column = label(columns[at]);
    return found;
  }));
}

const kindOf = (column) => `${column.startsWith("#") ? " number" : ""}${column.includes("-") ? " less" : ""}`;
export const label = (column) => column.replace(/^[#-]+/, "");

export function table(columns, rows, body = element("tbody")) {
  const place = element("div"), heads = columns.map((name) => element("th", { class: kindOf(name), scope: "col" }, label(name)));
  new MutationObserver(() => fit(place)).observe(place, { childList: true, subtree: true });
  body.replaceChildren(...rows);
  place.append(element("table", {}, element("thead", {}, element("tr", {}, heads)), body));
  return place;
}

// A table that is too wide leaves columns out; where that is not enough, each row is a list.
function fit(place) {
  const top = scrollY;
  for (const kind of ["", " tight", " tight list"]) {
    place.className = `scrolls${kind}`;
    if (place.scrollWidth <= place.clientWidth) break;
  }
  // The page was shorter meanwhile.
  if (scrollY !== top) scrollTo(0, top);
}
addEventListener("resize", () => document.querySelectorAll(".scrolls").forEach(fit));

export function facts(pairs) {
  return element("dl", { class: "facts" }, ...pairs.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value?.tagName ? value : pieces(value ?? "not known"))]));
}

// A name of any length: a short one stays in one line, a long one has room for its longest word. `act`: what a click on it does.
export function named(text, kind = "", act = null) {
  const long = String(text).length > 20, name = long ? pieces(text) : [text];
  const made = element("td", { class: long ? `name ${kind}` : kind }, act ? button(name, act, "link") : name);
  if (long) made.style.minWidth = `${Math.min(12, Math.max(...name.map(({ length = 0 }) => length))) + 2}ch`;
  return made;
}

// A name, as children of an element, that breaks behind its words, of which it may have thousands.
export function pieces(name) {
  const words = visible(name).split(/(?<=[ ./:_@-])/), rest = words.splice(200).join("");
  return [...words.flatMap((word) => [word, element("wbr")]), rest];
}
