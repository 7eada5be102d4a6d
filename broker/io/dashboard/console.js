// A client of MQTT in the page, for trying: it connects to a WebSocket listener of any broker, as a client of its own.
import { ask, brokers, heard, nameOf, unheard } from "/dashboard/api.js";
import { FILTER, MqttSocket, TOPIC } from "/dashboard/mqtt.js";
import { button, card, element, named, row, select, table, time, visible } from "/dashboard/parts.js";

const COLUMNS = ["time", "topic", "#QoS", "", "message"];
const OTHER = "another address";
const LOOPBACK = /^(127\.|localhost$|::1$|\[::1\]$)/;

export function consoleView() {
  let socket = null, listeners = [];

  // The addresses under which a browser may reach the WebSocket listeners.
  async function find() {
    const found = await ask("/listeners", "GET", { at: "all" });
    listeners = heard(found).flatMap(({ broker, answer }) => {
      const its = brokers().find(({ id }) => id === broker);
      return answer.listeners.filter(({ type, address }) => type === "ws" && !address.startsWith("unix:")).map((listener) => {
        const at = listener.address.lastIndexOf(":"), bound = listener.address.slice(0, at), any = bound === "0.0.0.0" || bound === "[::]";
        const told = its?.address.replace(/:\d+$/, "") ?? "";
        const host = !any ? bound : its?.here || !told || LOOPBACK.test(told) ? location.hostname : told;
        return { ...listener, bound, broker: nameOf(broker), url: `${listener.tls ? "wss" : "ws"}://${host}${listener.address.slice(at)}/mqtt` };
      });
    });
    return unheard(found);
  }

  // Browsers do not say why a connection failed; the broker knows what it listens on.
  async function why(url) {
    await find().catch(() => {});
    const it = listeners.find((each) => each.url === url);
    if (!it) return `no broker of this federation says that it has a WebSocket listener at ${url}, and nothing answers there as one`;
    if (it.max_connections && it.connections >= it.max_connections) return `all ${it.max_connections} places of ${it.broker}'s listener ${it.name} are taken`;
    const local = LOOPBACK.test(it.bound) && !LOOPBACK.test(location.hostname);
    return `${it.broker} listens there, but this browser does not reach it: ${local ? `${it.bound} is for the broker's own machine`
      : it.tls ? `perhaps it does not trust the certificate; open ${url.replace("wss:", "https:")} to see` : "a firewall, or the address leads elsewhere"}`;
  }

  return {
    title: "Console",
    show(root) {
      const field = (name, value, more = {}) => element("input", { "aria-label": name, placeholder: name, value, ...more });
      const qos = (what) => select(`QoS of ${what}`, [0, 1, 2].map((level) => [String(level), `QoS ${level}`]));
      const offered = select("WebSocket listener", [[OTHER, "looking for listeners"]]);
      const where = field("address", `${location.protocol === "https:" ? "wss" : "ws"}://${location.hostname}:8083/mqtt`, { hidden: "" });
      const user = field("user", "", { autocomplete: "off" }), password = field("password", "", { type: "password", autocomplete: "off" });
      const filter = field("topic filter", "#"), topic = field("topic", "try/this"), payload = field("message", "hello");
      const wantedQos = qos("the subscription"), sentQos = qos("the message"), retain = element("input", { type: "checkbox" });
      const said = element("p", { role: "status", class: "soft" }, "not connected");
      const connect = element("button", { type: "submit" }, "Connect"), body = element("tbody"), filters = element("div", { class: "bar" });
      const acts = [element("button", { type: "submit", disabled: "" }, "Subscribe"), element("button", { type: "submit", disabled: "" }, "Publish")];
      const say = (text, wrong = false) => { said.textContent = visible(text); said.className = wrong ? "error" : "soft"; };
      const open = (on) => { acts.forEach((each) => { each.disabled = !on; }); connect.textContent = on ? "Disconnect" : "Connect"; };
      const message = (name, level, retained, text) => {
        body.prepend(row(COLUMNS, [time(Date.now() / 1000), named(name), String(level), retained ? "retained" : "", named(text)]));
        while (body.children.length > 200) body.lastChild.remove();
      };
      const form = (act, ...parts) => {
        const made = element("form", { class: "bar" }, ...parts);
        made.addEventListener("submit", (event) => { event.preventDefault(); act(); });
        return made;
      };
      offered.addEventListener("change", () => { where.hidden = offered.value !== OTHER; });

      const dial = () => {
        if (connect.textContent === "Disconnect") return socket.close();
        socket?.close();
        const url = offered.value === OTHER ? where.value.trim() : offered.value;
        if (!/^wss?:\/\//i.test(url)) return say("the address must begin with ws:// or wss://", true);
        if (location.protocol === "https:" && url.startsWith("ws:")) return say("this page came over TLS: the browser lets it connect to wss:// addresses only", true);
        filters.replaceChildren();
        say("connecting");
        try {
          const mine = socket = new MqttSocket(url, {
            user: user.value, password: password.value, message,
            said: (text, wrong) => { if (mine === socket) { say(text, wrong); if (text === "connected") open(true); } },
            closed: async (opened) => {
              if (mine !== socket) return;
              open(false);
              filters.replaceChildren();
              if (!opened) say(await why(url), true);
            },
          });
        } catch (error) { say(error.message, true); }
        return undefined;
      };
      // The broker would close the connection.
      const wrong = (name, right, kind) => !right.test(name) && !say(`${name || "an empty text"} is no topic ${kind}`, true);
      const publish = () => wrong(topic.value, TOPIC, "name") || socket.publish(topic.value, payload.value, Number(sentQos.value), retain.checked);
      const subscribe = () => {
        const name = filter.value;
        if (wrong(name, FILTER, "filter")) return;
        socket.subscribe(name, Number(wantedQos.value));
        [...filters.children].find((each) => each.dataset.filter === name)?.remove();
        filters.append(button(`${name} ×`, (event) => { socket.unsubscribe(name); event.target.remove(); }, "", { "aria-label": `Unsubscribe from ${visible(name)}`, "data-filter": name }));
      };
      root.append(card(
        form(dial, offered, where, user, password, connect), said,
        form(subscribe, filter, wantedQos, acts[0]), filters,
        form(publish, topic, payload, sentQos, element("label", {}, retain, " retain"), acts[1]),
        table(COLUMNS, [], body)));
      find().then((lost) => {
        offered.replaceChildren(...listeners.map((each) => element("option", { value: each.url }, `${each.broker}: ${each.url}`)), element("option", { value: OTHER }, OTHER));
        where.hidden = offered.value !== OTHER;
        const known = listeners.length ? said.textContent : "No broker has a WebSocket listener: the console needs one of the type ws (listeners: {web: {type: ws, bind: '0.0.0.0:8083'}})";
        say(known + (lost && `; ${lost}`));
      }).catch((error) => say(error.message, true));
    },
    hide() { socket?.close(); socket = null; },
  };
}
