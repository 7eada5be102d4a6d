// The federation as a picture: brokers repel each other, links pull. It is laid out again when brokers or links change.
import { count, drawn, visible } from "/dashboard/parts.js";

const WIDTH = 1000, HEIGHT = 560;

export function graph(picked) {
  const svg = drawn("svg", { id: "graph", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "group", "aria-label": "Brokers and links" });
  const places = new Map();
  let shape = "";
  return {
    element: svg,
    // `path`: a tree of /api/v1/tree to be shown, null for none.
    draw(topology, path = null) {
      const now = JSON.stringify([topology.brokers.map((broker) => broker.id), topology.links.map((link) => [link.a, link.b])]);
      if (now !== shape) layOut(places, topology);
      shape = now;
      const focused = svg.querySelector(":focus")?.dataset.id;
      const taken = path && new Set(path.links.flatMap(([a, b]) => [`${a} ${b}`, `${b} ${a}`]));
      const wanting = new Set(path?.receivers);
      svg.replaceChildren(...lines(places, topology, taken), ...nodes(places, topology, picked, wanting));
      if (focused) [...svg.querySelectorAll("g")].find((node) => node.dataset.id === focused)?.focus();
    },
  };
}

function lines(places, topology, taken) {
  return topology.links.flatMap((link) => {
    const one = places.get(link.a), other = places.get(link.b);
    if (!one || !other) return [];
    const state = !link.up ? "down" : link.tree ? "tree" : "other";
    const kind = !taken ? state : `${state} ${taken.has(`${link.a} ${link.b}`) ? "path" : "faint"}`;
    const line = drawn("line", { class: kind, x1: one.x, y1: one.y, x2: other.x, y2: other.y });
    const cost = link.rtt_ms ?? link.cost_ms ?? null;
    if (cost === null || topology.links.length > (link.tree ? 40 : 6)) return [line];
    const middle = { class: "cost", x: (one.x + other.x) / 2 };
    const said = [line, drawn("text", { ...middle, y: (one.y + other.y) / 2 - 5 }, `${cost.toFixed(1)} ms`)];
    const here = topology.brokers.find((broker) => broker.here)?.id;
    // Each direction is drawn nearer to the broker that sends.
    if (typeof link.out_per_s === "number") {
      const rates = link.a === here ? [[one, other, link.out_per_s], [other, one, link.in_per_s]] : [[other, one, link.out_per_s], [one, other, link.in_per_s]];
      for (const [from, to, rate] of rates) if (rate >= 0.05) said.push(drawn("text", { class: "cost", x: from.x * 0.7 + to.x * 0.3, y: from.y * 0.7 + to.y * 0.3 + 12 }, `${count(rate)}/s`));
    }
    return said;
  });
}

function nodes(places, topology, picked, wanting) {
  const size = topology.brokers.length > 60 ? 9 : topology.brokers.length > 20 ? 13 : 20;
  return topology.brokers.map((broker) => {
    const place = places.get(broker.id);
    const kinds = [broker.root && "root", broker.here && "here", broker.draining && "draining", !broker.reachable && "away", wanting.has(broker.id) && "wants"].filter(Boolean);
    const about = `${broker.name || broker.id}: ${kinds.join(", ") || "up"}`;
    const node = drawn("g", { class: kinds.join(" "), tabindex: 0, role: "button", "aria-label": visible(about), "data-id": broker.id },
      drawn("title", {}, about), drawn("circle", { cx: place.x, cy: place.y, r: size }),
      drawn("text", { x: place.x, y: place.y + size + 16 }, broker.name || broker.id));
    node.addEventListener("click", () => picked(broker));
    node.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); picked(broker); }
    });
    return node;
  });
}

function layOut(places, topology) {
  const ids = topology.brokers.map((broker) => broker.id);
  for (const id of [...places.keys()]) if (!ids.includes(id)) places.delete(id);
  ids.forEach((id, at) => {
    const angle = (2 * Math.PI * at) / ids.length;
    if (!places.has(id)) places.set(id, { x: WIDTH / 2 + 250 * Math.cos(angle), y: HEIGHT / 2 + 180 * Math.sin(angle) });
  });
  const all = ids.map((id) => places.get(id));
  const pull = topology.links.map((link) => [places.get(link.a), places.get(link.b)]).filter(([a, b]) => a && b);
  const distance = Math.sqrt((WIDTH * HEIGHT) / Math.max(1, ids.length)) * 0.95;
  const rounds = ids.length > 100 ? 60 : 250;
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
      moves[a].x += (WIDTH / 2 - all[a].x) * 0.05; moves[a].y += (HEIGHT / 2 - all[a].y) * 0.09;
    }
    for (const [one, other] of pull) {
      const x = other.x - one.x, y = other.y - one.y, force = Math.hypot(x, y) / distance;
      const a = all.indexOf(one), b = all.indexOf(other);
      moves[a].x += x * force; moves[a].y += y * force;
      moves[b].x -= x * force; moves[b].y -= y * force;
    }
    all.forEach((place, at) => {
      const length = Math.hypot(moves[at].x, moves[at].y) || 1;
      place.x = Math.min(WIDTH - 70, Math.max(70, place.x + (moves[at].x / length) * Math.min(length, heat)));
      place.y = Math.min(HEIGHT - 50, Math.max(30, place.y + (moves[at].y / length) * Math.min(length, heat)));
    });
  }
}
