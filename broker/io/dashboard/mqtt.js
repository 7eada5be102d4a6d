// As much of MQTT 3.1.1 over WebSocket as the console needs: QoS 0.

const encoder = new TextEncoder();
const KEEP_ALIVE = 30;

function text(value) {
  const found = encoder.encode(value);
  return [found.length >> 8, found.length & 255, ...found];
}

function packet(first, body) {
  const length = [];
  let left = body.length;
  do {
    length.push((left & 127) | (left > 127 ? 128 : 0));
    left >>= 7;
  } while (left);
  return new Uint8Array([first, ...length, ...body]);
}

export class MqttSocket {
  constructor(url, { user, password, said, message }) {
    this.said = said;
    this.message = message;
    this.bytes = new Uint8Array();
    this.number = 0;
    this.socket = new WebSocket(url, "mqtt");
    this.socket.binaryType = "arraybuffer";
    this.socket.onopen = () => {
      const flags = 2 | (user ? 128 : 0) | (user && password ? 64 : 0);
      const id = `dashboard-${crypto.getRandomValues(new Uint32Array(1))[0].toString(16)}`;
      this.send(packet(0x10, [...text("MQTT"), 4, flags, 0, KEEP_ALIVE, ...text(id), ...(user ? text(user) : []), ...(user && password ? text(password) : [])]));
      this.timer = setInterval(() => this.send(packet(0xc0, [])), KEEP_ALIVE * 500);
    };
    this.socket.onmessage = (event) => this.take(new Uint8Array(event.data));
    this.socket.onclose = () => { clearInterval(this.timer); said("not connected"); };
    this.socket.onerror = () => said(`no listener of this type answers at ${url}`);
    said("connecting");
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
      let size = 0, shift = 0, head = at + 1;
      while (head < all.length && all[head] & 128) { size |= (all[head] & 127) << shift; shift += 7; head += 1; }
      if (head >= all.length) break;
      size |= all[head] << shift;
      head += 1;
      if (head + size > all.length) break;
      this.handle(all[at], all.subarray(head, head + size));
      at = head + size;
    }
    this.bytes = all.slice(at);
  }

  handle(first, body) {
    const decoder = new TextDecoder();
    if (first >> 4 === 2) this.said(body[1] ? `refused: code ${body[1]}` : "connected");
    if (first >> 4 === 9) this.said(body[2] === 0x80 ? "the subscription was refused" : "subscribed");
    if (first >> 4 === 3) {
      const length = (body[0] << 8) | body[1];
      this.message(decoder.decode(body.subarray(2, 2 + length)), decoder.decode(body.subarray(2 + length, 2 + length + 4096)));
    }
  }

  subscribe(filter) {
    this.number = (this.number % 65535) + 1;
    this.send(packet(0x82, [this.number >> 8, this.number & 255, ...text(filter), 0]));
  }

  publish(topic, payload) {
    this.send(packet(0x30, [...text(topic), ...encoder.encode(payload)]));
  }

  close() {
    this.send(packet(0xe0, []));
    this.socket.close();
  }
}
