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
    boot_id = :boot_id, draining = :draining, last_seen_at = :last_seen_at
WHERE id = :id;

-- name: host_page
SELECT <host> FROM hosts WHERE id > :after ORDER BY id LIMIT :limit;

-- name: host_busy
SELECT host_id, COUNT(*) FROM leases WHERE state = 'live' GROUP BY host_id ORDER BY host_id;
