// The federation as a picture: brokers repel each other, links pull. It is laid out again when brokers, links or its size change.
// Names and costs are put where they lie on no broker, and on no other text.
import { drawn, visible } from "/dashboard/parts.js";

const LETTER = 7.2, SMALL = 6.2, LINE = 16;

export function graph(picked) {
  const svg = drawn("svg", { id: "graph", role: "group", "aria-label": "Brokers and links" });
  const places = new Map();
  let shape = "", last = null;
  const made = {
    element: svg,
    // `path`: a tree of /api/v1/tree to be shown, null for none; `chosen`: id of the broker whose details are shown.
    draw(topology, path = null, chosen = "") {
      last = [topology, path, chosen];
      const size = { width: svg.clientWidth, height: svg.clientHeight };
      if (!size.width || !size.height) return;
      const now = JSON.stringify([size, topology.brokers.map((broker) => broker.id), topology.links.map((link) => [link.a, link.b])]);
      if (now !== shape) {
        svg.setAttribute("viewBox", `0 0 ${size.width} ${size.height}`);
        layOut(places, topology, size);
      }
      shape = now;
      const focused = svg.querySelector(":focus")?.dataset.id;
      const taken = path && new Set(path.links.flatMap(([a, b]) => [`${a} ${b}`, `${b} ${a}`]));
      const room = new Room(size, places, topology);
      const circles = nodes(places, topology, picked, new Set(path?.receivers), chosen, room);
      svg.replaceChildren(...lines(places, topology, taken, room), ...circles);
      if (focused) [...svg.querySelectorAll("g")].find((node) => node.dataset.id === focused)?.focus();
    },
  };
  new ResizeObserver(() => { if (last) made.draw(...last); }).observe(svg);
  return made;
}

const radius = (topology) => (topology.brokers.length > 60 ? 7 : topology.brokers.length > 20 ? 11 : 16);

// Where texts may be: not outside, not on brokers, not on other texts, rather not on links.
class Room {
  constructor({ width, height }, places, topology) {
    const size = radius(topology) + 4;
    this.width = width;
    this.height = height;
    this.boxes = topology.brokers.map(({ id }) => places.get(id)).map(({ x, y }) => [x - size, y - size, x + size, y + size]);
    this.links = topology.links.map((link) => [places.get(link.a), places.get(link.b)]).filter(([a, b]) => a && b);
  }

  // The first of the `middles` with the least on it for a text of that `width`; null if it would lie on something and `must` is false.
  find(middles, width, must) {
    let best = null, least = Infinity;
    for (const [x, y] of middles) {
      const box = [x - width / 2, y - LINE / 2, x + width / 2, y + LINE / 2];
      const outside = box[0] < 0 || box[1] < 0 || box[2] > this.width || box[3] > this.height;
      const hits = this.boxes.filter((other) => box[0] < other[2] && other[0] < box[2] && box[1] < other[3] && other[1] < box[3]).length;
      const weight = (outside ? 40 : 0) + hits * 20 + this.links.filter(([a, b]) => crosses(a, b, box)).length;
      if (weight < least) [best, least] = [[x, y, box], weight];
    }
    if (!must && least >= 20) return null;
    this.boxes.push(best[2]);
    return best;
  }
}

function crosses(a, b, [left, top, right, bottom]) {
  for (let part = 0; part <= 1; part += 0.05) {
    const x = a.x + (b.x - a.x) * part, y = a.y + (b.y - a.y) * part;
    if (x > left && x < right && y > top && y < bottom) return true;
  }
  return false;
}

function lines(places, topology, taken, room) {
  return topology.links.flatMap((link) => {
    const one = places.get(link.a), other = places.get(link.b);
    if (!one || !other) return [];
    const state = !link.up ? "down" : link.tree ? "tree" : "other";
    const kind = !taken ? state : `${state} ${taken.has(`${link.a} ${link.b}`) ? "path" : "faint"}`;
    const cost = link.rtt_ms ?? link.cost_ms ?? null;
    const line = drawn("line", { class: kind, x1: one.x, y1: one.y, x2: other.x, y2: other.y });
    if (cost === null || !link.tree || topology.links.length > 60) return [line];
    const said = `${cost.toFixed(1)} ms`;
    // Beside the line, on either side of it.
    const x = other.x - one.x, y = other.y - one.y, length = Math.hypot(x, y) || 1, width = said.length * SMALL;
    const off = (Math.abs(y) * width + Math.abs(x) * LINE) / length / 2 + 3;
    const middles = [0.5, 0.4, 0.6, 0.3, 0.7].flatMap((part) => [off, -off].map((far) => [one.x + x * part - (y / length) * far, one.y + y * part + (x / length) * far]));
    const place = room.find(middles, width, false);
    return place ? [line, drawn("text", { class: "cost", x: place[0], y: place[1] + 4 }, said)] : [line];
  });
}

