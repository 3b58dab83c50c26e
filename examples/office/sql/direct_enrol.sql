-- $1: a person, $2: a course that has room.
with counted as (update office.course set enrolled = enrolled + 1 where course_id = $2)
insert into office.enrolment (course_id, person_id) values ($2, $1)
