//! What must hold at every moment: queries that return no rows, each a name and a text. They read whole tables, so they
//! are for tests, harnesses and the demo, and never for a server.

/// A row of any of them is a bug.
pub const INVARIANTS: &[(&str, &str)] = &[
    ("attempts_are_limited", include_str!("../checks/attempts_are_limited.sql")),
    ("checkouts_count_right", include_str!("../checks/checkouts_count_right.sql")),
    ("checkouts_follow_each_other", include_str!("../checks/checkouts_follow_each_other.sql")),
    ("ended_jobs_are_complete", include_str!("../checks/ended_jobs_are_complete.sql")),
    ("ended_jobs_hold_nothing", include_str!("../checks/ended_jobs_hold_nothing.sql")),
    ("ended_jobs_say_how", include_str!("../checks/ended_jobs_say_how.sql")),
    ("failed_attempts_wait", include_str!("../checks/failed_attempts_wait.sql")),
    ("nothing_comes_after_the_end", include_str!("../checks/nothing_comes_after_the_end.sql")),
    ("nothing_is_done_twice", include_str!("../checks/nothing_is_done_twice.sql")),
    ("pointers_are_in_their_lanes", include_str!("../checks/pointers_are_in_their_lanes.sql")),
    ("problems_are_in_one_place", include_str!("../checks/problems_are_in_one_place.sql")),
    ("progress_is_the_truth", include_str!("../checks/progress_is_the_truth.sql")),
    ("results_are_of_problems", include_str!("../checks/results_are_of_problems.sql")),
    ("schedules_have_one_next", include_str!("../checks/schedules_have_one_next.sql")),
    ("schedules_trigger_once", include_str!("../checks/schedules_trigger_once.sql")),
    ("triggers_are_enqueued", include_str!("../checks/triggers_are_enqueued.sql")),
];
