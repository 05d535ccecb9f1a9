-- name: schedule_insert
INSERT INTO schedules (<schedule>) VALUES (<:schedule>);

-- name: schedule_get
SELECT <schedule> FROM schedules WHERE id = :id;

-- name: schedule_lock
SELECT <schedule> FROM schedules WHERE id = :id /*lock FOR UPDATE */;

-- name: schedule_by_name
SELECT <schedule> FROM schedules WHERE project = :project AND name = :name;

-- name: schedule_save
UPDATE schedules SET
    spec = :spec, cron = :cron, every_s = :every_s, timezone = :timezone, missed = :missed,
    overlap = :overlap, paused = :paused, next_at = :next_at, last_at = :last_at, last_run = :last_run,
    fired = :fired, skipped = :skipped, problem = :problem
WHERE id = :id;

-- name: schedule_page
SELECT <schedule> FROM schedules WHERE id > :after ORDER BY id LIMIT :limit;

-- name: schedule_due
SELECT id FROM schedules WHERE paused = 0 AND next_at IS NOT NULL AND next_at <= :now
ORDER BY next_at LIMIT :limit;

-- name: schedule_delete
DELETE FROM schedules WHERE id = :id;
