-- name: object_put
INSERT INTO objects (<object>) VALUES (<:object>)
ON CONFLICT (run_id, key) DO UPDATE SET
    etag = excluded.etag, body = excluded.body, epoch = excluded.epoch, updated_at = excluded.updated_at;

-- name: object_get
SELECT <object> FROM objects WHERE run_id = :run_id AND key = :key;

-- name: object_keys
SELECT key FROM objects
WHERE run_id = :run_id AND key > :after AND key >= :prefix AND key < :beyond ORDER BY key LIMIT :limit;

-- name: object_delete
DELETE FROM objects WHERE run_id = :run_id AND key = :key;

-- name: object_counts
SELECT <object_counts> FROM object_counts WHERE run_id = :run_id;

-- name: object_counts_put
INSERT INTO object_counts (<object_counts>) VALUES (<:object_counts>)
ON CONFLICT (run_id) DO UPDATE SET
    attempt = excluded.attempt, objects = excluded.objects, bytes = excluded.bytes;

-- name: object_ended_runs
SELECT c.run_id FROM object_counts c JOIN runs r ON r.id = c.run_id
WHERE r.state IN ('succeeded', 'failed', 'cancelled') LIMIT :limit;

-- name: object_bytes_of
SELECT CAST(COALESCE(SUM(c.bytes), 0) AS /*sqlite INTEGER*//*pg BIGINT*/)
FROM object_counts c JOIN runs r ON r.id = c.run_id WHERE r.project = :project;
