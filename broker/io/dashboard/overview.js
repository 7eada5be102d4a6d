// The federation at one look: totals, alarms, the graph with a broker's details beside it, the last hour, changes.
import { ask, brokers, choices, nameOf, reachable, state, unheard } from "/dashboard/api.js";
import { chart } from "/dashboard/chart.js";
import { change, tell } from "/dashboard/dialog.js";
import { graph } from "/dashboard/graph.js";
import { button, bytes, card, count, element, facts, named, number, pieces, row, select, table, time } from "/dashboard/parts.js";

const sum = (key) => reachable().reduce((total, each) => total + (each[key] ?? 0), 0);
const TOTALS = [
  ["Brokers", () => `${reachable().length} of ${brokers().length}`], ["Clients", () => number(sum("clients"))],
  ["Sessions", () => number(sum("sessions"))], ["Published /s", () => count(sum("published_per_s"))], ["Delivered /s", () => count(sum("delivered_per_s"))],
  ["Between brokers /s", () => count(sum("link_in_per_s"))],
];
const CHARTS = [
  ["Clients' messages", "messages/s", [["published", "published_per_s"], ["delivered", "delivered_per_s"], ["dropped", "dropped_per_s"]]],
  ["Messages of other brokers", "messages/s", [["in", "link_in_per_s"], ["out", "link_out_per_s"]]],
  ["Clients and sessions", "number", [["clients", "clients"], ["sessions", "sessions"]]],
  ["Processor", "cores", [["used", "cpu"]]],
  ["Memory", "B", [["in use", "memory_bytes"], ["queued", "queued_bytes"]]],
];
const LINKS = ["to", "role", "#RTT or cost", "#out /s", "#in /s"];
const BROKERS = ["broker", "state", "#clients", "#published /s"];

