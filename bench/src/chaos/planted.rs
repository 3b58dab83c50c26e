//! Bugs that the harness must find: each brings a classic one back, in the code of a program, in a statement that programs
//! send, or in the database. A harness that finds all of them and nothing else can be believed when it finds nothing.

use anyhow::{Context, ensure};
use pcfarm_faults::{BECOMES, Bug, PAIR};
use tokio_postgres::Client;

use super::faults::Kind;

/// A planted bug.
#[derive(Debug)]
pub struct Planted {
    pub name: &'static str,
    pub what: &'static str,
    pub how: &'static [How],
    /// The faults that bring it out, beside what clients and agents do anyway. None: those of any run.
    pub faults: &'static [Kind],
}

/// Where the bug is.
#[derive(Debug)]
pub enum How {
    Code(Bug),
    /// In the text of statements that programs send.
    Statement(&'static [(&'static str, &'static str)]),
    /// In the body of a function of the database.
    Function(&'static str, &'static [(&'static str, &'static str)]),
    /// In the tables.
    Schema(&'static str),
}

/// Connections and processes that end and come back: what was said is said again.
const REPEATS: &[Kind] = &[
    Kind::CutDoor,
    Kind::EatReplies,
    Kind::RefuseDoor,
    Kind::KillServer,
    Kind::SilenceFromServer,
    Kind::CutDatabaseLink,
    Kind::RestartServer,
];

/// PostgreSQL that loses what was not committed.
const CRASHES: &[Kind] = &[Kind::CrashPostgresql, Kind::KillServer, Kind::KillPostmaster, Kind::TerminateBackends];

/// Agents that are gone for good or for a while.
const DEATHS: &[Kind] =
    &[Kind::KillAgent, Kind::RetireAgent, Kind::FreezeAgent, Kind::SilenceToServer, Kind::RestartAgent];

/// A database that is away, and nothing else.
pub const OUTAGES: &[Kind] = &[
    Kind::FreezePostgresql,
    Kind::CrashPostgresql,
    Kind::RestartPostgresql,
    Kind::KillPostmaster,
    Kind::PartServersFromDatabase,
];

/// All of these.
pub const SETS: [&[Kind]; 4] = [REPEATS, CRASHES, DEATHS, OUTAGES];

pub const PLANTED: &[Planted] = &[
    // Accepting
    Planted {
        name: "acknowledges-before-commit",
        what: "an agent is told that its results are stored before they are",
        how: &[How::Code(Bug::AcknowledgesBeforeCommit)],
        faults: CRASHES,
    },
    Planted {
        name: "accepts-what-was-revoked",
        what: "nobody asks whether a checkout is still live",
        how: &[How::Function(
            "pcfarm.accept",
            &[(
                "c.token = t.token and c.ended_at is null and c.job_type = type",
                "c.token = t.token and c.job_type = type",
            )],
        )],
        faults: DEATHS,
    },
    Planted {
        name: "accepts-any-token",
        what: "a checkout's number is enough, without its token",
        how: &[
            How::Code(Bug::AcceptsAnyToken),
            How::Function(
                "pcfarm.accept",
                &[(
                    "c.token = t.token and c.ended_at is null and c.job_type = type",
                    "c.ended_at is null and c.job_type = type",
                )],
            ),
        ],
        faults: &[],
    },
    Planted {
        name: "accepts-strangers",
        what: "nobody asks whether a problem is of the checkout that its result comes under",
        how: &[How::Code(Bug::AcceptsStrangers)],
        faults: &[],
    },
    Planted {
        name: "checks-and-then-writes",
        what: "whether a checkout is live is asked without its lock, some time before its results are written",
        how: &[
            How::Function(
                "pcfarm.accept",
                &[
                    (" order by c.checkout_id for update) c on", ") c on"),
                    (
                        "    moment := clock_timestamp();\n",
                        "    perform pg_sleep(0.05);\n    moment := clock_timestamp();\n",
                    ),
                ],
            ),
            // Nothing goes by the statement, whose fence is the update itself.
            How::Statement(&[("where c.checkout_id = $1::bigint", "where false and c.checkout_id = $1::bigint")]),
        ],
        faults: DEATHS,
    },
    Planted {
        name: "counts-what-it-does-not-store",
        what: "a repeated result is counted again",
        how: &[How::Function(
            "pcfarm.accept",
            &[(
                "        select array_agg(coalesce(k.solved, 0) order by n) into solved
        from generate_series(1, checkouts) n
        left join (select p.position, count(*)::integer as solved from unnest(positions) as p(position) group by 1) k
            on k.position = n;
",
                "",
            )],
        )],
        faults: REPEATS,
    },
    Planted {
        name: "forgets-the-write-back-of-repetitions",
        what: "where something of a delivery is stored already, nothing of it is written back",
        how: &[How::Function(
            "pcfarm.accept",
            &[("coalesce(array_agg(keys[o.n] order by o.n), '{}')", "'{}'::text[]")],
        )],
        faults: REPEATS,
    },
    Planted {
        name: "writes-back-anothers-solution",
        what: "where something of a delivery is stored already, keys and solutions are no pairs any more",
        how: &[How::Function(
            "pcfarm.accept",
            &[(
                "coalesce(array_agg(keys[o.n] order by o.n), '{}')",
                "coalesce(array_agg(keys[o.n] order by o.n desc), '{}')",
            )],
        )],
        faults: REPEATS,
    },
    Planted {
        name: "stops-handing-out",
        what: "after an error of the database a server hands out nothing any more, and says that it is well",
        how: &[How::Code(Bug::StopsHandingOut)],
        faults: &[Kind::CutDatabaseLink, Kind::TerminateBackends, Kind::KillBackend],
    },
    Planted {
        name: "says-accepted-of-what-was-revoked",
        what: "who delivers what was revoked is told that it is stored",
        how: &[How::Function("pcfarm.accept", &[("'revoked' then 'revoked'", "'revoked' then 'already_accepted'")])],
        faults: DEATHS,
    },
    Planted {
        name: "takes-violation-for-done",
        what: "where something of a delivery is stored already, all of it is taken to be",
        how: &[How::Code(Bug::TakesViolationForDone)],
        faults: REPEATS,
    },
    Planted {
        name: "no-key-on-results",
        what: "nothing keeps a result from being stored twice under a live checkout",
        how: &[How::Schema(
            "alter table pcfarm.result drop constraint result_pkey;
             create index on pcfarm.result (job_id, problem_id)",
        )],
        faults: REPEATS,
    },
    // Closing
    Planted {
        name: "closes-what-is-revoked",
        what: "a checkout can be closed twice, and what is left of it comes back twice",
        how: &[
            How::Code(Bug::ClosesWhatIsRevoked),
            How::Function(
                "pcfarm.close_checkouts",
                &[
                    (
                        "where c.checkout_id = any (checkout_ids) and c.ended_at is null\n    order by",
                        "where c.checkout_id = any (checkout_ids)\n    order by",
                    ),
                    (
                        "from pcfarm.checkout c where c.checkout_id = any (checkout_ids) and c.ended_at is null;",
                        "from pcfarm.checkout c where c.checkout_id = any (checkout_ids);",
                    ),
                ],
            ),
        ],
        faults: DEATHS,
    },
    Planted {
        name: "requeues-what-is-done",
        what: "all of a lost checkout comes back, with or without a result",
        how: &[How::Function(
            "pcfarm.close_checkouts",
            &[(
                "where h.checkout_id = c.checkout_id and (
                select r.problem_id from pcfarm.result r where r.job_id = h.job_id and r.problem_id = h.problem_id) is null",
                "where h.checkout_id = c.checkout_id",
            )],
        )],
        faults: DEATHS,
    },
    Planted {
        name: "forgets-what-was-lost",
        what: "a lost checkout is closed, and nothing of it comes back",
        how: &[How::Function(
            "pcfarm.close_checkouts",
            &[(
                "from counted c where c.attempts_now < c.max_attempts) w),",
                "from counted c where c.attempts_now < c.max_attempts and how <> 'lost') w),",
            )],
        )],
        faults: DEATHS,
    },
    Planted {
        name: "requeues-behind-the-pointer",
        what: "what comes back gets a batch order that is taken",
        how: &[How::Function(
            "pcfarm.end_of_retry_lane",
            &[("select r.batch_order + 1 from", "select r.batch_order from")],
        )],
        faults: DEATHS,
    },
    Planted {
        name: "requeues-without-a-lock",
        what: "two who requeue at the same time take the same batch orders",
        how: &[
            How::Function(
                "pcfarm.lock_retry_lanes",
                &[("l.lane_id = o.lane_id for update) l;\n", "l.lane_id = o.lane_id) l;\n")],
            ),
            How::Function(
                "pcfarm.close_checkouts",
                &[(
                    "    if cardinality(closed) > 0 then\n",
                    "    perform pg_sleep(0.05);\n    if cardinality(closed) > 0 then\n",
                )],
            ),
        ],
        faults: DEATHS,
    },
    Planted {
        name: "failed-attempts-cost-nothing",
        what: "a problem that fails is tried again as if for the first time",
        how: &[How::Function(
            "pcfarm.close_checkouts",
            &[("case when b.message is not null or b.to_blame then 1", "case when b.to_blame then 1")],
        )],
        faults: &[],
    },
    // Ending and cancelling
    Planted {
        name: "ends-jobs-with-checkouts-out",
        what: "a job ends when all is handed out, whoever still has some of it",
        how: &[
            How::Function(
                "pcfarm.end_job_if_empty",
                &[("not exists (select from pcfarm.checkout c where c.job_id = job and c.ended_at is null)", "true")],
            ),
            How::Statement(&[("where c.live = 0", "")]),
        ],
        faults: DEATHS,
    },
    Planted {
        name: "ends-jobs-without-their-retries",
        what: "a job ends although problems wait to be tried again",
        how: &[How::Function(
            "pcfarm.end_job_if_empty",
            &[(
                "coalesce((select r.batch_order + 1 from pcfarm.requeued r where r.job_id = l.job_id
                    and r.lane_id = l.lane_id order by r.batch_order desc limit 1), 0)",
                "0",
            )],
        )],
        faults: DEATHS,
    },
    Planted {
        name: "forgets-the-last-convoy",
        what: "a lane is taken to be at its end one convoy too soon",
        how: &[
            How::Function(
                "pcfarm.end_job_if_empty",
                &[("else l.next_insertion end)", "else l.next_insertion - 1 end)")],
            ),
            How::Statement(&[
                ("p.to_order >= l.next_insertion", "p.to_order >= l.next_insertion - 1"),
                (
                    "and coalesce(p.to_order, 0) < case l.kind when 'retry' then coalesce(r.batch_order + 1, 0) else l.next_insertion end",
                    "and coalesce(p.to_order, 0) < case l.kind when 'retry' then coalesce(r.batch_order + 1, 0) else l.next_insertion - 1 end",
                ),
            ]),
        ],
        faults: &[],
    },
    Planted {
        name: "cancels-without-revoking",
        what: "what is out when a job is cancelled is accepted all the same",
        how: &[How::Function(
            "pcfarm.cancel_job",
            &[("'the job was cancelled'\n    where c.job_id = job and c.ended_at is null;", "'' where false;")],
        )],
        faults: &[],
    },
    // Handing out
    Planted {
        name: "hands-out-what-is-cancelled",
        what: "nobody asks for a job's state when handing out from it",
        how: &[How::Statement(&[
            ("and j.state = 'open' order by j.job_id for share skip locked", ""),
            ("and j.ended_at is null and j.state = 'open' and coalesce(j.not_before", "and coalesce(j.not_before"),
        ])],
        faults: &[Kind::SlowDatabaseLink],
    },
    Planted {
        name: "hands-out-without-comparing",
        what: "two servers hand out what both have read",
        how: &[
            How::Schema(
                "alter table pcfarm.checkout drop constraint checkout_after_checkout;
                 create index on pcfarm.checkout (job_id, lane_id, from_order)",
            ),
            How::Statement(&[(
                "where l.from_order = coalesce((
        select c.to_order from pcfarm.checkout c
        where c.job_id = l.job_id and c.lane_id = l.lane_id order by c.from_order desc limit 1), 0)",
                "where true",
            )]),
        ],
        faults: &[],
    },
    Planted {
        name: "ships-more-than-it-checks-out",
        what: "an agent gets a convoy more than its checkout has",
        how: &[How::Code(Bug::ShipsMoreThanItChecksOut)],
        faults: &[],
    },
    Planted {
        name: "skips-late-loads",
        what: "the dispatcher looks for lanes after the last one that it has seen",
        how: &[How::Code(Bug::SkipsLateLoads)],
        faults: &[Kind::SlowDoor, Kind::LockJobs, Kind::SlowDatabaseLink],
    },
    Planted {
        name: "never-takes-back",
        what: "what was handed out and never arrived stays where it never was",
        how: &[How::Code(Bug::NeverTakesBack)],
        faults: &[Kind::KillServer, Kind::RestartAgent, Kind::KillAgent, Kind::CutDoor, Kind::RefuseDoor],
    },
    // Dying
    Planted {
        name: "an-outage-kills-everybody",
        what: "silence counts while nobody could have heard a word",
        how: &[How::Statement(&[
            ("greatest(w.silent_since, h.hearing_since)", "w.silent_since"),
            (
                "greatest(coalesce(w.silent_since, s.heard_at), (select min(hearing_since) from hearing))",
                "coalesce(w.silent_since, s.heard_at)",
            ),
            (
                "and exists (select from hearing where hearing_since <= clock_timestamp() - $1 * interval '1 second')",
                "",
            ),
        ])],
        faults: &[Kind::PartServersFromDatabase, Kind::FreezePostgresql],
    },
    Planted {
        name: "overlooks-the-dead",
        what: "nobody looks for what dead workstations hold",
        how: &[How::Statement(&[("    where w.state in ('offline', 'dead')\n", "    where false\n")])],
        faults: &[Kind::RetireAgent],
    },
    Planted {
        name: "overlooks-the-overdue",
        what: "nobody looks for checkouts whose time has run out",
        how: &[How::Statement(&[("c.deadline < statement_timestamp() and", "false and")])],
        faults: &[],
    },
    Planted {
        name: "does-not-note-silence",
        what: "a workstation that has fallen silent is taken to be heard",
        how: &[How::Statement(&[
            ("where w.silent_since is null or $4 and not w.disconnected", "where false and $4"),
            ("w.server_id = $1 and w.silent_since is null", "false and w.server_id = $1"),
        ])],
        faults: &[Kind::RetireAgent],
    },
    // Clients
    Planted {
        name: "answers-before-commit",
        what: "a client is told that its job is loaded before it is",
        how: &[How::Code(Bug::AnswersBeforeCommit)],
        faults: CRASHES,
    },
    Planted {
        name: "commits-torn-uploads",
        what: "an upload that ends early is taken to be whole",
        how: &[How::Code(Bug::CommitsTornUploads)],
        faults: &[],
    },
    Planted {
        name: "loads-again-under-the-same-key",
        what: "a submission that is repeated is loaded again",
        how: &[
            How::Function(
                "pcfarm.submit_problems",
                &[(
                    "            if repeated then\n                return;\n            end if;\n",
                    "            repeated := false;\n",
                )],
            ),
            How::Statement(&[("select j.state <> 'loading' or exists (", "select false and exists (")]),
        ],
        faults: REPEATS,
    },
    // Agents and counts
    Planted {
        name: "forgets-deliveries",
        what: "an agent drops what was not acknowledged when its connection ends",
        how: &[How::Code(Bug::ForgetsDeliveries)],
        // A server whose database stands still has what is not stored yet.
        faults: &[Kind::FreezePostgresql, Kind::KillServer, Kind::KillServer, Kind::SilenceToServer],
    },
    Planted {
        name: "folds-counts-wrongly",
        what: "counts that are folded lose some",
        how: &[How::Statement(&[(
            "sum(f.done), sum(f.failed), sum(f.requeued), sum(f.busy_seconds), true from fresh",
            "max(f.done), max(f.failed), max(f.requeued), sum(f.busy_seconds), true from fresh",
        )])],
        faults: &[],
    },
];

