-- name: host_insert
INSERT INTO hosts (<host>) VALUES (<:host>);

-- name: host_get
SELECT <host> FROM hosts WHERE id = :id;

-- name: host_lock
SELECT <host> FROM hosts WHERE id = :id /*lock FOR UPDATE */;

-- name: host_try_lock
SELECT <host> FROM hosts WHERE id = :id /*lock FOR UPDATE SKIP LOCKED */;

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

-- What was brought up for a run is told of to its own project.
-- name: host_page
SELECT <host> FROM hosts WHERE id > :after /*if project AND NOT EXISTS (
    SELECT 1 FROM tokens AS t WHERE t.host_id = hosts.id AND t.run_id IS NOT NULL AND t.project != :project
) */ ORDER BY id LIMIT :limit;

-- name: host_joined
SELECT <host> FROM hosts WHERE id > :after AND NOT EXISTS (
    SELECT 1 FROM tokens AS t WHERE t.host_id = hosts.id AND t.run_id IS NOT NULL
) ORDER BY id LIMIT :limit;

-- name: host_project
SELECT project FROM tokens WHERE host_id = :id AND run_id IS NOT NULL LIMIT 1;

-- Hosts that were made for one run each; from the hosts on, of which there are fewer than of tokens.
-- name: host_of_runs
SELECT DISTINCT h.id, t.run_id FROM hosts AS h CROSS JOIN tokens AS t
WHERE t.host_id = h.id AND t.scope = 'run' ORDER BY h.id;

-- Those whose run has ended before then, or is gone.
-- name: host_of_ended_runs
SELECT DISTINCT <h.host> FROM hosts AS h CROSS JOIN tokens AS t LEFT JOIN runs AS r ON r.id = t.run_id
WHERE t.host_id = h.id AND t.scope = 'run' AND (r.id IS NULL OR r.ended_at < :before)
    AND NOT EXISTS (SELECT 1 FROM leases AS l WHERE l.host_id = h.id AND l.state = 'live')
ORDER BY h.id LIMIT :limit;

-- name: host_declared_by
SELECT <host> FROM hosts WHERE declared_by = :declared_by ORDER BY name;

-- name: host_busy
SELECT host_id, COUNT(*) FROM leases WHERE state = 'live' GROUP BY host_id ORDER BY host_id;

-- At most one row a minute, however often a host reports.
-- name: host_sample_put
INSERT INTO host_samples (<host_sample>) VALUES (<:host_sample>)
ON CONFLICT (host_id, at) DO UPDATE SET sample = excluded.sample;

-- From each host straight to its last row; a row from after `now` is of a clock that was set back.
-- name: host_sample_newest
SELECT <s.host_sample> FROM hosts AS h CROSS JOIN host_samples AS s
WHERE h.id IN (<list hosts>) AND s.host_id = h.id
    AND s.at = (SELECT MAX(n.at) FROM host_samples AS n WHERE n.host_id = h.id AND n.at <= :now);

-- name: host_sample_page
SELECT <host_sample> FROM host_samples
WHERE host_id = :host_id AND at > :after AND at <= :now ORDER BY at LIMIT :limit;

-- name: host_sample_prune
DELETE FROM host_samples WHERE (host_id, at) IN (
    SELECT host_id, at FROM host_samples WHERE at < :before ORDER BY at LIMIT :limit
);

-- name: host_sample_delete
DELETE FROM host_samples WHERE host_id = :host_id;