export const overview = {
  title: "Overview",
  show(root) {
    this.totals = TOTALS.map(([name]) => element("div", { class: "tile" }, element("b", {}, "…"), element("small", {}, name)));
    this.graph = graph((broker) => this.detail(broker));
    this.when = element("input", { type: "range", min: 0, max: 0, value: 0, "aria-label": "Time line of the topology" });
    this.at = element("span", { class: "soft" }, "now");
    this.when.addEventListener("input", () => this.draw());
    this.origin = select("Show the tree of messages of", [["", "no tree of messages"]]);
    this.origin.id = "origin";
    this.topic = element("input", { "aria-label": "Topic of these messages", id: "topic", placeholder: "to a topic (all brokers)" });
    this.taken = element("span", { class: "soft", role: "status", id: "taken" });
    for (const field of [this.origin, this.topic]) field.addEventListener("change", () => this.tree());
    this.path = null;
    this.details = element("div", { class: "card", id: "details" });
    this.alarms = element("ul", { class: "plain", id: "alarms" });
    this.past = element("details", { id: "past" }, element("summary", {}, "History"), element("ul", { class: "plain scroll" }));
    this.past.addEventListener("toggle", () => this.history());
    this.lines = element("ul", { class: "plain scroll", id: "changes" });
    this.charts = element("div", { class: "grid", id: "charts" });
    this.whose = select("Charts of", choices());
    this.whose.addEventListener("change", () => this.fetch());
    root.append(
      element("div", { class: "tiles", id: "totals", "aria-label": "Totals of the federation" }, ...this.totals),
      element("div", { class: "card", id: "attention" }, element("h2", {}, "Alarms"), this.alarms, this.past),
      element("div", { class: "beside" },
        card(element("h2", {}, "Federation"), this.graph.element,
          element("div", { class: "bar" }, this.when, this.at),
          element("div", { class: "bar" }, this.origin, this.topic, this.taken)),
        this.details),
      element("div", { class: "bar" }, element("h2", {}, "The last hour"), this.whose), this.charts,
      card(element("h2", {}, "Changes"), this.lines));
    this.update("topology");
    this.fetch();
    this.timer = setInterval(() => this.fetch(), 10000);
  },
  hide() { clearInterval(this.timer); },
  async fetch() {
    try {
      const [alarms, changes, history] = await Promise.all([ask("/alarms", "GET", { at: "all" }), ask("/changes"), ask("/history", "GET", { at: this.whose.value }).catch(() => null)]);
      state.changes = changes.changes;
      this.attention(alarms.brokers);
      this.history();
      this.timeline();
      // What somebody points at stays.
      if (history && !this.charts.matches(":hover")) this.charts.replaceChildren(...CHARTS.map((each) => chart(history, ...each)));
    } catch (error) {
      if (error.status !== 401) this.alarms.replaceChildren(element("li", { class: "error" }, error.message));
    }
  },
  // What several brokers say is shown once, with their names.
  attention(answers) {
    const said = new Map();
    for (const { broker, status, answer } of answers) {
      const alarms = status === 200 ? answer.alarms : [{ level: "error", text: `${nameOf(broker)} does not answer` }];
      for (const alarm of alarms) {
        const known = said.get(alarm.text) ?? { ...alarm, by: [] };
        if (status === 200 && !alarm.id) known.by.push(nameOf(broker));
        said.set(alarm.text, known);
      }
    }
    const found = [...said.values()].sort((a, b) => a.level.localeCompare(b.level)).map((alarm) => {
      const dismiss = () => ask(`/alarms/${alarm.id}`, "DELETE").catch(() => {}).then(() => this.fetch());
      return alarmLine(alarm, "", alarm.id ? button("Dismiss", dismiss) : "");
    });
    this.alarms.replaceChildren(...(found.length ? found : [element("li", { class: "good" }, "none")]));
  },
  async history() {
    if (!this.past.open) return;
    const answers = await ask("/alarms/history", "GET", { at: "all" }).catch(() => ({ brokers: [] })), lost = unheard(answers);
    const found = answers.brokers.flatMap(({ broker, answer }) => (answer.alarms ?? []).map((alarm) => ({ ...alarm, by: [nameOf(broker)] })))
      .sort((a, b) => b.until - a.until).slice(0, 200).map((alarm) => alarmLine(alarm, `${time(alarm.since)} to ${time(alarm.until)} `));
    if (lost || !found.length) found.unshift(element("li", { class: "soft" }, lost || "none so far"));
    this.past.lastChild.replaceChildren(...found);
  },
  update(kind) {
    if (kind === "topology" && state.topology) {
      TOTALS.forEach(([, value], at) => { this.totals[at].firstChild.textContent = value(); });
      this.origins();
      this.tree();
      // Nobody loses the button that he is about to press.
      if (!this.details.contains(document.activeElement)) this.detail(brokers().find((broker) => broker.id === this.picked) ?? null);
    } else if (kind === "change") {
      this.timeline();
    }
  },
  timeline() {
    const live = Number(this.when.value) >= Number(this.when.max);
    this.when.max = state.changes.length;
    if (live) this.when.value = state.changes.length;
    this.lines.replaceChildren(...state.changes.filter((change) => change.text.length).reverse().map((change) =>
      element("li", {}, element("span", { class: "soft" }, `${time(change.time)} `), change.text.join("; "))));
    this.draw();
  },
  draw() {
    if (!state.topology) return;
    const change = state.changes[Number(this.when.value)];
    this.at.textContent = change ? time(change.time) : "now";
    if (!change) return this.graph.draw(state.topology, this.path, this.picked);
    const there = new Set(change.brokers);
    const known = new Map(brokers().map((broker) => [broker.id, broker]));
    const then = [...new Set([...known.keys(), ...there])].map((id) => ({
      ...(known.get(id) ?? { id, name: nameOf(id), here: false, draining: false }), reachable: there.has(id), root: id === change.root }));
    return this.graph.draw({ brokers: then, links: change.links.map(([a, b]) => ({ a, b, up: true, tree: true })) });
  },
  // The brokers whose messages may be followed; the choice stays.
  origins() {
    const [none] = this.origin.children, chosen = this.origin.value;
    this.origin.replaceChildren(none, ...reachable().map(({ id, name }) => element("option", { value: id }, `messages of ${name}`)));
    this.origin.value = chosen;
    if (this.origin.selectedIndex < 0) this.origin.value = "";
  },
  async tree() {
    const origin = this.origin.value, topic = this.topic.value;
    let path = null, said = "";
    if (origin) {
      try {
        path = await ask("/tree", "GET", { origin, topic });
        said = `${path.links.length} links, ${path.receivers.length} brokers want them, ${path.kind === "source" ? "shortest paths" : "spanning tree"}`;
      } catch (error) {
        said = error.message;
      }
    }
    // Another choice was made meanwhile.
    if (origin !== this.origin.value || topic !== this.topic.value) return;
    this.path = path;
    this.taken.textContent = said;
    this.draw();
  },
  detail(broker, redrawn = false) {
    const other = this.picked !== broker?.id;
    this.picked = broker?.id;
    if (other) { this.own = state.topology?.links ?? []; this.draw(); }
    if (!broker) {
      const rows = brokers().map((each) => row(BROKERS, [
        named(each.name, "", () => this.detail(each)), element("td", { class: health(each)[1] }, health(each)[0]),
        number(each.clients), count(each.published_per_s)]));
      return this.details.replaceChildren(element("h2", {}, "Brokers"), table(BROKERS, rows));
    }
    const text = (value) => (value === null ? "not known" : typeof value === "number" ? count(value) : value === true ? "yes" : value === false ? "no" : value);
    const its = ["id", "address", "root", "routing", "capability", "clients", "sessions", "published_per_s", "delivered_per_s", "link_in_per_s", "link_out_per_s"];
    const traffic = (rate, size) => element("td", {}, count(rate), element("small", {}, bytes(size)));
    // Only its ends know the traffic of a link.
    if (broker.reachable && (other || !redrawn)) ask("/links", "GET", { at: broker.id }).then(({ links }) => {
      this.own = links;
      if (this.picked === broker.id) this.detail(broker, true);
    }).catch(() => {});
    const links = this.own.filter((link) => link.a === broker.id || link.b === broker.id).map((link) => {
      const cost = link.rtt_ms ?? link.cost_ms;
      return row(LINKS, [named(nameOf(link.a === broker.id ? link.b : link.a)), 
        element("td", { class: link.up ? "good" : "error" }, link.up ? link.role ?? (link.tree ? "tree" : "alternate") : "down"),
        cost === null ? "" : `${cost.toFixed(2)} ms`, traffic(link.out_per_s, link.out_bytes_per_s), traffic(link.in_per_s, link.in_bytes_per_s)]);
    });
    return this.details.replaceChildren(element("h2", {}, pieces(broker.name)),
      element("div", { class: "bar" }, button("All brokers", () => this.detail(null)), broker.reachable ? button(broker.draining ? "Stop now" : "Drain", () => drain(broker), "danger") : ""),
      facts([["state", element("span", { class: health(broker)[1] }, health(broker)[0])], ["standby", (broker.standbys || []).map(nameOf).join(", ") || "none"], ...its.map((key) => [key.replace("_per_s", " /s").replace("link_", "brokers "), text(broker[key])])]), element("h2", {}, "Links"), table(LINKS, links));
  },
};

function alarmLine({ level, text, by }, when, act = "") {
  return element("li", { class: level }, element("span", { class: "soft" }, when), text, element("small", {}, by.length ? ` (${by.join(", ")}) ` : " "), act);
}

function health(broker) {
  if (!broker.reachable) return [broker.alive ? "alive, no path" : "unreachable", "error"];
  return broker.draining ? ["drains", "warning"] : ["up", "good"];
}

async function drain(broker) {
  const { name } = broker;
  const question = broker.draining ? `Stop ${name} now, whatever is left to do?` : `Drain ${name}? Its clients are sent to the other brokers, and it stops when nothing is left.`;
  const { drain: found } = await change(question, broker.draining ? "Stop" : "Drain", "/drain", "POST", broker.id);
  if (found) tell(`${name} drains`, [facts(Object.entries(found).map(([key, value]) => [key.replaceAll("_", " "), JSON.stringify(value)]))]);
}
