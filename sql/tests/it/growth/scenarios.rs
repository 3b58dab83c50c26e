//! Bulk statements, each with the rows that it finds.

/// The problems of the new job.
#[derive(Clone, Copy, Debug)]
pub enum Rows {
    /// None yet.
    Empty,
    /// Copied, without batch orders.
    Copied,
    /// One load, in convoys of ten.
    Loaded,
    /// One load of a job that stays open when it is empty.
    Standing,
    /// Many loads of ten, a convoy each.
    Lanes,
}

impl Rows {
    pub fn options(self) -> &'static str {
        match self {
            Rows::Standing => "{\"standing\": true}",
            Rows::Empty | Rows::Copied | Rows::Loaded | Rows::Lanes => "{}",
        }
    }

    pub fn statements(self) -> &'static str {
        match self {
            Rows::Empty => "",
            Rows::Copied => {
                "insert into pcfarm.problem (job_id, key, payload)
                 select {job}, g::text, to_jsonb(g) from generate_series(1, {problems}) g"
            }
            Rows::Loaded | Rows::Standing => {
                "select pcfarm.load({job},
                     'select g::text as key, to_jsonb(g) as payload from generate_series(1, {problems}) g', 10);
                 select pcfarm.open_job({job})"
            }
            Rows::Lanes => {
                "with lane as (
                     select nextval('pcfarm.lane_number') as id, g as number from generate_series(1, {problems} / 10) g),
                 problem as (
                     insert into pcfarm.problem (job_id, lane_id, problem_id, batch_order, key, payload)
                     select {job}, l.id, l.id * 10000000000 + n, 0, l.number || '/' || n, '1'
                     from lane l cross join generate_series(1, 10) n order by l.id, n)
                 insert into pcfarm.lane (job_id, lane_id, kind, job_type, priority, next_insertion, problems)
                 select {job}, l.id, 'load', 't', l.id % 2, 1, 10 from lane l;
                 select pcfarm.open_job({job})"
            }
        }
    }
}

pub struct Scenario {
    pub name: &'static str,
    /// The most problems that the statement meets at once.
    pub at_most: i64,
    pub rows: Rows,
    /// More rows.
    pub also: &'static str,
    pub measured: &'static str,
}

impl Scenario {
    pub fn filled(&self, text: &str, job: i64, problems: i64) -> String {
        text.replace("{job}", &job.to_string()).replace("{problems}", &problems.to_string())
    }

    pub fn measured(&self, job: i64, problems: i64) -> String {
        self.filled(self.measured, job, problems)
    }
}

const ANY: i64 = i64::MAX;

/// Checkouts of one convoy each, live.
macro_rules! held {
    () => {
        "insert into pcfarm.checkout (job_id, lane_id, from_order, to_order, job_type, problems, workstation_id, token)
         select l.job_id, l.lane_id, g, g + 1, 't', 10, 1, 7
         from pcfarm.lane l cross join lateral generate_series(0, l.next_insertion - 1) g where l.job_id = {job} and l.kind = 'load';"
    };
}

/// One checkout per lane, live.
macro_rules! held_at_once {
    () => {
        "insert into pcfarm.checkout (job_id, lane_id, from_order, to_order, job_type, problems, workstation_id, token)
         select l.job_id, l.lane_id, 0, l.next_insertion, 't', l.problems, 1, 7
         from pcfarm.lane l where l.job_id = {job} and l.kind = 'load';"
    };
}

/// Every other problem of live checkouts was given back.
macro_rules! given_back {
    () => {
        "with given as (
             select h.checkout_id, array_agg(h.problem_id) as ids from pcfarm.held_problem h
             where h.job_id = {job} and h.problem_id % 2 = 0 group by 1)
         update pcfarm.checkout c set given_back = g.ids, problems = c.problems - cardinality(g.ids)
         from given g where c.checkout_id = g.checkout_id;"
    };
}

/// All that is held has failed for good.
macro_rules! failed {
    () => {
        "insert into pcfarm.result (job_id, problem_id, checkout_id, attempts, failed, message, home_lane, home_order)
         select h.job_id, h.problem_id, h.checkout_id, 3, true, 'no', h.home_lane, h.home_order
         from pcfarm.held_problem h where h.job_id = {job};
         update pcfarm.checkout c set delivered = c.problems where c.job_id = {job};"
    };
}

