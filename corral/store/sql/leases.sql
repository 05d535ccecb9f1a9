-- name: lease_insert
INSERT INTO leases (<lease>) VALUES (<:lease>);

-- name: lease_get
SELECT <lease> FROM leases WHERE id = :id;

-- The run first: every transaction locks the run before its leases.
-- name: lease_hold
SELECT <r.run>, <l.lease> FROM leases AS l JOIN runs AS r ON r.id = l.run_id
WHERE l.id = :id /*lock FOR UPDATE OF r, l */;

-- name: lease_hold_of_host
SELECT <r.run>, <l.lease>, h.revoked_at
FROM leases AS l JOIN runs AS r ON r.id = l.run_id LEFT JOIN hosts AS h ON h.id = l.host_id
WHERE l.id = :id AND l.host_id = :host_id /*lock FOR UPDATE OF r, l */;

-- name: lease_lock_runs
SELECT COUNT(*) /*lock FROM (
    SELECT r.id FROM runs AS r JOIN leases AS l ON l.run_id = r.id
    WHERE l.id IN (<list ids>) ORDER BY r.id FOR UPDATE OF r
) AS locked */;

-- name: lease_save
UPDATE leases SET
    boot_id = :boot_id, gpus = :gpus, state = :state, beaten_at = :beaten_at, expires_at = :expires_at,
    active_at = :active_at, closed_at = :closed_at, outcome = :outcome, outcome_digest = :outcome_digest,
    outcome_answer = :outcome_answer, progress = :progress, sample = :sample, event_seq = :event_seq,
    log_bytes = :log_bytes
WHERE id = :id;

-- name: lease_live_of_host
SELECT <lease> FROM leases WHERE host_id = :host_id AND state = 'live' ORDER BY granted_at, rank, id;

-- name: lease_held
SELECT l.id, l.request_id, l.gpus, l.gpu_bytes, COALESCE(s.requirements, '{}')
FROM leases l LEFT JOIN runs r ON r.id = l.run_id LEFT JOIN shapes s ON s.shape = r.shape
WHERE l.host_id = :host_id AND l.state = 'live' ORDER BY l.granted_at, l.rank, l.id;

-- name: lease_held_by_host
SELECT l.host_id, l.id, l.request_id, l.gpus, l.gpu_bytes, COALESCE(s.requirements, '{}')
FROM leases l LEFT JOIN runs r ON r.id = l.run_id LEFT JOIN shapes s ON s.shape = r.shape
WHERE l.state = 'live' ORDER BY l.host_id, l.id;

-- When the wall limit of its run ends each lease that has one.
-- name: lease_ends
SELECT l.id, l.granted_at + r.wall_limit_s - r.ran_s
FROM leases AS l JOIN runs AS r ON r.id = l.run_id
WHERE l.state = 'live' AND r.wall_limit_s IS NOT NULL;

-- name: lease_live_of_run
SELECT <lease> FROM leases WHERE run_id = :run_id AND state = 'live' ORDER BY rank;

-- The leases that the ranks of an attempt have, or had last.
-- name: lease_of_attempt
SELECT <l.lease> FROM ranks AS k JOIN leases AS l ON l.id = k.lease_id
WHERE k.run_id = :run_id AND k.attempt = :attempt ORDER BY k.rank;

-- A host takes up what was assigned to it.
-- name: lease_take_up
UPDATE leases SET request_id = :request_id, boot_id = :boot_id WHERE id = :id;

-- name: lease_expired
SELECT id FROM leases WHERE state = 'live' AND expires_at <= :now ORDER BY expires_at, rank, id LIMIT :limit;

-- name: lease_restamp
UPDATE leases SET expires_at = :expires_at WHERE state = 'live';

-- name: lease_live_count
SELECT COUNT(*) FROM leases WHERE state = 'live';

-- name: lease_live_of_project
SELECT <lease> FROM leases /*sqlite INDEXED BY leases_project */
WHERE project = :project AND state = 'live' ORDER BY gpus, granted_at;

-- name: lease_in_use
SELECT project, gpus, COUNT(*), SUM(CASE WHEN granted_at > :since THEN granted_at ELSE :since END)
FROM leases /*sqlite INDEXED BY leases_project */
WHERE state = 'live' /*if project AND project = :project */
GROUP BY project, gpus ORDER BY project, gpus;
