select clock_timestamp(), session_user::text
