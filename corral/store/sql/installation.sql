-- name: installation_get
SELECT <installation> FROM installation;

-- name: installation_insert
INSERT INTO installation (<installation>) VALUES (<:installation>);

-- name: installation_count_runs
SELECT COUNT(*) FROM runs;

-- On Postgres every submission would wait for the one row; what is accepted there is the database's to keep.
-- name: installation_accepted
UPDATE installation SET accepted = accepted + 1 /*pg WHERE FALSE */;

-- name: loop_tick
INSERT INTO loops (loop, at) VALUES (:loop, :at) ON CONFLICT (loop) DO UPDATE SET at = excluded.at;
