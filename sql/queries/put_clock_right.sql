-- Corrects a batch ($2 rows) of times that a wrong clock has written, in one part of the tables ($1).
select pcfarm.put_clock_right($1, $2, $3)
