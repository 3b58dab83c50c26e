-- $1: a person, $2: a course, whose row is locked: whoever else enrols in it waits.
select p.person_id is not null as person_exists, c.course_id is not null as course_exists,
    coalesce(c.enrolled >= c.capacity, false) as is_full, e.person_id is not null as is_enrolled
from (values ($1::text, $2::text)) k (person_id, course_id)
left join office.person p on p.person_id = k.person_id
left join lateral (
    select c.course_id, c.enrolled, c.capacity from office.course c where c.course_id = k.course_id for update) c on true
left join office.enrolment e on e.course_id = k.course_id and e.person_id = k.person_id