/// All that is held is done.
macro_rules! done {
    () => {
        "insert into pcfarm.result (job_id, problem_id, checkout_id, attempts, failed, solution)
         select h.job_id, h.problem_id, h.checkout_id, 1, false, '1' from pcfarm.held_problem h where h.job_id = {job};
         update pcfarm.checkout c set delivered = c.problems where c.job_id = {job};"
    };
}

macro_rules! closed {
    () => {
        "update pcfarm.checkout c set ended_at = clock_timestamp(), ending = 'accepted' where c.job_id = {job};"
    };
}

/// Everything of the job ended two days ago, and is kept for one.
macro_rules! aged {
    () => {
        "update pcfarm.checkout c set ended_at = now() - interval '2 days', ending = 'accepted' where c.job_id = {job};
         update pcfarm.result r set accepted_at = now() - interval '2 days' where r.job_id = {job};
         update pcfarm.lane l set exhausted = true, loaded_at = now() - interval '2 days' where l.job_id = {job} and l.kind <> 'retry';
         update pcfarm.job_type t set retention = '1 day' where t.name = 't';"
    };
}

macro_rules! waits {
    () => {
        "insert into pcfarm.delayed (job_id, problem_id, due_at, home_lane, home_order, grouped)
         select p.job_id, p.problem_id, now(), p.lane_id, p.batch_order, false from pcfarm.problem p where p.job_id = {job};"
    };
}

macro_rules! close {
    ($how:literal) => {
        concat!(
            "select pcfarm.close_checkouts((select array_agg(c.checkout_id) from pcfarm.checkout c where c.job_id = {job}
             and c.ended_at is null), '",
            $how,
            "', 'test')"
        )
    };
}

/// A call of pcfarm.accept for all that is held by the job, as solutions.
macro_rules! accept {
    ($careful:literal) => {
        concat!(
            "with c as materialized (
                 select array_agg(c.checkout_id order by c.checkout_id) as ids, array_agg(c.token) as tokens,
                     array_agg(true) as closing, array_agg(c.problems order by c.checkout_id) as solved
                 from pcfarm.checkout c where c.job_id = {job}),
             h as materialized (
                 select array_agg(h.place::integer order by h.problem_id) as places, array_agg(h.problem_id order by h.problem_id) as ids,
                     array_agg(0) as attempts, array_agg('1'::text) as solutions, array_agg('k'::text) as keys,
                     array_agg(h.home_lane order by h.problem_id) as lanes, array_agg(h.home_order order by h.problem_id) as orders
                 from (select h.*, dense_rank() over (order by h.checkout_id) as place
                     from pcfarm.held_problem h where h.job_id = {job}) h)
             select v.* from c cross join h cross join lateral pcfarm.accept('t', c.ids, c.tokens, c.closing, c.solved, h.places, h.ids,
                 h.attempts, h.solutions, h.keys, h.lanes, h.orders, '{}', '{}', '{}', '{}', '{}', '{}', ",
            $careful,
            ") v"
        )
    };
}

