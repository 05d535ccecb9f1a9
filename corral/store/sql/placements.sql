-- name: executor_insert
INSERT INTO executors (<executor>) VALUES (<:executor>);

-- name: executor_get
SELECT <executor> FROM executors WHERE name = :name;

-- name: executor_lock
SELECT <executor> FROM executors WHERE name = :name /*lock FOR UPDATE */;

-- name: executor_all
SELECT <executor> FROM executors ORDER BY name;

-- name: executor_save
UPDATE executors SET options = :options, removed_at = :removed_at WHERE name = :name;

-- name: executor_delete
DELETE FROM executors WHERE name = :name;

-- name: placement_insert
INSERT INTO placements (<placement>) VALUES (<:placement>);

-- name: placement_get
SELECT <placement> FROM placements WHERE id = :id;

-- name: placement_lock
SELECT <placement> FROM placements WHERE id = :id /*lock FOR UPDATE */;

-- name: placement_save
UPDATE placements SET
    state = :state, sealed = :sealed, handle = :handle, launched_at = :launched_at, closed_at = :closed_at,
    tries = :tries, try_at = :try_at, seen = :seen, why = :why, lost = :lost,
    held_at = :held_at
WHERE id = :id;

-- name: placement_open
SELECT <placement> FROM placements
WHERE state != 'closed' /*if executor AND executor = :executor */ ORDER BY id;

-- name: placement_intended
SELECT COUNT(*) FROM placements WHERE state = 'intended' AND executor = :executor;

-- Of runs that have not begun, or wait to go on.
-- name: placement_waiting
SELECT p.ranks, r.shape FROM placements AS p JOIN runs AS r ON r.id = p.run_id
WHERE p.state IN ('intended', 'launched') AND p.project = :project
    AND r.state IN ('held', 'queued', 'placing');

-- name: placement_of_run
SELECT <placement> FROM placements WHERE run_id = :run_id ORDER BY created_at, id;

-- name: placement_costs
SELECT
    SUM(price_per_hour * (COALESCE(closed_at, :now) - held_at)) / 3600 AS cost,
    COUNT(*) - COUNT(price_per_hour) AS unpriced
FROM placements WHERE executor = :executor AND held_at IS NOT NULL;