impl Planted {
    pub fn named(name: &str) -> Option<&'static Planted> {
        PLANTED.iter().find(|planted| planted.name == name)
    }

    /// What programs are started with to have it: the name of the bug in their code, and what is wrong with their
    /// statements as the file of that has it.
    pub fn of_programs(&self) -> (Option<&'static str>, String) {
        let code = self.how.iter().find_map(|how| match how {
            How::Code(bug) => Some(bug.name()),
            How::Statement(_) | How::Function(..) | How::Schema(_) => None,
        });
        let edits = self.how.iter().filter_map(|how| match how {
            How::Statement(edits) => Some(*edits),
            How::Code(_) | How::Function(..) | How::Schema(_) => None,
        });
        let text = edits.flatten().map(|(from, to)| format!("{from}{BECOMES}{to}{PAIR}")).collect();
        (code, text)
    }

    /// Plants what of it is in the database, which has been migrated.
    pub async fn plant(&self, client: &Client) -> anyhow::Result<()> {
        for how in self.how {
            match how {
                How::Code(_) | How::Statement(_) => {}
                How::Schema(text) => client.batch_execute(text).await.with_context(|| format!("running {text}"))?,
                How::Function(name, edits) => {
                    let text = "select pg_get_functiondef($1::text::regproc)";
                    let row = client.query_one(text, &[name]).await.with_context(|| format!("reading {name}"))?;
                    let mut body: String = row.get(0);
                    for (from, to) in *edits {
                        ensure!(body.matches(from).count() == 1, "{name} does not hold this once:\n{from}");
                        body = body.replace(from, to);
                    }
                    client.batch_execute(&body).await.with_context(|| format!("replacing {name}"))?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_bug_has_a_name_of_its_own_and_all_of_the_codes_are_there() {
        let names: HashSet<&str> = PLANTED.iter().map(|planted| planted.name).collect();
        assert_eq!(names.len(), PLANTED.len());
        let codes: HashSet<&str> = PLANTED.iter().filter_map(|planted| planted.of_programs().0).collect();
        assert_eq!(codes.len(), Bug::ALL.len());
    }

    #[test]
    fn statements_hold_what_is_to_be_replaced() {
        let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../sql/queries");
        let files = std::fs::read_dir(directory).expect("the queries are there");
        let texts: Vec<String> =
            files.flatten().map(|file| std::fs::read_to_string(file.path()).expect("a query is text")).collect();
        for planted in PLANTED {
            for how in planted.how {
                let How::Statement(edits) = how else { continue };
                for (from, _) in *edits {
                    let holding = texts.iter().filter(|text| text.contains(from)).count();
                    assert_eq!(holding, 1, "{}: {from}", planted.name);
                }
            }
        }
    }

    #[tokio::test]
    async fn what_is_in_the_database_can_be_planted() {
        for planted in PLANTED {
            if planted.how.iter().any(|how| matches!(how, How::Function(..) | How::Schema(_))) {
                let database = pcfarm_sql::testing::database().await;
                let (client, _connection) = pcfarm_sql::connect::connect(&database.config()).await.expect("it answers");
                planted.plant(&client).await.unwrap_or_else(|error| panic!("{}: {error:#}", planted.name));
            }
        }
    }
}
