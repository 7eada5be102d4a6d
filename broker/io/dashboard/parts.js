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
  for (const child of children) made.append(typeof child === "object" && child !== null ? child : visible(child ?? ""));
  return made;
}

export function button(text, act, kind = "", more = {}) {
  const made = element("button", { type: "button", class: kind, ...more }, text);
  made.addEventListener("click", act);
  return made;
}

export function select(label, choices, chosen = "") {
  const made = element("select", { "aria-label": label }, ...choices.map(([value, text]) => element("option", { value }, text)));
  if (choices.some(([value]) => value === chosen)) made.value = chosen;
  return made;
}

export function number(value) {
  return value === null || value === undefined ? "" : Number(value).toLocaleString("en");
}

export function count(value) {
  if (value === null || value === undefined) return "";
  const steps = [[1e9, "G"], [1e6, "M"], [1e4, "k"]];
  for (const [size, unit] of steps) if (value >= size) return `${(value / (unit === "k" ? 1e3 : size)).toFixed(1)} ${unit}`;
  return value >= 100 || Number.isInteger(value) ? String(Math.round(value)) : value.toFixed(1);
}

export function bytes(value) {
  if (value === null || value === undefined) return "";
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
  return element("tr", { class: kind }, ...cells.map((cell, at) => {
    const node = typeof cell === "object" && cell !== null;
    const found = node && cell.tagName === "TD" ? cell : element("td", {}, cell ?? "");
    if (columns[at].startsWith("#")) found.classList.add("number");
    if (columns[at].includes("-")) found.classList.add("less");
    found.dataset.column = columns[at].replace(/^[#-]+/, "");
    return found;
  }));
}

export function table(columns, rows, body = element("tbody")) {
  body.replaceChildren(...rows);
  const heads = columns.map((name) => element("th", { class: `${name.startsWith("#") ? "number" : ""} ${name.includes("-") ? "less" : ""}`.trim(), scope: "col" }, name.replace(/^[#-]+/, "")));
  return element("div", { class: "scrolls" }, element("table", {}, element("thead", {}, element("tr", {}, ...heads)), body));
}

export function facts(pairs) {
  return element("dl", { class: "facts" }, ...pairs.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value ?? "not known")]));
}

// A name of any length: a short one stays in one line. `act`: what a click on it does.
export function named(text, kind = "", act = null) {
  return element("td", { class: `${String(text).length > 20 ? "name" : ""} ${kind}`.trim() }, act ? button(text, act, "link") : text ?? "");
}
