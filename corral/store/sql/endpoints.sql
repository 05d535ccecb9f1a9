-- name: endpoint_insert
INSERT INTO endpoints (<endpoint>) VALUES (<:endpoint>) ON CONFLICT (project, name) DO NOTHING;

-- name: endpoint_get
SELECT <endpoint> FROM endpoints WHERE id = :id;

-- name: endpoint_lock
SELECT <endpoint> FROM endpoints WHERE id = :id /*lock FOR UPDATE */;

-- name: endpoint_by_name
SELECT <endpoint> FROM endpoints WHERE project = :project AND name = :name;

-- name: endpoint_save
UPDATE endpoints SET
    live = :live, current = :current, scaling = :scaling, stopped = :stopped, called_at = :called_at,
    public = :public
WHERE id = :id;

-- name: endpoint_touch
UPDATE endpoints SET called_at = :at WHERE id = :id AND called_at < :at;

-- name: endpoint_page
SELECT <endpoint> FROM endpoints WHERE id > :after /*if project AND project = :project */
ORDER BY id LIMIT :limit;

-- name: endpoint_delete
DELETE FROM endpoints WHERE id = :id;

-- name: version_insert
INSERT INTO endpoint_versions (<version>) VALUES (<:version>);

-- name: version_get
SELECT <version> FROM endpoint_versions WHERE endpoint_id = :endpoint_id AND version = :version;

-- name: version_state
SELECT state, detail FROM endpoint_versions WHERE endpoint_id = :endpoint_id AND version = :version;

-- name: version_all
SELECT <version_summary> FROM endpoint_versions WHERE endpoint_id = :endpoint_id
ORDER BY version DESC /*if limit LIMIT :limit */;

-- name: version_save
UPDATE endpoint_versions SET state = :state, detail = :detail
WHERE endpoint_id = :endpoint_id AND version = :version;

-- name: version_delete
DELETE FROM endpoint_versions WHERE endpoint_id = :id;

-- name: pool_put
INSERT INTO pools (<pool>) VALUES (<:pool>) ON CONFLICT (endpoint_id, pool) DO NOTHING;

-- name: pool_get
SELECT <pool> FROM pools WHERE endpoint_id = :endpoint_id AND pool = :pool;

-- name: pool_delete
DELETE FROM pools WHERE endpoint_id = :id;

-- name: instance_insert
INSERT INTO instances (<instance>) VALUES (<:instance>);

-- name: instance_get
SELECT <instance> FROM instances WHERE run_id = :run_id;

-- name: instance_serving
SELECT l.run_id, l.host_id, l.epoch, l.state, i.endpoint_id, i.version, i.pool, i.ready_at, v.state, e.current,
    e.stopped
FROM leases AS l
JOIN runs AS r ON r.id = l.run_id
JOIN instances AS i ON i.run_id = l.run_id
JOIN endpoints AS e ON e.id = i.endpoint_id
JOIN endpoint_versions AS v ON v.endpoint_id = i.endpoint_id AND v.version = i.version
WHERE l.id = :lease_id /*lock FOR UPDATE OF r, l */;

-- name: instance_all
SELECT <instance> FROM instances WHERE endpoint_id = :endpoint_id ORDER BY created_at, run_id;

-- name: instance_save
UPDATE instances SET ready_at = :ready_at WHERE run_id = :run_id;

-- name: instance_delete
DELETE FROM instances WHERE run_id = :run_id;

-- name: instance_delete_all
DELETE FROM instances WHERE endpoint_id = :id;

-- Runs before the pools are deleted.
-- name: pool_bytes_take
UPDATE payload_bytes SET bytes = bytes - (
    SELECT CAST(COALESCE(SUM(LENGTH(params)), 0) AS /*sqlite INTEGER*//*pg BIGINT*/) FROM pools WHERE endpoint_id = :id
)
WHERE project = (SELECT project FROM endpoints WHERE id = :id);
