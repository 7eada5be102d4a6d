// Requests to /api/v1, and what has come of it.

export const state = { topology: null, changes: [], names: {}, token: "", refused: () => {} };

export function headers() {
  return state.token ? { Authorization: `Bearer ${state.token}` } : {};
}

export async function ask(path, method = "GET", query = {}) {
  const fields = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== ""));
  const answer = await fetch(`/api/v1${path}${fields.size ? `?${fields}` : ""}`, { method, headers: headers() });
  if (answer.status === 401) state.refused();
  const content = await answer.json().catch(() => ({}));
  if (!answer.ok) throw Object.assign(new Error(content.error || `status ${answer.status}`), { status: answer.status });
  return content;
}

export const brokers = () => state.topology?.brokers ?? [];
export const reachable = () => brokers().filter((broker) => broker.reachable);
export const nameOf = (id) => state.names[id] || id;

// The answers of those brokers that were asked and have answered.
export const heard = (found) => found.brokers.filter(({ status }) => status === 200);

// Names the brokers that have no part in an answer, whether they were asked or cannot be reached.
export function unheard(found) {
  const there = found.brokers ? heard(found).map(({ broker }) => broker) : reachable().map(({ id }) => id);
  const away = brokers().map(({ id }) => id).filter((id) => !there.includes(id));
  const names = [...new Set([...away, ...(found.silent ?? [])])].map(nameOf).sort();
  return names.length ? `no answer of ${names.join(", ")}` : "";
}

// Choices for a field that names a broker: this one, or `all`, and the others.
export function choices(all) {
  return [["", all ?? `at ${nameOf(state.topology?.here) ?? "this broker"}`], ...reachable().filter(({ here }) => all || !here).map(({ id, name }) => [id, `at ${name}`])];
}
