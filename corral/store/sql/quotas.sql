-- name: usage_all
SELECT project, used_s, at FROM usage ORDER BY project;

-- name: usage_put
INSERT INTO usage (project, used_s, at) VALUES (:project, :used_s, :at)
ON CONFLICT (project) DO UPDATE SET used_s = excluded.used_s, at = excluded.at;

-- name: quota_get
SELECT <quota> FROM quotas WHERE project = :project;

-- name: quota_lock
SELECT <quota> FROM quotas WHERE project = :project /*lock FOR UPDATE */;

-- name: quota_try_lock
SELECT <quota> FROM quotas WHERE project = :project /*lock FOR UPDATE SKIP LOCKED */;

-- name: quota_all
SELECT <quota> FROM quotas ORDER BY project;

-- name: quota_put
INSERT INTO quotas (<quota>) VALUES (<:quota>)
ON CONFLICT (project) DO UPDATE SET
    max_running = excluded.max_running, max_gpus = excluded.max_gpus, max_queued = excluded.max_queued,
    max_bytes = excluded.max_bytes, gpu_hours = excluded.gpu_hours, weight = excluded.weight,
    updated_at = excluded.updated_at, updated_by = excluded.updated_by;

-- name: quota_delete
DELETE FROM quotas WHERE project = :project;

-- name: hours_add
INSERT INTO hours (<hours>) VALUES (<:hours>)
ON CONFLICT (project, month) DO UPDATE SET
    slot_s = hours.slot_s + excluded.slot_s, gpu_s = hours.gpu_s + excluded.gpu_s;

-- name: hours_get
SELECT <hours> FROM hours WHERE project = :project AND month = :month;

-- name: hours_page
SELECT <hours> FROM hours WHERE (project, month) > (:project, :month)
ORDER BY project, month LIMIT :limit;
