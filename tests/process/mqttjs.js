// MQTT.js against a broker: node mqttjs.js FOLDER URL VERSION CAFILE [page].
// Prints one JSON object: what came.
// page: what a web page runs, MQTT.js's bundle for browsers on the WebSocket class of a window.
'use strict'
const fs = require('fs')
const path = require('path')
const vm = require('vm')

const [folder, url, version, cafile, page] = process.argv.slice(2)
const modules = path.resolve(folder, 'node_modules')
const sockets = []
const mqtt = page ? inPage() : require(path.join(modules, 'mqtt'))

// The WebSocket class of the package that MQTT.js uses in Node.js has the interface of a browser's.
function inPage () {
  const { WebSocket } = require(path.join(modules, 'ws'))
  globalThis.window = globalThis
  globalThis.document = {}
  if (!globalThis.navigator) globalThis.navigator = { language: 'en', userAgent: 'page' }
  globalThis.location = { href: 'https://app.example/', protocol: 'https:' }
  globalThis.WebSocket = class extends WebSocket {
    constructor (address, protocols) {
      super(address, protocols, { origin: 'https://app.example', ca: fs.readFileSync(cafile) })
      sockets.push(this)
      this.addEventListener('close', (event) => {
        this.end = [this.protocol, this.extensions, event.code, event.wasClean]
      })
    }
  }
  vm.runInThisContext(fs.readFileSync(path.join(modules, 'mqtt', 'dist', 'mqtt.js'), 'utf8'))
  return globalThis.mqtt
}

const v5 = version === '5'
const options = (clientId) => ({
  clientId: `${clientId}-${process.pid}`,
  protocolVersion: Number(version),
  ca: fs.readFileSync(cafile),
  timerVariant: 'native', // a page would take a Worker's, which Node.js does not have
  reconnectPeriod: 0,
  connectTimeout: 60000
})

async function main () {
  const base = `mqttjs/${process.pid}`
  const seen = []
  const subscriber = await mqtt.connectAsync(url, options('sub'))
  const publisher = await mqtt.connectAsync(url, options('pub'))
  const all = new Promise((resolve) => {
    subscriber.on('message', (topic, payload, packet) => {
      const user = v5 && packet.properties ? packet.properties.userProperties : undefined
      const colour = user ? user.colour : null
      seen.push([topic.slice(base.length), payload.length, packet.qos, packet.retain, colour])
      if (seen.length === 5) resolve()
    })
  })
  const granted = await subscriber.subscribeAsync(`${base}/#`, { qos: 2 })
  for (const qos of [0, 1, 2]) {
    const properties = v5 ? { userProperties: { colour: 'blue' } } : undefined
    const payload = Buffer.alloc(10 * (qos + 1))
    await publisher.publishAsync(`${base}/q${qos}`, payload, { qos, properties })
  }
  await publisher.publishAsync(`${base}/big`, Buffer.alloc(300000), { qos: 1, retain: true })
  await publisher.publishAsync(`${base}/empty`, '', { qos: 0 })
  await all
  const late = await mqtt.connectAsync(url, options('late'))
  const kept = new Promise((resolve) => {
    late.on('message', (topic, payload, packet) => resolve([payload.length, packet.retain]))
  })
  await late.subscribeAsync(`${base}/big`, { qos: 1 })
  const retained = await kept
  await publisher.publishAsync(`${base}/big`, '', { qos: 1, retain: true })
  for (const client of [late, publisher, subscriber]) await client.endAsync()
  for (const each of sockets) {
    if (each.readyState !== each.CLOSED) {
      await new Promise((resolve) => each.addEventListener('close', resolve))
    }
  }
  const ends = sockets.map((each) => each.end)
  const found = { granted: granted.map((each) => each.qos), seen: seen.slice(0, 5), retained, ends }
  console.log(JSON.stringify(found))
}

const timer = setTimeout(() => { console.error('timed out'); process.exit(3) }, 90000)
main().then(() => clearTimeout(timer), (error) => { console.error(error); process.exit(2) })
