// The dashboard: views of /api/v1. Texts of clients never become HTML: elements are made one by one.
import { graph } from "/dashboard/graph.js";
import { MqttSocket } from "/dashboard/mqtt.js";
import { bytes, chart, count, element, number, time, visible } from "/dashboard/parts.js";

const $ = (id) => document.getElementById(id);
const state = { summary: null, topology: null, changes: [], view: "overview", shown: null, token: "" };
const POLL = 5000;

// ---------------------------------------------------------------- requests

class Refused extends Error {
  constructor(status, text) { super(text); this.status = status; }
}

function headers() {
  return state.token ? { Authorization: `Bearer ${state.token}` } : {};
}

async function ask(path, method = "GET", query = {}) {
  const fields = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== ""));
  const answer = await fetch(`/api/v1${path}${fields.size ? `?${fields}` : ""}`, { method, headers: headers() });
  if (answer.status === 401) {
    logIn();
    throw new Refused(401, "the token is missing or wrong");
  }
  const content = await answer.json().catch(() => ({ error: `status ${answer.status}` }));
  if (!answer.ok) throw new Refused(answer.status, content.error || `status ${answer.status}`);
  return content;
}

function logIn() {
  $("login").hidden = false;
  $("view").hidden = true;
  $("token").focus();
}

$("login").addEventListener("submit", (event) => {
  event.preventDefault();
  state.token = $("token").value.trim();
  sessionStorage.setItem("token", state.token);
  $("login").hidden = true;
  $("view").hidden = false;
  start();
});

// ---------------------------------------------------------------- events

let reading = 0;

