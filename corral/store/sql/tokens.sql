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

-- Also of a host that is gone, and of a credential that is revoked.
-- name: token_newest_of_host
SELECT <token> FROM tokens WHERE host_id = :host_id AND scope IN ('host', 'run')
ORDER BY created_at DESC, id DESC LIMIT 1;

-- name: token_of_run
SELECT <token> FROM tokens WHERE run_id = :run_id AND scope = 'run' AND revoked_at IS NULL ORDER BY name, id;

-- name: token_seen_of_run
SELECT COUNT(*) FROM tokens AS t JOIN hosts AS h ON h.id = t.host_id
WHERE t.run_id = :run_id AND t.scope = 'run' AND t.revoked_at IS NULL AND h.last_seen_at >= :since;

-- name: token_made_for
SELECT <token> FROM tokens WHERE run_id = :run_id AND scope = 'run' ORDER BY name, id;

-- name: token_of_endpoint
SELECT <token> FROM tokens WHERE endpoint_id = :endpoint_id AND revoked_at IS NULL ORDER BY id;

-- A second use changes nothing.
-- name: token_use
UPDATE tokens SET used_at = :at, used_by = :by, host_id = :host_id WHERE id = :id AND used_at IS NULL;

-- name: token_shorten
UPDATE tokens SET expires_at = :at WHERE id = :id AND (expires_at IS NULL OR expires_at > :at);
