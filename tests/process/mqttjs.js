// MQTT.js against a broker: node mqttjs.js FOLDER URL VERSION CAFILE. Prints one JSON object: what came, and who said goodbye.
'use strict'
const fs = require('fs')
const path = require('path')

const [folder, url, version, cafile] = process.argv.slice(2)
const mqtt = require(path.resolve(folder, 'node_modules', 'mqtt'))

const v5 = version === '5'
const options = (clientId) => ({
  clientId: `${clientId}-${process.pid}`,
  protocolVersion: Number(version),
  ca: fs.readFileSync(cafile),
  reconnectPeriod: 0,
  connectTimeout: 20000
})

async function main () {
  const base = `mqttjs/${process.pid}`
  const seen = []
  const subscriber = await mqtt.connectAsync(url, options('sub'))
  const publisher = await mqtt.connectAsync(url, options('pub'))
  const all = new Promise((resolve) => {
    subscriber.on('message', (topic, payload, packet) => {
      const user = v5 && packet.properties ? packet.properties.userProperties : undefined
      seen.push([topic.slice(base.length), payload.length, packet.qos, packet.retain, user ? user.colour : null])
      if (seen.length === 5) resolve()
    })
  })
  const granted = await subscriber.subscribeAsync(`${base}/#`, { qos: 2 })
  for (const qos of [0, 1, 2]) {
    const properties = v5 ? { userProperties: { colour: 'blue' } } : undefined
    await publisher.publishAsync(`${base}/q${qos}`, Buffer.alloc(10 * (qos + 1)), { qos, properties })
  }
  await publisher.publishAsync(`${base}/big`, Buffer.alloc(300000), { qos: 1, retain: true })
  await publisher.publishAsync(`${base}/empty`, '', { qos: 0 })
  await all
  const late = await mqtt.connectAsync(url, options('late'))
  const kept = new Promise((resolve) => late.on('message', (topic, payload, packet) => resolve([payload.length, packet.retain])))
  await late.subscribeAsync(`${base}/big`, { qos: 1 })
  const retained = await kept
  await publisher.publishAsync(`${base}/big`, '', { qos: 1, retain: true })
  for (const client of [late, publisher, subscriber]) await client.endAsync()
  console.log(JSON.stringify({ granted: granted.map((each) => each.qos), seen: seen.slice(0, 5), retained }))
}

const timer = setTimeout(() => { console.error('timed out'); process.exit(3) }, 30000)
main().then(() => clearTimeout(timer), (error) => { console.error(error); process.exit(2) })
