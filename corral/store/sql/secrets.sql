-- name: secret_put
INSERT INTO secrets (<secret>) VALUES (<:secret>)
ON CONFLICT (project, name) DO UPDATE SET
    ciphertext = excluded.ciphertext, updated_at = excluded.updated_at;

-- name: secret_get
SELECT <secret> FROM secrets WHERE project = :project AND name = :name;

-- name: secret_all
SELECT <secret> FROM secrets WHERE project = :project ORDER BY name;

-- name: secret_bytes
SELECT CAST(COALESCE(SUM(LENGTH(ciphertext)), 0) AS /*sqlite INTEGER*//*pg BIGINT*/)
FROM secrets WHERE project = :project;

-- name: secret_delete
DELETE FROM secrets WHERE project = :project AND name = :name;
