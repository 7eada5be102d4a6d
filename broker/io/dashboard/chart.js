// Lines over the last hour: axes with units, a legend, and what was at the time that is pointed at.
import { bytes, card, count, drawn, element, time } from "/dashboard/parts.js";

const WIDTH = 360, HEIGHT = 150, LEFT = 52, RIGHT = 8, TOP = 8, BOTTOM = 20;
const KINDS = ["one", "two", "three"];
const STEPS = [1, 2, 2.5, 5, 10];

// `series`: names and columns of the history; `unit`: of the values, "B" for bytes.
export function chart(history, title, unit, series) {
  const head = element("h2", {}, title, " ", element("small", { class: "soft" }, unit));
  const rows = history.rows;
  if (rows.length < 2) return card(head, element("p", { class: "soft" }, "a row is added every ten seconds"));
  const columns = series.map(([, name]) => history.columns.indexOf(name));
  const text = unit === "B" ? bytes : unit === "cores" ? (value) => value.toFixed(2) : count;
  const highest = Math.max(...rows.flatMap((row) => columns.map((column) => row[column])));
  const step = nice(highest, unit), most = step * Math.max(1, Math.ceil(highest / step));
  const first = rows[0][0], last = rows.at(-1)[0];
  const x = (at) => LEFT + ((at - first) / (last - first || 1)) * (WIDTH - LEFT - RIGHT);
  const y = (value) => HEIGHT - BOTTOM - (value / most) * (HEIGHT - TOP - BOTTOM);
  const axes = [];
  for (let value = 0; value <= most * 1.001; value += step) {
    axes.push(drawn("line", { class: "axis", x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) }),
      drawn("text", { x: LEFT - 5, y: y(value) + 4, "text-anchor": "end" }, text(value).replace(".0 ", " ")));
  }
  for (const part of [0, 0.5, 1]) {
    const at = first + (last - first) * part;
    axes.push(drawn("text", { x: x(at), y: HEIGHT - 4, "text-anchor": ["start", "middle", "end"][part * 2] }, time(at)));
  }
  const lines = columns.map((column, at) => drawn("path", { class: KINDS[at], d: `M${rows.map((row) => `${x(row[0]).toFixed(1)},${y(row[column]).toFixed(1)}`).join("L")}` }));
  const rule = drawn("line", { class: "rule", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
  const values = series.map(() => element("b")), when = element("span", { class: "soft" });
  const svg = drawn("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", tabindex: 0, "aria-label": `${title}, ${unit}, since ${time(first)}` }, ...axes, rule, ...lines);
  const shown = (at) => {
    const pointed = at < rows.length;
    const row = rows[pointed ? at : rows.length - 1];
    columns.forEach((column, index) => { values[index].textContent = text(row[column]); });
    when.textContent = pointed ? `at ${time(row[0])}` : "now";
    rule.setAttribute("visibility", pointed ? "visible" : "hidden");
    for (const key of ["x1", "x2"]) rule.setAttribute(key, x(row[0]));
  };
  let at = rows.length;
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const wanted = ((event.clientX - box.left) / box.width) * WIDTH;
    at = rows.reduce((best, row, index) => (Math.abs(x(row[0]) - wanted) < Math.abs(x(rows[best][0]) - wanted) ? index : best), 0);
    shown(at);
  });
  for (const end of ["pointerleave", "blur"]) svg.addEventListener(end, () => { at = rows.length; shown(at); });
  svg.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (move) shown(at = Math.min(rows.length, Math.max(0, at + move)));
  });
  shown(at);
  const legend = series.map(([name], index) => element("span", { class: `key ${KINDS[index]}` }, name, " ", values[index]));
  return card(head, svg, element("div", { class: "legend" }, ...legend, when));
}

// The distance of two lines: three or four of them, and each a number that is easily read.
function nice(most, unit) {
  const base = unit === "B" ? 1024 : 10, raw = Math.max(most, unit === "cores" ? 0.03 : 3) / 3;
  if (base === 1024) return 2 ** Math.ceil(Math.log2(raw));
  const power = 10 ** Math.floor(Math.log10(raw));
  return power * STEPS.find((step) => step * power >= raw * 0.999);
}
