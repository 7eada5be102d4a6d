// The dashboard: views of /api/v1. Texts of clients never become HTML: elements are made one by one.
import { ask, headers, nameOf, state } from "/dashboard/api.js";
import { consoleView } from "/dashboard/console.js";
import { views as lists } from "/dashboard/lists.js";
import { overview } from "/dashboard/overview.js";
import { button, visible } from "/dashboard/parts.js";

const $ = (id) => document.getElementById(id);
const POLL = 5000;
const views = { overview, ...lists, console: consoleView() };
let view = "overview";

state.refused = () => {
  $("login").hidden = false;
  $("view").hidden = true;
  $("token").focus();
};

$("login").addEventListener("submit", (event) => {
  event.preventDefault();
  state.token = $("token").value.trim();
  sessionStorage.setItem("token", state.token);
  $("login").hidden = true;
  $("view").hidden = false;
  start();
});

let reading = 0;

async function read() {
  const mine = ++reading;
  while (mine === reading) {
    let pause = 3000;
    try {
      const answer = await fetch("/api/v1/events", { headers: headers() });
      if (answer.status === 401) return state.refused();
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
  return undefined;
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
    for (const broker of data.brokers) state.names[broker.id] = broker.name ||= broker.id;
    $("broker").textContent = $("broker").title = visible(`${nameOf(data.here)} · ${data.cluster}`);
  }
  views[view].update?.(kind);
}

function connected(text, lost) {
  $("connection").textContent = text;
  $("connection").classList.toggle("lost", lost);
}

function go(name) {
  if (!views[name]) name = "overview";
  views[view].hide?.();
  view = name;
  for (const tab of $("tabs").children) {
    tab.setAttribute("aria-selected", String(tab.dataset.view === name));
    if (tab.dataset.view === name) tab.scrollIntoView({ block: "nearest", inline: "center" });
  }
  $("view").replaceChildren();
  views[name].show($("view"));
}

Object.entries(views).forEach(([name, each], at) => {
  $("tabs").append(button(each.title, () => { location.hash = name; }, "", { role: "tab", "data-view": name, title: `Key ${at + 1}` }));
});

// Tabs that lie outside fade away at that side.
function fade() {
  const tabs = $("tabs"), left = tabs.scrollLeft, right = tabs.scrollWidth - tabs.clientWidth - left;
  tabs.style.cssText = `--before: ${Math.min(left, 45)}px; --after: ${Math.min(right, 45)}px`;
}
$("tabs").addEventListener("scroll", fade);
new ResizeObserver(fade).observe($("tabs"));

addEventListener("hashchange", () => { if (!$("view").hidden) go(location.hash.slice(1)); });
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, dialog")) return;
  if (event.key === "/") { event.preventDefault(); document.querySelector("#view input[type=search]")?.focus(); }
  if (event.key === "d") theme();
  const name = Object.keys(views)[Number(event.key) - 1];
  if (name) location.hash = name;
});

const look = document.documentElement.dataset, chosen = localStorage.getItem("theme");
if (chosen) look.theme = chosen;
function theme() {
  const dark = look.theme ? look.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  localStorage.setItem("theme", look.theme = dark ? "light" : "dark");
}
$("theme").addEventListener("click", theme);

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
