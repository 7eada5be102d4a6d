// Tables with a search: clients, topics, messages that are retained, and where they go.
import { ask, choices, heard, nameOf, state, unheard } from "/dashboard/api.js";
import { change, tell } from "/dashboard/dialog.js";
import { button, bytes, card, count, element, facts, label, named, number, row, select, table } from "/dashboard/parts.js";

// `fields`: returns further fields by parameter; `cells`: of a row, and its class, which may be left out.
function lists({ title, path, rows, columns, cells, fields = () => ({}) }) {
  return {
    title,
    show(root) {
      this.search = element("input", { type: "search", placeholder: "Search ( / )", "aria-label": "Search" });
      this.fields = fields();
      this.body = element("tbody");
      this.total = element("span", { class: "soft", role: "status" });
      this.more = button("More", () => this.find(this.next), "", { hidden: "" });
      const form = element("form", { class: "bar" }, this.search, ...Object.values(this.fields), element("button", { type: "submit" }, "Find"), this.total);
      form.addEventListener("submit", (event) => { event.preventDefault(); this.find(); });
      this.search.addEventListener("input", () => { clearTimeout(this.wait); this.wait = setTimeout(() => this.find(), 300); });
      Object.values(this.fields).forEach((field) => field.addEventListener("change", () => this.find()));
      root.append(card(form, table(columns, [], this.body), this.more));
      this.find();
    },
    hide() { clearTimeout(this.wait); },
    async find(after = "") {
      const mine = (this.asked = (this.asked ?? 0) + 1);
      const query = { search: this.search.value, limit: 100, after };
      for (const [name, field] of Object.entries(this.fields)) query[name] = field.value;
      const found = await ask(path, "GET", query).catch((error) => ({ error }));
      if (mine !== this.asked) return;
      if (!after) this.body.replaceChildren();
      this.next = found.next ?? (found.error && after);
      this.more.hidden = !this.next;
      if (found.error) { this.total.textContent = found.error.message; return; }
      Object.assign(state.names, found.names);
      this.body.append(...found[rows].map((each) => row(columns, ...cells(each, this))));
      const lost = unheard(found);
      this.total.textContent = `${number(found.total)} found${found.others ? `, ${number(found.others)} more topics` : ""}${lost && `; ${lost}`}${found.silent?.length ? ": rows in italics are as last known" : ""}`;
    },
  };
}

const filter = () => ({ filter: element("input", { "aria-label": "Topic filter", placeholder: "topic filter (#)" }) });
const at = () => ({ at: select("Broker", choices()) });

const CLIENTS = ["client", "broker", "state", "user", "address", "-listener", "-MQTT", "#-keep alive", "#subscr.", "#queued", "#-in flight", "#-dropped", ""];

// What is known of a client, by columns and in its details.
function known(client) {
  const { connected, expiry_s: expiry, keep_alive_s: keepAlive } = client;
  return {
    broker: nameOf(client.broker), state: `${connected === null ? "not known" : connected ? "connected" : "away"}${client.stale ? ", stale" : ""}`, user: client.user,
    address: client.address, listener: client.listener, MQTT: client.mqtt, "keep alive": keepAlive === null ? "" : `${number(keepAlive)} s`, "subscr.": number(client.subscriptions),
    queued: number(client.queued), "queued size": bytes(client.queued_bytes), "in flight": number(client.in_flight), dropped: number(client.dropped),
    "session ends": expiry === null ? "" : expiry < 0 ? "never" : `${number(expiry)} s after its connection`,
  };
}

const clients = lists({
  title: "Clients", path: "/clients", rows: "clients",
  fields: () => ({ state: select("State", ["all", "connected", "disconnected"].map((each) => [each, each])), broker: select("Broker", choices("all brokers")) }),
  columns: CLIENTS,
  cells(client, list) {
    const { id, broker, stale } = client, act = client.connected && !stale, its = known(client);
    const disconnect = async () => (await change(`Disconnect ${id}?`, "Disconnect", `/clients/${encodeURIComponent(id)}/disconnect`, "POST", broker)) && list.find();
    const cells = CLIENTS.slice(1, -1).map(label).map((name) => named(its[name], name !== "state" ? "" : act ? "good" : "soft"));
    return [[named(id, "", () => clientDetails(client, list)), ...cells, element("td", { class: "acts" }, act ? button("Disconnect", disconnect, "danger") : [])], stale ? "stale" : ""];
  },
});

