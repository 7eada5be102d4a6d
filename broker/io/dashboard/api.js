// Requests to /api/v1, and what has come of it.

export const state = { topology: null, changes: [], token: "", refused: () => {} };

export class Refused extends Error {
  constructor(status, text) { super(text); this.status = status; }
}

export function headers() {
  return state.token ? { Authorization: `Bearer ${state.token}` } : {};
}

export async function ask(path, method = "GET", query = {}) {
  const fields = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== ""));
  const answer = await fetch(`/api/v1${path}${fields.size ? `?${fields}` : ""}`, { method, headers: headers() });
  if (answer.status === 401) {
    state.refused();
    throw new Refused(401, "the token is missing or wrong");
  }
  const content = await answer.json().catch(() => ({ error: `status ${answer.status}` }));
  if (!answer.ok) throw new Refused(answer.status, content.error || `status ${answer.status}`);
  return content;
}

export const brokers = () => state.topology?.brokers ?? [];

export function nameOf(id) {
  return brokers().find((broker) => broker.id === id)?.name || id;
}

// Choices for a field that names a broker.
export function choices(first) {
  return [["", first], ...brokers().filter((broker) => broker.reachable && !(first.startsWith("at ") && broker.here)).map((broker) => [broker.id, `at ${broker.name || broker.id}`])];
}

export const here = () => `at ${brokers().find((broker) => broker.here)?.name ?? "this broker"}`;
