-- name: token_insert
INSERT INTO tokens (<token>) VALUES (<:token>);

-- name: token_get
SELECT <token> FROM tokens WHERE id = :id;

-- name: token_page
SELECT <token> FROM tokens WHERE id > :after ORDER BY id LIMIT :limit;

-- Revoking twice keeps the first time.
-- name: token_revoke
UPDATE tokens SET revoked_at = COALESCE(revoked_at, :at) WHERE id = :id;

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