async function read() {
  const mine = ++reading;
  while (mine === reading) {
    let pause = 3000;
    try {
      const answer = await fetch("/api/v1/events", { headers: headers() });
      if (answer.status === 401) return logIn();
      if (answer.status === 503) {
        pause = POLL;
        await poll();
        connected("every five seconds: many pages are open", false);
      } else if (answer.ok) {
        connected("live", false);
        await follow(answer.body.getReader(), mine);
        connected("connection lost", true);
      }
    } catch {
      connected("the broker does not answer", true);
    }
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
}

async function follow(reader, mine) {
  const decoder = new TextDecoder();
  let text = "";
  while (mine === reading) {
    // A broker that hangs sends nothing: what is shown is marked as old.
    const late = setTimeout(() => connected("nothing has come for 5 s", true), 5000);
    const { done, value } = await reader.read();
    clearTimeout(late);
    if (done) return;
    text += decoder.decode(value, { stream: true });
    const events = text.split("\n\n");
    text = events.pop();
    for (const event of events) {
      const kind = /^event: (.*)$/m.exec(event)?.[1];
      const data = /^data: (.*)$/m.exec(event)?.[1];
      if (kind && data) take(kind, JSON.parse(data));
    }
    connected("live", false);
  }
  reader.cancel();
}

async function poll() {
  take("summary", await ask("/summary"));
  take("topology", await ask("/topology"));
}

function take(kind, data) {
  if (kind === "change") {
    state.changes.push(data);
    if (state.changes.length > 200) state.changes.shift();
  } else {
    state[kind] = data;
  }
  if (kind === "topology") {
    const own = data.brokers.find((broker) => broker.here);
    $("broker").textContent = visible(`${own?.name ?? ""} · ${data.cluster}`);
  }
  views[state.view].update?.(kind);
}

function connected(text, lost) {
  $("connection").textContent = text;
  $("connection").classList.toggle("lost", lost);
}

// ---------------------------------------------------------------- overview

const TILES = [
  ["Published /s", (s) => count(s.published_per_s)], ["Delivered /s", (s) => count(s.delivered_per_s)],
  ["From brokers /s", (s) => count(s.link_in_per_s)], ["To brokers /s", (s) => count(s.link_out_per_s)],
  ["Dropped /s", (s) => count(s.dropped_per_s)], ["Clients", (s) => number(s.clients)],
  ["Sessions", (s) => number(s.sessions)], ["Subscriptions", (s) => number(s.subscriptions)],
  ["Retained", (s) => number(s.retained)], ["Queued", (s) => bytes(s.queued_bytes)],
  ["Processor", (s) => `${(s.cpu * 100).toFixed(1)} %`], ["Brokers", (s) => number(s.brokers)],
];
const CHARTS = [
  ["Messages a second: published, delivered, dropped", ["published_per_s", "delivered_per_s", "dropped_per_s"]],
  ["Messages a second from and to other brokers", ["link_in_per_s", "link_out_per_s"]],
  ["Clients and sessions", ["clients", "sessions"]],
  ["Processor (cores)", ["cpu"]],
  ["Queued bytes", ["queued_bytes"]],
];

const overview = {
  title: "Overview",
  show(root) {
    this.tiles = TILES.map(([name]) => element("div", { class: "tile" }, element("b", {}, "…"), element("small", {}, name)));
    this.graph = graph((broker) => this.detail(broker));
    this.when = element("input", { type: "range", min: 0, max: 0, value: 0, "aria-label": "Time line of the topology" });
    this.at = element("span", { class: "soft" }, "now");
    this.when.addEventListener("input", () => this.draw());
    this.origin = element("select", { "aria-label": "Show the tree of messages of", id: "origin" }, element("option", { value: "" }, "no tree of messages"));
    this.topic = element("input", { "aria-label": "Topic of these messages", id: "topic", placeholder: "to a topic (all brokers)" });
    this.taken = element("span", { class: "soft", role: "status", id: "taken" });
    this.origin.addEventListener("change", () => this.tree());
    this.topic.addEventListener("change", () => this.tree());
    this.path = null;
    this.details = element("div", { class: "card", id: "details" }, element("h2", {}, "Brokers"));
    this.alarms = element("ul", { class: "plain", id: "alarms" });
    this.lines = element("ul", { class: "plain scroll", id: "changes" });
    this.charts = element("div", { class: "grid wide" });
    root.append(
      element("div", { class: "tiles" }, ...this.tiles),
      element("div", { class: "grid" },
        element("div", { class: "card wide" }, element("h2", {}, "Federation"), this.graph.element,
          element("div", { class: "bar" }, this.when, this.at),
          element("div", { class: "bar" }, this.origin, this.topic, this.taken)),
        this.details,
        element("div", { class: "card" }, element("h2", {}, "Alarms"), this.alarms),
        element("div", { class: "card" }, element("h2", {}, "Changes"), this.lines),
        this.charts));
    this.update("summary");
    this.update("topology");
    this.fetch();
    this.timer = setInterval(() => this.fetch(), 10000);
  },
  hide() { clearInterval(this.timer); },
  async fetch() {
    try {
      const [alarms, history, changes] = await Promise.all([ask("/alarms"), ask("/history"), ask("/changes")]);
      state.changes = changes.changes;
      this.alarms.replaceChildren(...(alarms.alarms.length
        ? alarms.alarms.map((alarm) => element("li", { class: alarm.level }, alarm.text))
        : [element("li", { class: "good" }, "none")]));
      this.charts.replaceChildren(...CHARTS.map(([title, names]) =>
        element("div", { class: "card" }, element("h2", {}, title), chart(history, names))));
      this.timeline();
    } catch (error) {
      if (error.status !== 401) connected(error.message, true);
    }
  },
  update(kind) {
    if (kind === "summary" && state.summary) {
      TILES.forEach(([, format], at) => { this.tiles[at].firstChild.textContent = format(state.summary); });
    } else if (kind === "topology" && state.topology) {
      this.origins();
      this.tree();
      this.draw();
      if (!this.picked) this.list();
      else this.detail(state.topology.brokers.find((broker) => broker.id === this.picked) ?? null);
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
    if (!change) return this.graph.draw(state.topology, this.path);
    const there = new Set(change.brokers);
    const known = new Map(state.topology.brokers.map((broker) => [broker.id, broker]));
    const brokers = [...new Set([...known.keys(), ...there])].map((id) => ({
      ...(known.get(id) ?? { id, name: id, here: false, draining: false }), reachable: there.has(id), root: id === change.root }));
    this.graph.draw({ brokers, links: change.links.map(([a, b]) => ({ a, b, up: true, tree: true })) });
  },
  // The brokers whose messages may be followed; the choice stays.
  origins() {
    const [none] = this.origin.children, chosen = this.origin.value;
    this.origin.replaceChildren(none, ...state.topology.brokers.filter((broker) => broker.reachable).map((broker) =>
      element("option", { value: broker.id }, `messages of ${broker.name || broker.id}`)));
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
  list() {
    const rows = state.topology.brokers.map((broker) => {
      const name = element("button", { type: "button" }, broker.name || broker.id);
      name.addEventListener("click", () => this.detail(broker));
      return element("tr", {}, element("td", {}, name), element("td", { class: health(broker)[1] }, health(broker)[0]),
        element("td", { class: "number" }, number(broker.clients)), element("td", { class: "number" }, count(broker.published_per_s)));
    });
    this.details.replaceChildren(element("h2", {}, "Brokers"), table(["broker", "state", "#clients", "#published /s"], rows));
  },
  detail(broker) {
    this.picked = broker?.id;
    if (!broker) return this.list();
    const all = element("button", { type: "button" }, "All brokers");
    all.addEventListener("click", () => this.detail(null));
    const facts = [["id", broker.id], ["address", broker.address], ["state", health(broker)[0]], ["root", broker.root ? "yes" : "no"],
      ["routing", broker.routing], ["capability", broker.capability?.toFixed(2)], ["clients", number(broker.clients)],
      ["sessions", number(broker.sessions)], ["published /s", count(broker.published_per_s)], ["delivered /s", count(broker.delivered_per_s)],
      ["from brokers /s", count(broker.link_in_per_s)], ["to brokers /s", count(broker.link_out_per_s)]];
    const names = new Map(state.topology.brokers.map((each) => [each.id, each.name]));
    const links = state.topology.links.filter((link) => link.a === broker.id || link.b === broker.id).map((link) => {
      const other = link.a === broker.id ? link.b : link.a;
      const cost = link.rtt_ms ?? link.cost_ms;
      return element("tr", {}, element("td", {}, names.get(other) || other), element("td", {}, link.role ?? (link.tree ? "tree" : "alternate")),
        element("td", { class: "number" }, cost === null ? "" : `${cost.toFixed(2)} ms`), element("td", { class: link.up ? "good" : "error" }, link.up ? "up" : "down"),
        ...["out_per_s", "in_per_s"].map((key) => element("td", { class: "number" }, count(link[key]))),
        ...["out_bytes_per_s", "in_bytes_per_s"].map((key) => element("td", { class: "number" }, bytes(link[key]))));
    });
    this.details.replaceChildren(element("h2", {}, broker.name || broker.id), all,
      table(["", ""], facts.map(([name, value]) => element("tr", {}, element("th", {}, name), element("td", {}, value ?? "not known")))),
      element("h2", {}, "Links"), table(["to", "role", "#RTT or cost", "state", "#out /s", "#in /s", "#out B/s", "#in B/s"], links));
  },
};

function health(broker) {
  if (!broker.reachable) return [broker.alive ? "alive, no path" : "cannot be reached", "error"];
  return broker.draining ? ["drains", "warning"] : ["up", "good"];
}

// ---------------------------------------------------------------- tables with search

function table(columns, rows) {
  const heads = columns.map((name) => element("th", { class: name.startsWith("#") ? "number" : "", scope: "col" }, name.replace("#", "")));
  return element("table", {}, element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...rows));
}

function lists({ title, path, rows, columns, row, extra = [] }) {
  return {
    title,
    show(root) {
      this.search = element("input", { type: "search", placeholder: "Search ( / )", "aria-label": "Search" });
      this.fields = extra.map(([name, choices]) => Array.isArray(choices)
        ? element("select", { "aria-label": name, name }, ...choices.map((choice) => element("option", { value: choice }, choice)))
        : element("input", { "aria-label": name, name, placeholder: choices }));
      this.body = element("tbody");
      this.total = element("span", { class: "soft", role: "status" });
      this.more = element("button", { type: "button", hidden: "" }, "More");
      const form = element("form", { class: "bar" }, this.search, ...this.fields, element("button", { type: "submit" }, "Find"), this.total);
      form.addEventListener("submit", (event) => { event.preventDefault(); this.find(); });
      this.search.addEventListener("input", () => { clearTimeout(this.wait); this.wait = setTimeout(() => this.find(), 300); });
      this.fields.forEach((field) => field.addEventListener("change", () => this.find()));
      this.more.addEventListener("click", () => this.find(this.next));
      const shown = table(columns, []);
      shown.lastChild.replaceWith(this.body);
      root.append(element("div", { class: "card" }, form, shown, this.more));
      this.find();
    },
    hide() { clearTimeout(this.wait); },
    async find(after = "") {
      const mine = (this.asked = (this.asked ?? 0) + 1);
      const query = { search: this.search.value, limit: 100 };
      for (const field of this.fields) query[field.name] = field.value;
      if (after) query.after = after;
      try {
        const found = await ask(path, "GET", query);
        if (mine !== this.asked) return;
        const made = found[rows].map((each) => row(each, this));
        if (after) this.body.append(...made);
        else this.body.replaceChildren(...made);
        this.next = found.next ?? "";
        this.more.hidden = !this.next;
        this.total.textContent = `${number(found.total)} found${found.others ? `, ${number(found.others)} more topics` : ""}`;
      } catch (error) {
        if (mine === this.asked) this.total.textContent = error.message;
      }
    },
  };
}

const cell = (text, kind = "") => element("td", { class: kind }, text ?? "");

function nameOf(id) {
  return state.topology?.brokers.find((broker) => broker.id === id)?.name || id;
}

async function change(list, question, path, method) {
  if (!(await confirmed(question))) return;
  try {
    await ask(path, method);
  } catch (error) {
    await tell("Refused", element("p", {}, error.message));
  }
  list.find();
}

const clients = lists({
  title: "Clients", path: "/clients", rows: "clients",
  extra: [["state", ["all", "connected", "disconnected"]]],
  columns: ["client", "broker", "state", "user", "address", "MQTT", "#subscr.", "#queued", "#in flight", ""],
  row(client, list) {
    const id = encodeURIComponent(client.id);
    const buttons = [];
    const button = (text, kind, act) => {
      const made = element("button", { type: "button", class: kind }, text);
      made.addEventListener("click", act);
      buttons.push(made);
    };
    if (client.here) {
      button("Details", "", () => clientDetails(client));
      if (client.connected) button("Disconnect", "danger", () => change(list, `Disconnect ${client.id}?`, `/clients/${id}/disconnect`, "POST"));
      button("End session", "danger", () => change(list, `Disconnect ${client.id} and end its session? Its queued messages are lost.`, `/clients/${id}`, "DELETE"));
    }
    return element("tr", {}, cell(client.id), cell(nameOf(client.broker)),
      cell(client.here ? (client.connected ? "connected" : "away") : "elsewhere", client.connected ? "good" : "soft"),
      cell(client.user), cell(client.address), cell(client.mqtt), cell(number(client.subscriptions), "number"),
      cell(number(client.queued), "number"), cell(number(client.in_flight), "number"), element("td", {}, ...buttons));
  },
});

async function clientDetails(client) {
  const found = await ask(`/clients/${encodeURIComponent(client.id)}/subscriptions`).catch((error) => ({ subscriptions: [], error: error.message }));
  const facts = Object.entries(client).map(([name, value]) => element("tr", {}, element("th", {}, name), cell(String(value ?? ""))));
  const rows = found.subscriptions.map((each) => element("tr", {}, cell(each.filter), cell(String(each.qos), "number")));
  await tell(client.id, table(["", ""], facts), element("h2", {}, "Subscriptions"), table(["filter", "#QoS"], rows));
}

const topics = lists({
  title: "Topics", path: "/topics", rows: "topics", columns: ["topic", "#messages /s", "#receivers here"],
  row: (topic) => element("tr", {}, cell(topic.topic), cell(count(topic.per_s), "number"), cell(number(topic.receivers), "number")),
});

const retained = lists({
  title: "Retained", path: "/retained", rows: "retained", extra: [["filter", "topic filter (#)"]],
  columns: ["topic", "#QoS", "#bytes", "#expires (s)", ""],
  row(message) {
    const show = element("button", { type: "button" }, "Show");
    show.addEventListener("click", async () => {
      const found = await ask(`/retained/${encodeURIComponent(message.topic)}`).catch((error) => ({ text: error.message, whole: true }));
      await tell(message.topic, element("pre", {}, found.text ?? found.base64), found.whole ? "" : element("p", {}, "The first 65,536 bytes."));
    });
    return element("tr", {}, cell(message.topic), cell(String(message.qos), "number"), cell(number(message.bytes), "number"),
      cell(message.expires_s === null ? "" : number(Math.round(message.expires_s)), "number"), element("td", {}, show));
  },
});

const subscriptions = lists({
  title: "Subscriptions", path: "/subscriptions", rows: "subscriptions", columns: ["filter", "client", "#QoS"],
  row: (each) => element("tr", {}, cell(each.filter), cell(each.client), cell(String(each.qos), "number")),
});

const groups = lists({
  title: "Groups", path: "/groups", rows: "groups", columns: ["shared subscription", "#members here", "#connected"],
  row: (each) => element("tr", {}, cell(each.filter), cell(number(each.members), "number"), cell(number(each.connected), "number")),
});

const routes = lists({
  title: "Routes", path: "/routes", rows: "routes", columns: ["filter", "wanted by", "through"],
  row: (each) => element("tr", {}, cell(each.filter), cell(nameOf(each.broker)), cell(each.via === null ? "no path" : nameOf(each.via))),
});

// ---------------------------------------------------------------- console

const consoleView = {
  title: "Console",
  show(root) {
    const field = (name, value, more = {}) => element("input", { "aria-label": name, placeholder: name, value, ...more });
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    const where = field("WebSocket listener", `${scheme}://${location.hostname}:8083/mqtt`, { size: 30 });
    const user = field("user", ""), password = field("password", "", { type: "password", autocomplete: "off" });
    const filter = field("topic filter", "#"), topic = field("topic", "try/this"), payload = field("message", "hello");
    const connect = element("button", { type: "submit" }, "Connect");
    const said = element("span", { role: "status", class: "soft" }, "not connected");
    const log = element("tbody");
    const line = (name, text) => {
      log.prepend(element("tr", {}, cell(time(Date.now() / 1000), "soft"), cell(name), cell(text)));
      while (log.children.length > 200) log.lastChild.remove();
    };
    const form = (act, ...parts) => {
      const made = element("form", { class: "bar" }, ...parts);
      made.addEventListener("submit", (event) => { event.preventDefault(); act(); });
      return made;
    };
    const shown = table(["time", "topic", "message"], []);
    shown.lastChild.replaceWith(log);
    root.append(element("div", { class: "card" },
      form(() => {
        this.socket?.close();
        try {
          this.socket = new MqttSocket(where.value, { user: user.value, password: password.value, said: (text) => { said.textContent = visible(text); }, message: line });
        } catch (error) { said.textContent = visible(error.message); }
      }, where, user, password, connect, said),
      form(() => this.socket?.subscribe(filter.value), filter, element("button", { type: "submit" }, "Subscribe")),
      form(() => this.socket?.publish(topic.value, payload.value), topic, payload, element("button", { type: "submit" }, "Publish")),
      element("p", { class: "soft" }, "It connects to a listener of the type ws or wss of any broker, as a client of its own."), shown));
  },
  hide() { this.socket?.close(); this.socket = null; },
};

// ---------------------------------------------------------------- dialogs, views, keys

function tell(title, ...parts) {
  const close = element("button", { type: "button", autofocus: "" }, "Close");
  close.addEventListener("click", () => $("dialog").close());
  $("dialog").replaceChildren(element("h2", {}, title), ...parts, close);
  return open();
}

async function confirmed(question) {
  const yes = element("button", { type: "button", class: "danger" }, "Yes");
  const no = element("button", { type: "button", autofocus: "" }, "No");
  yes.addEventListener("click", () => $("dialog").close("yes"));
  no.addEventListener("click", () => $("dialog").close("no"));
  $("dialog").replaceChildren(element("p", {}, question), yes, " ", no);
  return (await open()) === "yes";
}

function open() {
  const dialog = $("dialog");
  dialog.returnValue = "";
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue), { once: true });
    dialog.showModal();
  });
}

