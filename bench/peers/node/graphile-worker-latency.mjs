// graphile-worker, the original in Node.js, one job at a time: from the call that adds it to the start of its handler, and to
// the answer to the statement that completes it.

import { Logger, run, runMigrations } from "graphile-worker";
import pg from "pg";
import * as peer from "./peer.mjs";

const options = peer.options({ concurrency: 10, "local-queue": 0, "rest-ms": 0, connections: 10, "node-time": 0 });

const warming = 100;

async function main() {
  const client = await peer.connect(options);
  const pool = new pg.Pool({ connectionString: options["database-url"], max: options.connections });
  pool.on("error", (error) => console.error(error));
  let noted = null;
  const note = (what) => noted?.(what, performance.now());
  // The library's own event comes before that: a job is completed when the statement that does it has been answered.
  pool.on("connect", (connection) => {
    const query = connection.query;
    connection.on("error", (error) => console.error(error));
    connection.query = (...given) => {
      const answer = query.apply(connection, given);
      const text = given[0]?.text ?? given[0];
      if (typeof text === "string" && /\bdelete from\s+\S*_private_jobs\b/i.test(text)) answer.then(() => note("completed"));
      return answer;
    };
  });
  const preset = {
    worker: {
      concurrentJobs: options.concurrency,
      localQueue: { size: options["local-queue"] || -1 },
      useNodeTime: options["node-time"] === 1,
      logger: new Logger(() => (level, message) => level === "error" && console.error(message)),
    },
  };
  await runMigrations({ preset, pgPool: pool });
  const runner = await run({ preset, pgPool: pool, taskList: { problem: () => note("started") } });
  const samples = { started: [], completed: [] };
  for (let n = 0; n < warming + options.problems; n += 1) {
    const times = await new Promise((resolve, reject) => {
      const late = setTimeout(() => reject(new Error("no job was completed for ten seconds")), 10_000);
      const times = {};
      noted = (what, at) => {
        times[what] ??= at;
        if (times.added === undefined || times.started === undefined || times.completed === undefined) return;
        clearTimeout(late);
        resolve(times);
      };
      times.began = performance.now();
      client
        .query({ name: "add", text: "select graphile_worker.add_job('problem', $1::json)", values: [peer.payload(options, n)] })
        .then(() => note("added"), reject);
    });
    if (n >= warming) for (const what in samples) samples[what].push(times[what] - times.began);
    if (options["rest-ms"] > 0) await new Promise((resolve) => setTimeout(resolve, options["rest-ms"]));
  }
  await runner.stop();
  await pool.end();
  await client.end();
  console.log(
    JSON.stringify({
      peer: "graphile-worker (Node.js)",
      version: peer.version("graphile-worker"),
      settings: `concurrentJobs ${options.concurrency}, localQueue.size ${options["local-queue"]}, maxPoolSize ${options.connections}, useNodeTime ${options["node-time"] === 1}`,
      started_ms: samples.started,
      completed_ms: samples.completed,
    }),
  );
}

await main();
