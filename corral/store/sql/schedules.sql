-- name: schedule_insert
INSERT INTO schedules (<schedule>) VALUES (<:schedule>);

-- name: schedule_get
SELECT <schedule> FROM schedules WHERE id = :id;

-- name: schedule_lock
SELECT <schedule> FROM schedules WHERE id = :id /*lock FOR UPDATE */;

-- name: schedule_by_name
SELECT <schedule> FROM schedules WHERE project = :project AND name = :name;

-- name: schedule_find
SELECT id FROM schedules WHERE (id = :text OR name = :text) /*if project AND project = :project */
ORDER BY id LIMIT :limit;

-- name: schedule_ahead
SELECT id FROM schedules WHERE counted_at IS NOT NULL AND counted_at > :now ORDER BY counted_at LIMIT :limit;

-- name: schedule_unfinished
SELECT id FROM runs /*sqlite INDEXED BY runs_of_schedule */
WHERE schedule_id = :schedule_id AND schedule_id IS NOT NULL
    AND state IN ('held', 'queued', 'placing', 'running', 'stopping', 'halting', 'yielding')
ORDER BY id LIMIT :limit;

-- name: schedule_save
UPDATE schedules SET
    cron = :cron, every_s = :every_s, timezone = :timezone, missed = :missed,
    overlap = :overlap, paused = :paused, next_at = :next_at, last_at = :last_at, last_run = :last_run,
    fired = :fired, skipped = :skipped, problem = :problem, counted_at = :counted_at
WHERE id = :id;

-- name: schedule_put_spec
UPDATE schedules SET spec = :spec WHERE id = :id;

-- name: schedule_page
SELECT <schedule> FROM schedules WHERE id > :after /*if project AND project = :project */
ORDER BY id LIMIT :limit;

-- name: schedule_due
SELECT id FROM schedules WHERE paused = 0 AND next_at IS NOT NULL AND next_at <= :now
ORDER BY next_at LIMIT :limit;

-- name: schedule_delete
DELETE FROM schedules WHERE id = :id;
