// As much of MQTT 5 over WebSocket as the console needs. It says why something failed, in the words of the standard.

const encoder = new TextEncoder(), decoder = new TextDecoder();
const KEEP_ALIVE = 30;
// Chapters 4.7 and 4.8.2 of the standard.
export const TOPIC = /^[^+#\0]+$/, FILTER = /^(?:\$share\/[^/+#\0]+\/|(?!\$share\/))(?=.)(?:(?:[^/+#\0]*|\+)\/)*(?:[^/+#\0]*|[+#])$/s;
const REASONS = {
  0x81: "malformed packet", 0x82: "protocol error", 0x85: "client identifier not valid", 0x86: "wrong user name or password", 0x87: "not authorized",
  0x88: "server unavailable", 0x8b: "server shutting down", 0x8f: "topic filter invalid", 0x90: "topic name invalid", 0x97: "quota exceeded", 0x98: "disconnected by an operator",
};

function text(value) {
  const found = encoder.encode(value);
  return [found.length >> 8, found.length & 255, ...found];
}

function varint(value) {
  const found = [];
  do {
    found.push((value & 127) | (value > 127 ? 128 : 0));
    value >>= 7;
  } while (value);
  return found;
}

function packet(first, body) {
  return new Uint8Array([first, ...varint(body.length), ...body]);
}

function readVarint(data, at) {
  let size = 0, shift = 0;
  for (; at < data.length; at += 1, shift += 7) {
    size |= (data[at] & 127) << shift;
    if (!(data[at] & 128)) return [size, at + 1];
  }
  return null;
}

// Where what follows the properties at `at` begins.
function behind(data, at) {
  const [size, begin] = readVarint(data, at) ?? [0, data.length];
  return begin + size;
}

const reason = (code) => `${REASONS[code] ?? "refused"} (0x${code.toString(16)})`;

export class MqttSocket {
  // `said`: takes the state and whether that is an error; `message`: takes each message; `closed`: is called at the end, with
  // whether the connection was ever open.
  constructor(url, { user, password, said, message, closed }) {
    Object.assign(this, { said, message, bytes: new Uint8Array(), number: 0, asked: new Map(), why: "", opened: false });
    this.socket = new WebSocket(url, "mqtt");
    this.socket.binaryType = "arraybuffer";
    this.socket.onopen = () => {
      this.opened = true;
      const flags = 2 | (user ? 128 : 0) | (password ? 64 : 0);
      const id = `dashboard-${crypto.getRandomValues(new Uint32Array(1))[0].toString(16)}`;
      this.send(packet(0x10, [...text("MQTT"), 5, flags, 0, KEEP_ALIVE, 0, ...text(id), ...(user ? text(user) : []), ...(password ? text(password) : [])]));
      this.timer = setInterval(() => this.send(packet(0xc0, [])), KEEP_ALIVE * 500);
    };
    this.socket.onmessage = (event) => this.take(new Uint8Array(event.data));
    this.socket.onclose = (event) => {
      clearInterval(this.timer);
      const why = this.why || (this.opened && !this.ended ? `the broker closed the connection: ${event.code} ${event.reason}` : "");
      said(why || "not connected", Boolean(why));
      closed(this.opened);
    };
  }

  send(data) {
    if (this.socket.readyState === WebSocket.OPEN) this.socket.send(data);
  }

  take(data) {
    const all = new Uint8Array(this.bytes.length + data.length);
    all.set(this.bytes);
    all.set(data, this.bytes.length);
    let at = 0;
    while (at < all.length) {
      const [size, head] = readVarint(all, at + 1) ?? [0, Infinity];
      if (head + size > all.length) break;
      this.handle(all[at], all.subarray(head, head + size));
      at = head + size;
    }
    this.bytes = all.slice(at);
  }

  handle(first, body) {
    const kind = first >> 4, id = [body[0], body[1]];
    if (kind === 2 || kind === 14) this.state(kind, body);
    else if (kind === 3) this.publication(first, body);
    // PUBREC: the second half of QoS 2, unless the message was refused. PUBREL: its end for what comes here.
    else if (kind === 5 && !(body[2] >= 0x80)) this.send(packet(0x62, id));
    else if (kind === 6) this.send(packet(0x70, id));
    else if (kind !== 13) this.answered(kind, body);
  }

  state(kind, body) {
    const code = body[kind === 2 ? 1 : 0] ?? 0;
    if (code < 0x80) return kind === 2 && this.said("connected");
    this.why = `${kind === 2 ? "refused" : "closed by the broker"}: ${reason(code)}`;
    return this.said(this.why, true);
  }

  answered(kind, body) {
    const number = (body[0] << 8) | body[1], what = this.asked.get(number) ?? "done";
    this.asked.delete(number);
    const code = (kind === 9 || kind === 11 ? body[behind(body, 2)] : body[2]) ?? 0;
    const about = kind === 9 ? `${what} at QoS ${code}` : code === 0x10 ? `${what}, no subscriber` : what;
    this.said(code >= 0x80 ? `${what}: ${reason(code)}` : about, code >= 0x80);
  }

  publication(first, body) {
    const qos = (first >> 1) & 3, length = (body[0] << 8) | body[1];
    const at = 2 + length, id = [body[at], body[at + 1]];
    const begin = behind(body, at + (qos ? 2 : 0));
    if (qos) this.send(packet(qos === 1 ? 0x40 : 0x50, id));
    this.message(decoder.decode(body.subarray(2, at)), qos, Boolean(first & 1), decoder.decode(body.subarray(begin, begin + 4096)));
  }

  next(what) {
    this.number = (this.number % 65535) + 1;
    this.asked.set(this.number, what);
    return [this.number >> 8, this.number & 255];
  }

  subscribe(filter, qos) {
    this.send(packet(0x82, [...this.next(`subscribed to ${filter}`), 0, ...text(filter), qos]));
  }

  unsubscribe(filter) {
    this.send(packet(0xa2, [...this.next(`unsubscribed from ${filter}`), 0, ...text(filter)]));
  }

  publish(topic, payload, qos, retain) {
    const id = qos ? this.next(`published to ${topic} at QoS ${qos}`) : [];
    this.send(packet(0x30 | (qos << 1) | (retain ? 1 : 0), [...text(topic), ...id, 0, ...encoder.encode(payload)]));
    if (!qos) this.said(`published to ${topic} at QoS 0`);
  }

  close() {
    this.ended = true;
    this.send(packet(0xe0, []));
    this.socket.close();
  }
}
