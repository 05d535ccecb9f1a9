-- name: group_insert
INSERT INTO groups (<group>) VALUES (<:group>);

-- name: group_limit
UPDATE groups SET max_running = :max_running WHERE id = :id;

-- name: group_get
SELECT <group> FROM groups WHERE id = :id;

-- name: group_find
SELECT <group> FROM groups WHERE (id = :text OR name = :text) /*if project AND project = :project */
ORDER BY created_at DESC, id DESC LIMIT :limit;

-- name: group_delete_empty
DELETE FROM groups WHERE id = :id AND NOT EXISTS (
    SELECT 1 FROM runs WHERE group_id = :id AND group_id IS NOT NULL
);

-- name: group_page
SELECT <group> FROM groups
WHERE (created_at, id) < (:after_created_at, :after_id) /*if project AND project = :project */
    /*if text AND (id = :text OR name = :text) */
ORDER BY created_at DESC, id DESC LIMIT :limit;

-- name: group_states
SELECT state, COUNT(*) FROM runs /*sqlite INDEXED BY runs_in_group */
WHERE group_id = :group_id AND group_id IS NOT NULL GROUP BY state ORDER BY state;

-- name: group_ended
SELECT id, state, reason, substr(detail, 1, :chars) FROM runs
WHERE group_id = :group_id AND state IN ('failed', 'cancelled') AND id > :after
ORDER BY id LIMIT :limit;

-- Postgres reads no text that has a NUL in it, wherever that stands.
-- name: group_runs
SELECT r.id, r.created_at, r.name, r.state, r.seed, r.identity, r.generation, r.metrics,
    /*sqlite json_extract(s.spec, '$.params')*/
    /*pg CAST(REPLACE(s.spec, '\u0000', '\ufffd') AS JSON) ->> 'params'*/,
    /*sqlite json_extract(s.spec, '$.train')*/
    /*pg CAST(REPLACE(s.spec, '\u0000', '\ufffd') AS JSON) ->> 'train'*/
FROM runs AS r JOIN run_specs AS s ON s.run_id = r.id
WHERE r.group_id = :group_id AND (r.created_at, r.id) > (:after_created_at, :after_id)
ORDER BY r.created_at, r.id LIMIT :limit;

-- name: group_metrics
SELECT id, created_at, metrics FROM runs
WHERE group_id = :group_id AND metrics <> '{}' AND (created_at, id) > (:after_created_at, :after_id)
ORDER BY created_at, id LIMIT :limit;

-- name: group_lock
SELECT <group> FROM groups WHERE id = :id /*lock FOR UPDATE */;

-- name: group_try_lock
SELECT <group> FROM groups WHERE id = :id /*lock FOR UPDATE SKIP LOCKED */;

-- Runs that have a place: queued or further, or between two tries.
-- name: group_placed
SELECT COUNT(*) FROM (
    SELECT id FROM runs /*sqlite INDEXED BY runs_in_group */
    WHERE group_id = :group_id AND group_id IS NOT NULL AND id <> :but
        AND state IN ('queued', 'placing', 'running', 'stopping', 'halting', 'yielding')
    UNION ALL
    SELECT id FROM runs /*sqlite INDEXED BY runs_waiting */
    WHERE group_id = :group_id AND state = 'held' AND hold_reason = 'backoff' AND id <> :but
    LIMIT :limit
) AS placed;

-- Running runs, counted up to the limit.
-- name: group_running
SELECT COUNT(*) FROM (
    SELECT 1 FROM runs /*sqlite INDEXED BY runs_in_group */
    WHERE group_id = :group_id AND group_id IS NOT NULL
        AND state IN ('placing', 'running', 'stopping', 'halting', 'yielding')
    LIMIT :limit
) AS running;

-- The youngest first: they give up their places.
-- name: group_queued
SELECT id FROM runs /*sqlite INDEXED BY runs_in_group */
WHERE group_id = :group_id AND group_id IS NOT NULL AND state = 'queued'
ORDER BY ready_at DESC, id DESC LIMIT :limit;

-- name: group_waiting
SELECT id FROM runs /*sqlite INDEXED BY runs_waiting */
WHERE group_id = :group_id AND state = 'held' AND hold_reason = :hold_reason
ORDER BY ready_at, id LIMIT :limit;

-- name: group_with_held_after
SELECT group_id FROM runs /*sqlite INDEXED BY runs_waiting */
WHERE state = 'held' AND group_id > :after ORDER BY group_id LIMIT 1;