async function clientDetails(client, list) {
  const path = `/clients/${encodeURIComponent(client.id)}`, columns = ["filter", "#QoS"], none = client.connected === null ? "not known" : "none";
  const found = client.stale ? { error: "its broker does not answer: all is as last known" } : await ask(`${path}/subscriptions`, "GET", { at: client.broker }).catch((error) => ({ error: error.message }));
  const end = await tell(client.id, [facts(Object.entries(known(client)).map(([name, value]) => [name.replace("subscr.", "subscriptions"), value || none])), element("h2", {}, "Subscriptions"),
    found.error ? element("p", { class: "error" }, found.error) : table(columns, found.subscriptions.map((each) => row(columns, [named(each.filter), String(each.qos)])))], found.error ? "" : "End session");
  if (end && await change(`Disconnect ${client.id} and end its session? Its queued messages are lost.`, "End session", path, "DELETE", client.broker)) list.find();
}

const topics = lists({
  title: "Topics", path: "/topics", rows: "topics", fields: () => ({ ...at(), ...filter() }), columns: ["topic", "#messages /s", "#receivers there"],
  cells: (topic) => [[named(topic.topic), count(topic.per_s), number(topic.receivers)]],
});

const retained = lists({
  title: "Retained", path: "/retained", rows: "retained", columns: ["topic", "#QoS", "#bytes", "#expires (s)", ""],
  fields: filter,
  cells(message) {
    const show = button("Show", async () => {
      const found = await ask(`/retained/${encodeURIComponent(message.topic)}`).catch((error) => ({ text: error.message, whole: true }));
      await tell(message.topic, [element("pre", {}, found.text ?? found.base64), found.whole ? "" : element("p", {}, "The first 65,536 bytes.")]);
    });
    return [[named(message.topic), String(message.qos), number(message.bytes), message.expires_s === null ? "" : number(Math.round(message.expires_s)), element("td", { class: "acts" }, show)]];
  },
});

const subscriptions = lists({
  title: "Subscriptions", path: "/subscriptions", rows: "subscriptions", fields: at, columns: ["filter", "client", "#QoS"],
  cells: (each) => [[named(each.filter), named(each.client), String(each.qos)]],
});

const groups = lists({
  title: "Groups", path: "/groups", rows: "groups", fields: at, columns: ["shared subscription", "#members there", "#connected"],
  cells: (each) => [[named(each.filter), number(each.members), number(each.connected)]],
});

const routes = lists({
  title: "Routes", path: "/routes", rows: "routes", columns: ["filter", "wanted by", "through"],
  cells: (each) => [[named(each.filter), named(nameOf(each.broker)), named(each.via === null ? "no path" : nameOf(each.via))]],
});

const LISTENERS = ["broker", "listener", "type", "address", "#connections", "#at most", "#waiting"];
const LEGS = ["broker", "leg", "to", "state", "#queued", "#in", "#out", "#dropped"];

// Where clients come in, and legs to brokers of other federations, of all brokers.
const listeners = {
  title: "Listeners",
  async show(root) {
    const said = element("p", { class: "soft", role: "status" }), body = element("tbody"), legs = element("tbody");
    root.append(card(element("h2", {}, "Listeners"), said, table(LISTENERS, [], body)),
      element("div", { class: "card", id: "legs" }, element("h2", {}, "Legs"), table(LEGS, [], legs)));
    try {
      const [found, others] = await Promise.all(["/listeners", "/legs"].map((path) => ask(path, "GET", { at: "all" })));
      const each = (answers, rows) => heard(answers).flatMap(({ broker, answer }) => answer[rows].map((it) => [nameOf(broker), it]))
        .sort(([a], [b]) => a.localeCompare(b));
      said.textContent = unheard(found);
      body.replaceChildren(...each(found, "listeners").map(([broker, it]) => row(LISTENERS, [named(broker), named(it.name),
        `${it.type}${it.tls ? " with TLS" : ""}`, named(it.address), number(it.connections), it.max_connections ? number(it.max_connections) : "any number", number(it.waiting)])));
      const its = each(others, "legs").map(([broker, leg]) => row(LEGS, [named(broker), named(leg.name), named(leg.broker),
        named(leg.state === "up" || !leg.last_error ? leg.state : `${leg.state}: ${leg.last_error}`, leg.state === "up" ? "good" : "warning"), number(leg.queued),
        number(leg.messages_in), number(leg.messages_out), number(Object.values(leg.dropped).reduce((total, value) => total + value, 0))]));
      if (its.length) legs.replaceChildren(...its);
      else root.querySelector("#legs").replaceChildren(element("h2", {}, "Legs"), element("p", { class: "soft" }, "none: no broker has a leg to a broker of another maker"));
    } catch (error) {
      said.textContent = error.message;
    }
  },
};

export const views = { clients, topics, retained, subscriptions, groups, routes, listeners };
