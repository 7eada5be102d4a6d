// An aedes that lets every client in: node aedes.js FOLDER PORT; FOLDER has its node_modules.
"use strict";
const [folder, port] = process.argv.slice(2);
const aedes = require(require.resolve("aedes", { paths: [folder] }))();
require("net").createServer(aedes.handle).listen(Number(port), "127.0.0.1");
for (const event of ["clientError", "connectionError"])
  aedes.on(event, (client, error) => console.log(event, client.id, error.message));
