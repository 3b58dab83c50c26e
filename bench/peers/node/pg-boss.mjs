// pg-boss, by its own workers: each fetches a batch, handles it, completes it, and goes on while batches are full.

import { fileURLToPath } from "node:url";
import { PgBoss } from "pg-boss";
import * as peer from "./peer.mjs";

const options = peer.options({ batch: 1000, workers: 4, connections: 8 });
const QUEUE = "problem";

// Nothing is scheduled, and what watches over the queues would only take time from them.
const boss = new PgBoss({
  connectionString: options["database-url"],
  max: options.connections,
  schedule: false,
  supervise: false,
});
boss.on("error", (error) => {
  console.error(error);
  process.exit(1);
});

async function main() {
  const client = await peer.connect(options);
  await boss.start();
  await boss.createQueue(QUEUE);
  const add = (payloads) => boss.insert(QUEUE, payloads.map((payload) => ({ data: JSON.parse(payload) })));
  const load_seconds = await peer.load(options, client, add);
  const left = async () =>
    (await client.query("select exists (select from pgboss.job where name = $1 and state < 'completed') as left", [QUEUE])).rows[0].left;
  const seconds = await peer.work(options, fileURLToPath(import.meta.url), left);
  await boss.stop({ graceful: false });
  await client.end();
  peer.print(options, {
    peer: "pg-boss",
    version: peer.version("pg-boss"),
    settings: `batchSize ${options.batch}, localConcurrency ${options.workers}, burstWhenBatchFull, pollingIntervalSeconds 0.5, ${options.connections} connections, schedule and supervise off`,
    seconds,
    load_seconds,
  });
}

async function worker(fetching, handled) {
  await boss.start();
  fetching();
  const settings = { batchSize: options.batch, localConcurrency: options.workers, burstWhenBatchFull: true, pollingIntervalSeconds: 0.5 };
  await boss.work(QUEUE, settings, async (jobs) => handled(jobs.length));
}

if (process.env.PEER_WORKER) peer.beWorker(worker);
else await main();
