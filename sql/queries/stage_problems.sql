-- Where problems that are to be put in order wait until all are there. The checks are those of pcfarm.problem, so that what is
-- refused is refused while its number is known.
create temporary table pcfarm_staged (
    number    bigint not null,
    member_of text not null,
    key       text not null constraint key_at_most_1_kib check (octet_length(key) <= 1024),
    payload   jsonb not null constraint payload_at_most_1_mib check (pg_column_size(payload) <= 1048576),
    job_type  text,
    priority  integer not null,
    deadline  timestamptz,
    not_before timestamptz,
    weight    integer constraint positive_weight check (weight > 0)
) on commit drop
