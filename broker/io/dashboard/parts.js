// Elements, numbers and charts, without HTML in texts.

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

// Lines of some columns of the history, from zero to their maximum.
export function chart(history, names) {
  const rows = history.rows;
  if (rows.length < 2) return element("p", { class: "soft" }, "a row is added every ten seconds");
  const columns = names.map((name) => history.columns.indexOf(name));
  const most = Math.max(...rows.flatMap((row) => columns.map((column) => row[column])), 1e-9);
  const width = 300, height = 90;
  const lines = columns.map((column, at) => {
    const points = rows.map((row, x) => `${((x / (rows.length - 1)) * width).toFixed(1)},${(height - 2 - (row[column] / most) * (height - 6)).toFixed(1)}`);
    return drawn("path", { class: ["one", "two", "three"][at], d: `M${points.join("L")}` });
  });
  const last = columns.map((column) => count(rows.at(-1)[column])).join(" · ");
  const text = `now ${last}, at most ${count(most)}, since ${time(rows[0][0])}`;
  return element("div", {}, drawn("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": text }, ...lines),
    element("small", { class: "soft" }, text));
}
