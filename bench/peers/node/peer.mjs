// What the peers in Node.js share: the command line, the load, worker processes, and the one line that they print.

import { fork } from "node:child_process";
import { readFileSync } from "node:fs";
import { parseArgs } from "node:util";
import pg from "pg";

const common = {
  "database-url": { type: "string" },
  problems: { type: "string" },
  "payload-bytes": { type: "string", default: "100" },
  processes: { type: "string", default: "1" },
};

// The options that every peer has, and its own settings. Their defaults are the best that were found; they are options
// for those who doubt it. All values but the database's address are numbers.
export function options(own) {
  const settings = Object.fromEntries(Object.entries(own).map(([name, value]) => [name, { type: "string", default: String(value) }]));
  const { values } = parseArgs({ options: { ...common, ...settings } });
  for (const needed of ["database-url", "problems"]) {
    if (values[needed] === undefined) throw new Error(`--${needed} is missing`);
  }
  const number = (name, value) => {
    if (!/^\d+$/.test(value)) throw new Error(`--${name} is not a number: ${value}`);
    return Number(value);
  };
  return Object.fromEntries(
    Object.entries(values).map(([name, value]) => [name, name === "database-url" ? value : number(name, value)]),
  );
}

export async function connect(options) {
  const client = new pg.Client(options["database-url"]);
  await client.connect();
  for (const setting of ["fsync", "synchronous_commit", "full_page_writes"]) {
    const { rows } = await client.query("select current_setting($1) as value", [setting]);
    if (rows[0].value !== "on") throw new Error(`${setting} is ${rows[0].value}: the figures are worth something only when it is on`);
  }
  return client;
}

// A JSON object of exactly the wanted length, if that is long enough for its number.
export function payload(options, number) {
  const bare = JSON.stringify({ number, filler: "" }).length;
  return JSON.stringify({ number, filler: "x".repeat(Math.max(0, options["payload-bytes"] - bare)) });
}

// Hands over the payloads, as JSON texts, in batches; then leaves nothing to be written or vacuumed for the workers.
export async function load(options, client, add) {
  const began = performance.now();
  const batch = 10_000;
  for (let first = 0; first < options.problems; first += batch) {
    const size = Math.min(batch, options.problems - first);
    await add(Array.from({ length: size }, (_, index) => payload(options, first + index)));
  }
  await client.query("vacuum (analyze)");
  await client.query("checkpoint");
  return (performance.now() - began) / 1000;
}

// Runs `file` in worker processes from their first fetch until `left` says that no job is left in the database. Gives the
// seconds that it took.
export async function work(options, file, left) {
  const handled = new Map();
  const total = () => [...handled.values()].reduce((sum, count) => sum + count, 0);
  const workers = Array.from({ length: options.processes }, () =>
    fork(file, process.argv.slice(2), { env: { ...process.env, PEER_WORKER: "yes", NO_LOG_SUCCESS: "1" } }),
  );
  try {
    let began = null;
    await new Promise((resolve, reject) => {
      let loaded = 0;
      for (const worker of workers) {
        worker.once("exit", (code, signal) => reject(new Error(`a worker process ended with ${code ?? signal}`)));
        worker.on("message", (message) => {
          if (message.loaded && ++loaded === workers.length) workers.forEach((each) => each.send("go"));
          if (message.fetching) began ??= performance.now();
          if (message.handled !== undefined) handled.set(worker, message.handled);
          if (total() >= options.problems) resolve();
        });
      }
    });
    // What it takes to answer that nothing is left is not the peer's time.
    let asked = performance.now();
    for (const until = asked + 60_000; await left(); ) {
      if (performance.now() > until) throw new Error("jobs are left a minute after the last handler");
      await new Promise((resolve) => setTimeout(resolve, 2));
      asked = performance.now();
    }
    const seconds = (asked - began) / 1000;
    if (total() !== options.problems) throw new Error(`${total()} handlers ran for ${options.problems} jobs`);
    return seconds;
  } finally {
    for (const worker of workers) {
      worker.removeAllListeners();
      worker.kill("SIGKILL");
    }
  }
}

// In a worker process: `start` is called with a function that says that fetching begins, and one that counts handled jobs.
export function beWorker(start) {
  let handled = 0;
  let told = 0;
  // Not for each job: a message costs more than a handler that does nothing.
  setInterval(() => handled !== told && process.send({ handled: (told = handled) }), 5);
  process.once("message", () => start(() => process.send({ fetching: true }), (count = 1) => void (handled += count)));
  process.on("disconnect", () => process.exit(1));
  process.send({ loaded: true });
}

export function version(name) {
  const { version } = JSON.parse(readFileSync(new URL(`node_modules/${name}/package.json`, import.meta.url)));
  return `${version} on Node.js ${process.versions.node}`;
}

export function print(options, outcome) {
  const per_second = options.problems / outcome.seconds;
  const settings = [outcome.settings, ...process.execArgv].join(", ");
  console.log(
    JSON.stringify({ ...outcome, settings, problems: options.problems, per_second, durable: true, processes: options.processes }),
  );
}