pub const SCENARIOS: &[Scenario] = &[
    // Loading.
    Scenario { name: "assign", at_most: ANY, rows: Rows::Copied, also: "", measured: "select pcfarm.assign_batch_order({job}, 100)" },
    Scenario {
        name: "assign in groups",
        at_most: ANY,
        rows: Rows::Copied,
        also: "",
        measured: "select pcfarm.assign_batch_order({job}, 100, 'key')",
    },
    Scenario {
        name: "open after a copy",
        at_most: ANY,
        rows: Rows::Copied,
        also: "select pcfarm.assign_batch_order({job}, 10)",
        measured: "select pcfarm.open_job({job})",
    },
    Scenario {
        name: "files of problems",
        at_most: 100_000,
        rows: Rows::Copied,
        also: "with named as (
                 update pcfarm.problem p set payload = jsonb_build_object('files',
                     jsonb_build_object('a', encode(sha256((p.job_id || '/' || p.key)::bytea), 'hex')))
                 where p.job_id = {job} returning p.payload #>> '{files,a}' as hash),
             file as (insert into pcfarm.file (sha256, bytes) select decode(n.hash, 'hex'), 1 from named n returning file_id)
             insert into pcfarm.file_holder (file_id, owner, name, bytes) select f.file_id, session_user, 'a', 1 from file f;",
        measured: "select pcfarm.set_problem_files({job}, array[0])",
    },
    Scenario {
        name: "load",
        at_most: ANY,
        rows: Rows::Empty,
        also: "drop table if exists s0; create table s0 (n integer); analyze s0; insert into s0 select generate_series(1, {problems})",
        measured: "select pcfarm.load({job}, 'select n::text as key, to_jsonb(n) as payload from s0', 10)",
    },
    Scenario {
        name: "load in groups",
        at_most: ANY,
        rows: Rows::Empty,
        also: "drop table if exists s1; create table s1 (n integer); analyze s1; insert into s1 select generate_series(1, {problems})",
        measured: "select pcfarm.load({job},
            'select n::text as key, to_jsonb(n) as payload, n / 2 as group_key from s1 where n > 0', 10)",
    },
    Scenario {
        name: "load of many kinds",
        at_most: ANY,
        rows: Rows::Empty,
        also: "drop table if exists s2; create table s2 (n integer); analyze s2; insert into s2 select generate_series(1, {problems})",
        measured: "select pcfarm.load({job}, 'select n::text as key, to_jsonb(n) as payload, n / 2 as group_key, n % 7 as priority,
            now() + make_interval(hours => n % 3) as not_before, now() as deadline from s2 where n > 0', 10)",
    },
    Scenario {
        name: "enqueue",
        at_most: 10_000,
        rows: Rows::Empty,
        also: "",
        measured: "select pcfarm.enqueue({job}, (
            select jsonb_agg(jsonb_build_object('key', g::text, 'payload', g, 'priority', g % 500, 'group', (g / 3)::text))
            from generate_series(1, {problems}) g))",
    },
    // Closing and coming back.
    Scenario { name: "lost checkouts", at_most: 100_000, rows: Rows::Loaded, also: held!(), measured: close!("lost") },
    Scenario { name: "lost checkouts of many lanes", at_most: 100_000, rows: Rows::Lanes, also: held!(), measured: close!("lost") },
    Scenario { name: "one lost checkout", at_most: ANY, rows: Rows::Loaded, also: held_at_once!(), measured: close!("lost") },
    Scenario {
        name: "failed attempts",
        at_most: 100_000,
        rows: Rows::Loaded,
        also: concat!(
            held!(),
            "insert into pcfarm.failed_attempt (job_id, checkout_id, problem_id, message)
             select h.job_id, h.checkout_id, h.problem_id, 'no' from pcfarm.held_problem h where h.job_id = {job}"
        ),
        measured: close!("finished"),
    },
    Scenario {
        name: "lost again",
        at_most: 100_000,
        rows: Rows::Loaded,
        also: concat!(
            held!(),
            close!("lost"),
            "; insert into pcfarm.checkout (job_id, lane_id, from_order, to_order, job_type, problems, workstation_id, token)
             select r.job_id, r.lane_id, min(r.batch_order), max(r.batch_order) + 1, 't', count(*), 1, 7
             from pcfarm.requeued r where r.job_id = {job} group by r.job_id, r.lane_id"
        ),
        measured: close!("lost"),
    },
    Scenario {
        name: "another database",
        at_most: 100_000,
        rows: Rows::Loaded,
        also: concat!(held!(), "select pcfarm.recognise_database(1, {job})"),
        measured: "select pcfarm.recognise_database(2, {job})",
    },
    Scenario {
        name: "retry",
        at_most: ANY,
        rows: Rows::Loaded,
        also: concat!(held!(), failed!(), closed!()),
        measured: "select pcfarm.retry_job({job})",
    },
    Scenario {
        name: "retry beside live checkouts",
        at_most: ANY,
        rows: Rows::Loaded,
        also: concat!(held!(), failed!()),
        measured: "select pcfarm.retry_job({job})",
    },
    Scenario {
        name: "retry of many lanes",
        at_most: ANY,
        rows: Rows::Lanes,
        also: concat!(held_at_once!(), failed!(), closed!()),
        measured: "select pcfarm.retry_job({job})",
    },
    Scenario { name: "rerun", at_most: ANY, rows: Rows::Loaded, also: "", measured: "select pcfarm.rerun_job({job}, 10, 'key')" },
    Scenario { name: "rerun of many lanes", at_most: ANY, rows: Rows::Lanes, also: "", measured: "select pcfarm.rerun_job({job})" },
    Scenario { name: "come due", at_most: 10_000, rows: Rows::Loaded, also: waits!(), measured: "select pcfarm.move_due(10000)" },
    Scenario {
        name: "come due in many lanes",
        at_most: 10_000,
        rows: Rows::Lanes,
        also: waits!(),
        measured: "select pcfarm.move_due(10000)",
    },
    Scenario {
        name: "cancel",
        at_most: ANY,
        rows: Rows::Loaded,
        also: concat!(held!(), waits!()),
        measured: "select pcfarm.cancel_job({job})",
    },
    // Accepting.
    Scenario { name: "accept", at_most: 20_000, rows: Rows::Loaded, also: held!(), measured: accept!("false") },
    Scenario {
        name: "accept what was delivered before",
        at_most: 20_000,
        rows: Rows::Loaded,
        also: held!(),
        measured: accept!("true"),
    },
    Scenario {
        name: "accept beside problems that were given back",
        at_most: 20_000,
        rows: Rows::Loaded,
        also: concat!(held_at_once!(), given_back!()),
        measured: accept!("false"),
    },
    Scenario {
        name: "lost beside problems that were given back",
        at_most: 100_000,
        rows: Rows::Loaded,
        also: concat!(held_at_once!(), given_back!()),
        measured: close!("lost"),
    },
    // Forgetting.
    Scenario {
        name: "forget a job",
        at_most: ANY,
        rows: Rows::Loaded,
        also: concat!(
            held!(),
            done!(),
            aged!(),
            "update pcfarm.job j set state = 'done', ended_at = now() - interval '2 days' where j.job_id = {job};
             update pcfarm.progress p set counted = true"
        ),
        measured: "do $$ begin for i in 1 .. 20 + {problems} / 4000 loop perform pcfarm.forget_old_job(); end loop; end $$",
    },
    Scenario {
        name: "forget problems",
        at_most: 10_000,
        rows: Rows::Standing,
        also: concat!(held!(), done!(), aged!()),
        measured: "select pcfarm.forget_old_problems({job})",
    },
    Scenario {
        name: "forget problems of many lanes",
        at_most: 4_000,
        rows: Rows::Lanes,
        also: concat!(held!(), done!(), aged!(), "update pcfarm.job j set standing = true where j.job_id = {job}"),
        measured: "select pcfarm.forget_old_problems({job})",
    },
    Scenario {
        name: "forget problems of one checkout",
        at_most: 100_000,
        rows: Rows::Standing,
        also: concat!(held_at_once!(), done!(), aged!()),
        measured: "select pcfarm.forget_old_problems({job})",
    },
    // Counting.
    Scenario {
        name: "count and fold progress",
        at_most: ANY,
        rows: Rows::Loaded,
        also: "insert into pcfarm.progress (job_id, job_type, done) select {job}, 't', 1 from generate_series(1, {problems})",
        measured: concat!(include_str!("../../../queries/count_progress.sql"), ";
            with every as (update pcfarm.progress p set counted = true where not p.counted) select;
            prepare fold as ", include_str!("../../../queries/fold_progress.sql"), "; execute fold('{{job}}'); deallocate fold"),
    },
    // Reading.
    Scenario {
        name: "problems of a job, in progress",
        at_most: ANY,
        rows: Rows::Loaded,
        also: held!(),
        measured: "select count(p.*) from pcfarm.job_problems p where p.job_id = {job}",
    },
    Scenario {
        name: "problems of a job, done",
        at_most: ANY,
        rows: Rows::Loaded,
        also: concat!(held!(), done!(), closed!()),
        measured: "select count(p.*) from pcfarm.job_problems p where p.job_id = {job}",
    },
    Scenario {
        name: "problems of a job, delayed",
        at_most: ANY,
        rows: Rows::Loaded,
        also: waits!(),
        measured: "select count(p.*) from pcfarm.job_problems p where p.job_id = {job}",
    },
    Scenario {
        name: "problems in order, back on the queue",
        at_most: 100_000,
        rows: Rows::Loaded,
        also: concat!(held!(), close!("unreceived")),
        measured: "select count(p.*) from pcfarm.problems_ordered p where p.job_id = {job};
            select count(p.*) from pcfarm.job_problems p where p.job_id = {job}",
    },
    Scenario {
        name: "lanes in order",
        at_most: 100_000,
        rows: Rows::Lanes,
        also: "",
        measured: "select count(p.*) from pcfarm.problems_ordered p where p.job_id = {job}; select count(q.*) from pcfarm.queue_pointer q;
            select count(o) from pcfarm.job_obstacles({job}) o",
    },
    Scenario {
        name: "problems in progress",
        at_most: 100_000,
        rows: Rows::Loaded,
        also: held!(),
        measured: concat!("prepare live as ", include_str!("../../../queries/problems_in_progress.sql"),
            "; execute live({job}, 0, {problems}); deallocate live"),
    },
];