const views = { overview, clients, topics, retained, subscriptions, groups, routes, console: consoleView };

function go(name) {
  if (!views[name]) name = "overview";
  views[state.view].hide?.();
  state.view = name;
  for (const tab of $("tabs").children) tab.setAttribute("aria-selected", String(tab.dataset.view === name));
  $("view").replaceChildren();
  views[name].show($("view"));
}

Object.entries(views).forEach(([name, view], at) => {
  const tab = element("button", { type: "button", role: "tab", "data-view": name, title: `Key ${at + 1}` }, view.title);
  tab.addEventListener("click", () => { location.hash = name; });
  $("tabs").append(tab);
});

addEventListener("hashchange", () => { if (!$("view").hidden) go(location.hash.slice(1)); });
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, dialog")) return;
  if (event.key === "/") { event.preventDefault(); document.querySelector("#view input[type=search]")?.focus(); }
  if (event.key === "d") theme();
  const name = Object.keys(views)[Number(event.key) - 1];
  if (name) location.hash = name;
});

function theme() {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset.theme ?? (dark ? "dark" : "light");
  document.documentElement.dataset.theme = now === "dark" ? "light" : "dark";
  localStorage.setItem("theme", document.documentElement.dataset.theme);
}
$("theme").addEventListener("click", theme);
if (localStorage.getItem("theme")) document.documentElement.dataset.theme = localStorage.getItem("theme");

// A link may bring the token behind "#token=": that part of an address is never sent anywhere.
if (location.hash.startsWith("#token=")) {
  sessionStorage.setItem("token", decodeURIComponent(location.hash.slice(7)));
  history.replaceState(null, "", "/");
}
state.token = sessionStorage.getItem("token") ?? "";

async function start() {
  try {
    await poll();
  } catch (error) {
    if (error.status === 401) return;
    connected(error.message, true);
  }
  go(location.hash.slice(1) || "overview");
  read();
}
start();
