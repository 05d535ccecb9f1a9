-- name: object_put
INSERT INTO objects (<object>) VALUES (<:object>)
ON CONFLICT (run_id, key) DO UPDATE SET
    etag = excluded.etag, body = excluded.body, epoch = excluded.epoch, updated_at = excluded.updated_at;

-- name: object_get
SELECT <object> FROM objects WHERE run_id = :run_id AND key = :key;

-- name: object_keys
SELECT key FROM objects
WHERE run_id = :run_id AND key > :after AND key >= :prefix AND key < :beyond ORDER BY key LIMIT :limit;

-- name: object_count
SELECT COUNT(*) FROM objects WHERE run_id = :run_id;

-- Runs before they and their run are deleted.
-- name: object_bytes_take
UPDATE payload_bytes SET bytes = bytes - (
    SELECT CAST(COALESCE(SUM(LENGTH(body)), 0) AS /*sqlite INTEGER*//*pg BIGINT*/) FROM objects WHERE run_id = :run_id
)
WHERE project = (SELECT project FROM runs WHERE id = :run_id);
