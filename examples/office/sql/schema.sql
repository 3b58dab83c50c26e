-- A faculty office: people and courses, files of enrolments, mailings, log-ons and offerings. Safe to run again.
create schema if not exists office;

create table if not exists office.person (
    person_id text primary key,
    name      text not null,
    email     text not null
);

-- How many are enrolled is kept with the course: who enrols somebody locks its row.
create table if not exists office.course (
    course_id text primary key,
    title     text not null,
    capacity  integer not null,
    enrolled  integer not null default 0,
    constraint no_more_than_fit check (enrolled between 0 and capacity)
);

create table if not exists office.enrolment (
    course_id   text not null references office.course,
    person_id   text not null references office.person,
    enrolled_at timestamptz not null default clock_timestamp(),
    primary key (course_id, person_id)
);

-- A file, as it was submitted. How many lines it has is known when it has been read to its end.
create table if not exists office.upload (
    upload_id   bigint generated always as identity primary key,
    file_name   text not null,
    submitter   text not null,
    uploaded_at timestamptz not null default clock_timestamp(),
    lines       integer
);

-- Its text, cut between lines, so that nobody has to hold all of it.
create table if not exists office.upload_piece (
    upload_id  bigint not null references office.upload on delete cascade,
    piece      integer not null,
    first_line integer not null,
    text       text not null,
    primary key (upload_id, piece)
);

-- What became of each line: enrolled, or refused for a reason.
create table if not exists office.line_outcome (
    upload_id bigint not null references office.upload on delete cascade,
    line      integer not null,
    person_id text,
    course_id text,
    refused   text,
    primary key (upload_id, line)
);

create table if not exists office.mailing_recipient (
    mailing_id   bigint not null,
    recipient_id bigint not null,
    email        text not null,
    primary key (mailing_id, recipient_id)
);

create table if not exists office.logon (
    person_id text not null references office.person,
    at        timestamptz not null
);
create index if not exists logon_by_time on office.logon (at);

create table if not exists office.offering (
    term      text not null,
    course_id text not null references office.course,
    teacher   text not null,
    primary key (term, course_id)
);
