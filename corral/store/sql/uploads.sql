-- name: upload_put
INSERT INTO uploads (project, name, bytes, updated_at) VALUES (:project, :name, :bytes, :now)
ON CONFLICT (project, name) DO UPDATE SET bytes = excluded.bytes, updated_at = excluded.updated_at;

-- name: upload_drop
DELETE FROM uploads WHERE project = :project AND name = :name;

-- name: upload_bytes
SELECT CAST(COALESCE(SUM(bytes), 0) AS /*sqlite INTEGER*//*pg BIGINT*/) FROM uploads WHERE project = :project;

-- name: upload_sweep
DELETE FROM uploads WHERE updated_at < :before OR (name LIKE 'open:%' AND updated_at < :open_before);
