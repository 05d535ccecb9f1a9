-- name: token_insert
INSERT INTO tokens (<token>) VALUES (<:token>);

-- name: token_get
SELECT <token> FROM tokens WHERE id = :id;

-- name: token_page
SELECT <token> FROM tokens WHERE id > :after ORDER BY id LIMIT :limit;

-- Revoking twice keeps the first time.
-- name: token_revoke
UPDATE tokens SET revoked_at = COALESCE(revoked_at, :at) WHERE id = :id;

-- name: token_of_host
SELECT <token> FROM tokens
WHERE host_id = :host_id AND scope IN ('host', 'run') AND revoked_at IS NULL ORDER BY id;

-- name: token_of_ended_runs
SELECT <t.token> FROM tokens AS t LEFT JOIN runs AS r ON r.id = t.run_id
WHERE t.run_id IS NOT NULL AND t.revoked_at IS NULL AND (r.id IS NULL OR r.ended_at < :before)
ORDER BY t.id LIMIT :limit;

-- name: token_of_run
SELECT <token> FROM tokens WHERE run_id = :run_id AND scope = 'run' AND revoked_at IS NULL ORDER BY name, id;

-- name: token_of_endpoint
SELECT <token> FROM tokens WHERE endpoint_id = :endpoint_id AND revoked_at IS NULL ORDER BY id;

-- A second use changes nothing.
-- name: token_use
UPDATE tokens SET used_at = :at, used_by = :by, host_id = :host_id WHERE id = :id AND used_at IS NULL;

-- name: token_shorten
UPDATE tokens SET expires_at = :at WHERE id = :id AND (expires_at IS NULL OR expires_at > :at);
