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

-- name: kept_put
INSERT INTO kept_objects (<kept_object>) VALUES (<:kept_object>)
ON CONFLICT (run_id, key) DO UPDATE SET
    etag = excluded.etag, digest = excluded.digest, size = excluded.size, epoch = excluded.epoch,
    updated_at = excluded.updated_at;

-- name: kept_get
SELECT <kept_object> FROM kept_objects WHERE run_id = :run_id AND key = :key;

-- name: kept_list
SELECT <kept_object> FROM kept_objects
WHERE run_id = :run_id AND key > :after AND key >= :prefix AND key < :beyond ORDER BY key LIMIT :limit;

-- name: kept_count
SELECT COUNT(*) FROM kept_objects WHERE run_id = :run_id;

-- name: kept_delete
DELETE FROM kept_objects WHERE run_id = :run_id AND key = :key;

-- name: kept_page
SELECT <k.kept_object>, b.size
FROM kept_objects AS k LEFT JOIN runs AS r ON r.id = k.run_id
LEFT JOIN blobs AS b ON b.project = r.project AND b.digest = k.digest AND b.condemned_at IS NULL
WHERE (k.run_id, k.key) > (:after_run, :after_key) ORDER BY k.run_id, k.key LIMIT :limit;

-- A server of an older version removed runs without their objects.
-- name: kept_of_ended
SELECT <k.kept_object> FROM kept_objects AS k LEFT JOIN runs AS r ON r.id = k.run_id
WHERE r.id IS NULL OR r.state IN ('succeeded', 'failed', 'cancelled') LIMIT :limit;