function nodes(places, topology, picked, wanting, chosen, room) {
  const size = radius(topology), most = room.width < 500 ? 14 : 28;
  return topology.brokers.map((broker) => {
    const place = places.get(broker.id), { name } = broker;
    const kinds = [broker.root && "root", broker.here && "here", broker.draining && "draining", !broker.reachable && "away", wanting.has(broker.id) && "wants"].filter(Boolean);
    const about = `${name}: ${kinds.join(", ") || "up"}`;
    const short = name.length > most ? `${name.slice(0, most / 2)}…${name.slice(1 - most / 2)}` : name;
    const width = short.length * LETTER, beside = size + 8 + width / 2, away = size + 12;
    const around = [[0, away], [0, -away], [beside, 0], [-beside, 0], [beside * 0.8, away], [-beside * 0.8, away], [beside * 0.8, -away], [-beside * 0.8, -away]];
    const inside = (x) => Math.min(room.width - width / 2 - 2, Math.max(width / 2 + 2, x));
    const [x, y] = room.find(around.map(([dx, dy], at) => [at < 2 ? inside(place.x + dx) : place.x + dx, place.y + dy]), width, true);
    const node = drawn("g", { class: [...kinds, broker.id === chosen && "chosen"].filter(Boolean).join(" "), tabindex: 0, role: "button", "aria-label": visible(about), "data-id": broker.id },
      drawn("title", {}, about), drawn("circle", { cx: place.x, cy: place.y, r: size }), drawn("text", { x, y: y + 5 }, short));
    node.addEventListener("click", () => picked(broker));
    node.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); picked(broker); }
    });
    return node;
  });
}

function layOut(places, topology, { width, height }) {
  const ids = topology.brokers.map((broker) => broker.id);
  for (const id of [...places.keys()]) if (!ids.includes(id)) places.delete(id);
  ids.forEach((id, at) => {
    const angle = (2 * Math.PI * at) / ids.length;
    if (!places.has(id)) places.set(id, { x: width * (0.5 + 0.3 * Math.cos(angle)), y: height * (0.5 + 0.3 * Math.sin(angle)) });
  });
  const all = ids.map((id) => places.get(id));
  const pull = topology.links.map((link) => [places.get(link.a), places.get(link.b)]).filter(([a, b]) => a && b);
  // A broker without links stays with the others.
  for (const place of all) if (all.length > 1 && !pull.some((ends) => ends.includes(place))) pull.push([place, all.find((other) => other !== place)]);
  const distance = Math.sqrt((width * height) / Math.max(1, ids.length)) * 0.8;
  const rounds = ids.length > 100 ? 60 : 250, edge = Math.min(70, width / 6);
  for (let round = 0; round < rounds; round += 1) {
    const heat = 20 * (1 - round / rounds);
    const moves = all.map(() => ({ x: 0, y: 0 }));
    for (let a = 0; a < all.length; a += 1) {
      for (let b = a + 1; b < all.length; b += 1) {
        const x = all[a].x - all[b].x || 0.1, y = all[a].y - all[b].y || 0.1;
        const force = (distance * distance) / (x * x + y * y);
        moves[a].x += x * force; moves[a].y += y * force;
        moves[b].x -= x * force; moves[b].y -= y * force;
      }
      moves[a].x += (width / 2 - all[a].x) * 0.05; moves[a].y += (height / 2 - all[a].y) * 0.09;
    }
    for (const [one, other] of pull) {
      const x = other.x - one.x, y = other.y - one.y, force = Math.hypot(x, y) / distance;
      const a = all.indexOf(one), b = all.indexOf(other);
      moves[a].x += x * force; moves[a].y += y * force;
      moves[b].x -= x * force; moves[b].y -= y * force;
    }
    all.forEach((place, at) => {
      const length = Math.hypot(moves[at].x, moves[at].y) || 1;
      place.x = Math.min(width - edge, Math.max(edge, place.x + (moves[at].x / length) * Math.min(length, heat)));
      place.y = Math.min(height - 40, Math.max(34, place.y + (moves[at].y / length) * Math.min(length, heat)));
    });
  }
  // The picture fills its room.
  for (const [axis, size, margin] of [["x", width, edge], ["y", height, 40]]) {
    const low = Math.min(...all.map((place) => place[axis])), high = Math.max(...all.map((place) => place[axis]));
    const scale = high - low > 1 ? Math.min(2, (size - 2 * margin) / (high - low)) : 1;
    for (const place of all) place[axis] = size / 2 + (place[axis] - (low + high) / 2) * scale;
  }
}
