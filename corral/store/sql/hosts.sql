-- name: host_insert
INSERT INTO hosts (<host>) VALUES (<:host>);

-- name: host_get
SELECT <host> FROM hosts WHERE id = :id;

-- name: host_lock
SELECT <host> FROM hosts WHERE id = :id /*lock FOR UPDATE */;

-- name: host_by_name
SELECT <host> FROM hosts WHERE name = :name;

-- name: host_save
UPDATE hosts SET
    name = :name, capability = :capability, capability_digest = :capability_digest, slots = :slots,
    boot_id = :boot_id, draining = :draining, last_seen_at = :last_seen_at,
    declared = :declared, declared_digest = :declared_digest, declared_by = :declared_by,
    revoked_at = :revoked_at, strikes = :strikes, set_aside_until = :set_aside_until,
    set_aside_why = :set_aside_why, struck_by = :struck_by
WHERE id = :id;

-- name: host_seen
UPDATE hosts SET last_seen_at = :at WHERE id = :id;

-- Usually matches no row, and then locks none.
-- name: host_forgive
UPDATE hosts SET strikes = 0, set_aside_until = NULL, set_aside_why = NULL, struck_by = NULL
WHERE id = :id AND strikes > 0;

-- name: host_pull_in
UPDATE hosts SET set_aside_until = :latest WHERE set_aside_until > :latest;

-- name: host_delete
DELETE FROM hosts WHERE id = :id;

-- name: host_page
SELECT <host> FROM hosts WHERE id > :after ORDER BY id LIMIT :limit;

-- name: host_declared_by
SELECT <host> FROM hosts WHERE declared_by = :declared_by ORDER BY name;

-- name: host_busy
SELECT host_id, COUNT(*) FROM leases WHERE state = 'live' GROUP BY host_id ORDER BY host_id;
