-- name: secret_put
INSERT INTO secrets (<secret>) VALUES (<:secret>)
ON CONFLICT (project, name) DO UPDATE SET
    ciphertext = excluded.ciphertext, updated_at = excluded.updated_at;

-- name: secret_get
SELECT <secret> FROM secrets WHERE project = :project AND name = :name;

-- name: secret_all
SELECT <secret> FROM secrets WHERE project = :project ORDER BY name;

-- name: secret_delete
DELETE FROM secrets WHERE project = :project AND name = :name;
