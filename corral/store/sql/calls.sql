-- name: call_insert
INSERT INTO calls (<call>) VALUES (<:call>);

-- name: call_insert_once
INSERT INTO calls (<call>) VALUES (<:call>)
ON CONFLICT (endpoint_id, key) WHERE key IS NOT NULL DO NOTHING;

-- name: call_get
SELECT <call> FROM calls WHERE id = :id;

-- name: call_lock
SELECT <call> FROM calls WHERE id = :id /*lock FOR UPDATE */;

-- name: call_many
SELECT <call> FROM calls WHERE id IN (<list ids>) ORDER BY id;

-- name: call_ended
SELECT <call> FROM calls
WHERE id IN (<list ids>) AND /*sqlite +*/state IN ('succeeded', 'failed', 'cancelled', 'expired')
ORDER BY id;

-- name: call_by_key
SELECT <call> FROM calls WHERE endpoint_id = :endpoint_id AND key = :key;

-- name: call_save
UPDATE calls SET
    ready_at = :ready_at, expires_at = :expires_at, state = :state, attempt = :attempt, lost = :lost,
    lease_id = :lease_id, run_id = :run_id, started_at = :started_at, ended_at = :ended_at, ran_s = :ran_s,
    result_format = :result_format, result = :result, result_blob = :result_blob,
    result_bytes = :result_bytes, error = :error, chunks = :chunks, forget_at = :forget_at
WHERE id = :id;

-- name: call_assign
UPDATE calls SET
    state = 'assigned', attempt = attempt + 1, lease_id = :lease_id, run_id = :run_id, started_at = :now
WHERE id IN (<list ids>) AND /*sqlite +*/state = 'queued' RETURNING id;

-- name: call_of_lease
SELECT <call> FROM calls WHERE lease_id = :lease_id AND state = 'assigned' AND started_at < :before ORDER BY id;

-- name: call_orphans
SELECT c.id FROM calls AS c LEFT JOIN leases AS l ON l.id = c.lease_id
WHERE c.state = 'assigned' AND (l.id IS NULL OR l.state <> 'live') ORDER BY c.id LIMIT :limit;

-- name: pool_first
SELECT endpoint_id, version, pool FROM calls /*sqlite INDEXED BY calls_queued */ WHERE state = 'queued'
ORDER BY endpoint_id, version, pool LIMIT 1;

-- name: pool_next
SELECT endpoint_id, version, pool FROM calls /*sqlite INDEXED BY calls_queued */
WHERE state = 'queued' AND (endpoint_id, version, pool) > (:endpoint_id, :version, :key)
ORDER BY endpoint_id, version, pool LIMIT 1;

-- name: call_waiting
SELECT priority, ready_at, id FROM calls /*sqlite INDEXED BY calls_queued */
WHERE state = 'queued' AND endpoint_id = :endpoint_id AND version = :version AND pool = :key
    /*if after AND (-priority, ready_at, id) > (-:priority, :ready_at, :after) */
ORDER BY priority DESC, ready_at, id LIMIT :limit;

-- Found through the pins, which name the calls that hold these bytes.
-- name: call_gave
SELECT 1 FROM pins AS p JOIN calls AS c ON c.id = substr(p.holder, 6)
WHERE p.digest = :blob AND p.project = c.project AND p.holder LIKE 'call:%' AND c.submitted_by = :submitted_by
LIMIT 1;

-- name: call_counts
SELECT state, COUNT(*) FROM calls
WHERE endpoint_id = :endpoint_id AND state IN ('queued', 'assigned') GROUP BY state ORDER BY state;

-- name: call_page
SELECT <call> FROM calls
WHERE (created_at, id) < (:at, :last)
    /*if project AND project = :project */
    /*if endpoint_id AND endpoint_id = :endpoint_id */
    /*if state AND /*sqlite +*/state = :state */
    /*if function AND function = :function */
ORDER BY created_at DESC, id DESC LIMIT :limit;

-- Few calls among many that succeeded, so they have an index of their own.
-- name: call_dead
SELECT <call> FROM calls /*sqlite INDEXED BY calls_dead */
WHERE state IN ('failed', 'expired') AND (created_at, id) < (:at, :last)
    /*if project AND project = :project */
    /*if endpoint_id AND endpoint_id = :endpoint_id */
    /*if function AND function = :function */
ORDER BY created_at DESC, id DESC LIMIT :limit;

-- name: call_due
SELECT id FROM calls WHERE state = 'queued' AND expires_at IS NOT NULL AND expires_at <= :now
ORDER BY expires_at LIMIT :limit;

-- name: call_forgettable
SELECT id FROM calls WHERE forget_at IS NOT NULL AND forget_at <= :now ORDER BY forget_at LIMIT :limit;

-- name: call_drop_payloads
UPDATE calls SET
    args_format = '', args = NULL, args_blob = NULL, result_format = NULL, result = NULL, result_blob = NULL,
    forget_at = :forget_at
WHERE id = :id;

-- name: call_delete
DELETE FROM calls WHERE id = :id;

-- name: chunk_insert
INSERT INTO call_chunks (<chunk>) VALUES (<:chunk>);

-- name: chunk_page
SELECT <chunk> FROM call_chunks WHERE call_id = :call_id AND n > :after ORDER BY n LIMIT :limit;

-- name: chunk_delete
DELETE FROM call_chunks WHERE call_id = :id;

-- name: payload_bytes_get
SELECT bytes FROM payload_bytes WHERE project = :project;

-- name: payload_bytes_put
INSERT INTO payload_bytes (project, bytes) VALUES (:project, :bytes)
ON CONFLICT (project) DO UPDATE SET bytes = excluded.bytes;

-- name: payload_bytes_add
UPDATE payload_bytes SET bytes = bytes + :bytes WHERE project = :project;

-- name: payload_bytes_count
SELECT CAST(
    COALESCE((
        SELECT SUM(COALESCE(LENGTH(args), 0) + COALESCE(LENGTH(result), 0)) FROM calls WHERE project = :project
    ), 0)
    + COALESCE((
        SELECT SUM(COALESCE(LENGTH(k.body), 0)) FROM call_chunks AS k JOIN calls AS c ON c.id = k.call_id
        WHERE c.project = :project
    ), 0)
    + COALESCE((
        SELECT SUM(LENGTH(p.params)) FROM pools AS p JOIN endpoints AS e ON e.id = p.endpoint_id
        WHERE e.project = :project
    ), 0)
    + COALESCE((
        SELECT SUM(LENGTH(o.body)) FROM objects AS o JOIN runs AS r ON r.id = o.run_id
        WHERE r.project = :project
    ), 0)
AS /*sqlite INTEGER*//*pg BIGINT*/);

-- Each of the next three runs before what it counts is deleted.
-- name: call_bytes_take
UPDATE payload_bytes SET bytes = bytes - (
    SELECT COALESCE(LENGTH(args), 0) + COALESCE(LENGTH(result), 0) FROM calls WHERE id = :id
)
WHERE project = (SELECT project FROM calls WHERE id = :id);

-- name: chunk_bytes_take
UPDATE payload_bytes SET bytes = bytes - (
    SELECT CAST(COALESCE(SUM(LENGTH(body)), 0) AS /*sqlite INTEGER*//*pg BIGINT*/) FROM call_chunks WHERE call_id = :id
)
WHERE project = (SELECT project FROM calls WHERE id = :id);
