// graphile-worker, the original in Node.js.

import { EventEmitter } from "node:events";
import { fileURLToPath } from "node:url";
import { Logger, run, runMigrations } from "graphile-worker";
import * as peer from "./peer.mjs";

const options = peer.options({
  runners: 2,
  concurrency: 100,
  "local-queue": 5000,
  "complete-delay-ms": 5,
  connections: 10,
  "node-time": 1,
});

const preset = (events) => ({
  worker: {
    connectionString: options["database-url"],
    concurrentJobs: options.concurrency,
    maxPoolSize: options.connections,
    localQueue: { size: options["local-queue"] },
    completeJobBatchDelay: options["complete-delay-ms"],
    failJobBatchDelay: options["complete-delay-ms"],
    useNodeTime: options["node-time"] === 1,
    logger: new Logger(() => (level, message) => level === "error" && console.error(message)),
    events,
  },
});

async function main() {
  const client = await peer.connect(options);
  await runMigrations({ preset: preset() });
  // The function that the library itself calls to add many jobs.
  const add = (payloads) =>
    client.query(
      `select count(*) from graphile_worker.add_jobs(array(
         select json_populate_record(null::graphile_worker.job_spec, json_build_object('identifier', 'problem', 'payload', payload::json))
         from unnest($1::text[]) payload))`,
      [payloads],
    );
  const load_seconds = await peer.load(options, client, add);
  const left = async () => (await client.query("select exists (select from graphile_worker._private_jobs) as left")).rows[0].left;
  const seconds = await peer.work(options, fileURLToPath(import.meta.url), left);
  await client.end();
  peer.print(options, {
    peer: "graphile-worker (Node.js)",
    version: peer.version("graphile-worker"),
    settings:
      `${options.runners} runners, each localQueue.size ${options["local-queue"]}, concurrentJobs ${options.concurrency}, maxPoolSize ${options.connections}, ` +
      `completeJobBatchDelay ${options["complete-delay-ms"]}, useNodeTime ${options["node-time"] === 1}`,
    seconds,
    load_seconds,
  });
}

// A runner fetches only when its local queue is empty: with two of them, one works while the other waits for its jobs.
async function worker(fetching, handled) {
  const events = new EventEmitter();
  events.once("localQueue:setMode", fetching);
  const taskList = { problem: () => handled() };
  await Promise.all(Array.from({ length: options.runners }, () => run({ preset: preset(events), taskList })));
}

if (process.env.PEER_WORKER) peer.beWorker(worker);
else await main();
