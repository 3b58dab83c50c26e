-- Begins a request, unless it has been begun. Of two that come at the same time one inserts the row.
select c.outcome, c.status, c.media, c.location, c.etag, c.body from pcfarm.claim_request($1, $2, $3, $4) c
