-- name: run_insert
INSERT INTO runs (<run>) VALUES (<:run>);

-- name: spec_insert
INSERT INTO run_specs (run_id, spec) VALUES (:run_id, :spec);

-- name: run_get
SELECT <run> FROM runs WHERE id = :id;

-- name: run_lock
SELECT <run> FROM runs WHERE id = :id /*lock FOR UPDATE */;

-- Several runs are always locked in the order of their ids: two transactions must not wait for each other.
-- name: run_lock_all
SELECT COUNT(*) /*lock FROM (
    SELECT id FROM runs WHERE id IN (<list ids>) ORDER BY id FOR UPDATE
) AS locked */;

-- name: run_try_lock
SELECT <r.run>, s.spec FROM runs AS r JOIN run_specs AS s ON s.run_id = r.id
WHERE r.id = :id /*lock FOR UPDATE OF r SKIP LOCKED */;

-- name: run_save
UPDATE runs SET
    state = :state, hold_reason = :hold_reason, not_before = :not_before, ready_at = :ready_at,
    started_at = :started_at, ended_at = :ended_at, reason = :reason, detail = :detail,
    exit_code = :exit_code, signal = :signal, attempt = :attempt, epoch = :epoch,
    used_infrastructure = :used_infrastructure, used_memory = :used_memory, used_code = :used_code,
    ran_s = :ran_s, stop_deadline = :stop_deadline, stop_reason = :stop_reason, last_host = :last_host,
    artifact_id = :artifact_id, metrics = :metrics, event_n = :event_n,
    lost_hosts = :lost_hosts, cost = :cost, updated_at = :updated_at
WHERE id = :id;

-- name: run_save_policy
UPDATE runs SET
    name = :name, group_id = :group_id, shape = :shape, priority = :priority, labels = :labels,
    retry_infrastructure = :retry_infrastructure, retry_memory = :retry_memory, retry_code = :retry_code,
    wall_limit_s = :wall_limit_s, stall_limit_s = :stall_limit_s, grace_s = :grace_s,
    preemptible = :preemptible, policy = :policy
WHERE id = :id;

-- name: run_reshape
UPDATE runs SET shape = :shape WHERE id = :id;

-- name: run_of_manifest
SELECT <manifest_run> FROM runs
WHERE project = :project AND manifest = :manifest ORDER BY identity, generation;

-- name: spec_save
UPDATE run_specs SET spec = :spec WHERE run_id = :run_id;

-- name: spec_get
SELECT spec FROM run_specs WHERE run_id = :run_id;

-- Postgres reads no text that has a NUL in it, wherever that stands.
-- name: spec_settings
SELECT run_id,
    /*sqlite json_extract(spec, '$.params')*/
    /*pg CAST(REPLACE(spec, '\u0000', '\ufffd') AS JSON) ->> 'params'*/,
    /*sqlite json_extract(spec, '$.train')*/
    /*pg CAST(REPLACE(spec, '\u0000', '\ufffd') AS JSON) ->> 'train'*/
FROM run_specs WHERE run_id IN (<list ids>);

-- name: run_by_prefix
SELECT id FROM runs WHERE id >= :low AND id < :high /*if project AND project = :project */
ORDER BY id LIMIT :limit;

-- name: run_beginning
SELECT <run> FROM runs WHERE id >= :low AND id < :high /*if project AND /*sqlite +*/project = :project */
ORDER BY id LIMIT :limit;

-- The caller leads with one column that has an index and gives the rest as checks; SQLite, which has no
-- statistics, is kept from using an index for a check by the plus sign.
-- name: run_page
SELECT <run> FROM runs
WHERE (created_at, id) < (:after_created_at, :after_id)
    /*if state AND state = :state */
    /*if project AND project = :project */
    /*if name AND name = :name */
    /*if group_id AND group_id = :group_id */
    /*if schedule_id AND schedule_id = :schedule_id */
    /*if check_state AND /*sqlite +*/state = :check_state */
    /*if check_project AND /*sqlite +*/project = :check_project */
    /*if ended_before AND ended_at < :ended_before */
    /*if kind AND kind = :kind */
    /*if other_kind AND kind <> :other_kind */
    /*if label AND EXISTS (
        SELECT 1 FROM json_each(/*sqlite labels*//*pg CAST(labels AS JSON)*/) AS l
        WHERE l.key = :label AND l.value /*pg #>> '{}' */ = :label_value
    ) */
    /*if submitted_by AND /*sqlite +*/submitted_by = :submitted_by AND kind <> 'service' */
ORDER BY created_at DESC, id DESC LIMIT :limit;

-- name: state_project_after
SELECT project FROM runs WHERE state = :state /*if after AND project > :after */
ORDER BY project LIMIT 1;

-- SQLite has no statistics to choose between the queue's index and that of states, so the index is named.
-- name: lane_first
SELECT shape, priority, project, ready_at, id FROM runs /*sqlite INDEXED BY runs_claim */
WHERE state = 'queued' ORDER BY shape, priority DESC, project, ready_at, id LIMIT 1;

-- The lane after a given one: three seeks, of which the first that finds something counts.
-- name: lane_next
SELECT * FROM (
    SELECT 1 AS turn, shape, priority, project, ready_at, id FROM runs /*sqlite INDEXED BY runs_claim */
    WHERE state = 'queued' AND shape = :shape AND priority = :priority AND project > :project
    ORDER BY project, ready_at, id LIMIT 1
) AS by_project
UNION ALL SELECT * FROM (
    SELECT 2 AS turn, shape, priority, project, ready_at, id FROM runs /*sqlite INDEXED BY runs_claim */
    WHERE state = 'queued' AND shape = :shape AND priority < :priority
    ORDER BY priority DESC, project, ready_at, id LIMIT 1
) AS by_priority
UNION ALL SELECT * FROM (
    SELECT 3 AS turn, shape, priority, project, ready_at, id FROM runs /*sqlite INDEXED BY runs_claim */
    WHERE state = 'queued' AND shape > :shape
    ORDER BY shape, priority DESC, project, ready_at, id LIMIT 1
) AS by_shape;

-- name: run_ready
SELECT ready_at, id FROM runs /*sqlite INDEXED BY runs_claim */
WHERE state = 'queued' AND shape = :shape AND priority = :priority AND project = :project
    /*if after_id AND (ready_at, id) > (:after_ready_at, :after_id) */
ORDER BY ready_at, id LIMIT :limit;

-- name: run_ready_names
SELECT ready_at, id, name, kind FROM runs /*sqlite INDEXED BY runs_claim */
WHERE state = 'queued' AND shape = :shape AND priority = :priority AND project = :project
    AND (ready_at, id) > (:after_ready_at, :after_id)
ORDER BY ready_at, id LIMIT :limit;

-- name: run_due_held
SELECT id FROM runs /*sqlite INDEXED BY runs_held */
WHERE state = 'held' AND not_before IS NOT NULL AND not_before <= :now
ORDER BY not_before LIMIT :limit;

-- name: run_due_stops
SELECT id FROM runs /*sqlite INDEXED BY runs_stop */
WHERE stop_deadline IS NOT NULL AND stop_deadline <= :now AND state IN ('stopping', 'halting', 'yielding')
ORDER BY stop_deadline LIMIT :limit;

-- name: run_over_wall
SELECT DISTINCT r.id FROM runs AS r /*sqlite INDEXED BY runs_wall */
JOIN leases AS l ON l.run_id = r.id AND l.state = 'live'
WHERE r.state = 'running' AND r.wall_limit_s IS NOT NULL
    AND r.ran_s + :now - CASE WHEN l.granted_at > :since THEN l.granted_at ELSE :since END >= r.wall_limit_s
LIMIT :limit;

-- name: run_stalled
SELECT l.id FROM runs AS r /*sqlite INDEXED BY runs_stall */
JOIN leases AS l ON l.run_id = r.id AND l.state = 'live'
WHERE r.state = 'running' AND r.stall_limit_s IS NOT NULL AND l.active_at + r.stall_limit_s <= :now
LIMIT :limit;

-- name: run_ended_before
SELECT id FROM runs /*sqlite INDEXED BY runs_logged */
WHERE logged = 1 AND ended_at IS NOT NULL AND ended_at < :when
    AND state IN ('succeeded', 'failed', 'cancelled')
ORDER BY ended_at LIMIT :limit;

-- name: run_waiting_projects
SELECT project, state, COUNT(*), MIN(ready_at) FROM runs
WHERE state IN ('held', 'queued', 'placing', 'running', 'stopping', 'halting', 'yielding')
GROUP BY project, state ORDER BY project, state;

-- name: run_failures
SELECT project, COALESCE(reason, 'unknown'), COUNT(*) FROM runs WHERE state = 'failed'
GROUP BY project, COALESCE(reason, 'unknown') ORDER BY 1, 2;

-- name: run_counts
SELECT state, COUNT(*) FROM runs
WHERE state IN ('held', 'queued', 'placing', 'running', 'stopping', 'halting', 'yielding')
GROUP BY state ORDER BY state;

-- name: run_preemptible
SELECT <run> FROM runs /*sqlite INDEXED BY runs_preemptible */
WHERE state = 'running' AND preemptible = 1 /*if after_id AND (priority, id) > (:after_priority, :after_id) */
ORDER BY priority, id LIMIT :limit;

-- Counts up to the limit.
-- name: run_unstarted
SELECT COUNT(*) FROM (
    SELECT 1 FROM runs /*sqlite INDEXED BY runs_state */
    WHERE state IN ('held', 'queued', 'placing') AND project = :project LIMIT :limit
) AS unstarted;

-- name: run_page_by_id
SELECT <run> FROM runs WHERE id > :after ORDER BY id LIMIT :limit;

-- name: submission_put
INSERT INTO submissions (<submission>) VALUES (<:submission>) ON CONFLICT DO NOTHING;

-- name: submission_get
SELECT <submission> FROM submissions WHERE principal = :principal AND request_id = :request_id;

-- name: submission_forget
DELETE FROM submissions WHERE principal = :principal AND request_id >= :low AND request_id < :high;

-- name: shape_put
INSERT INTO shapes (shape, requirements) VALUES (:shape, :requirements) ON CONFLICT DO NOTHING;

-- name: shape_get
SELECT requirements FROM shapes WHERE shape = :shape;

-- name: run_pull_in_stops
UPDATE runs SET stop_deadline = :latest + grace_s
WHERE stop_deadline IS NOT NULL AND stop_deadline <> :latest + grace_s;

-- name: run_pull_in_backoffs
UPDATE runs SET not_before = :latest
WHERE state = 'held' AND not_before IS NOT NULL AND not_before > :latest AND hold_reason = 'backoff';

-- name: parent_insert
INSERT INTO run_parents (<parent>) VALUES (<:parent>);

-- name: parents
SELECT <parent> FROM run_parents WHERE run_id = :run_id ORDER BY parent_id;

-- name: children
SELECT <parent> FROM run_parents WHERE parent_id = :parent_id ORDER BY run_id;

-- name: held_waiting
SELECT r.id, CASE
    WHEN NOT EXISTS (
        SELECT 1 FROM run_parents AS p JOIN runs AS q ON q.id = p.parent_id
        WHERE p.run_id = r.id AND q.state NOT IN ('succeeded', 'failed', 'cancelled')
    ) OR EXISTS (
        SELECT 1 FROM run_parents AS p JOIN runs AS q ON q.id = p.parent_id
        WHERE p.run_id = r.id AND q.state IN ('failed', 'cancelled') AND p.on_failure <> 'run'
    ) THEN 1 ELSE 0 END
FROM runs AS r /*sqlite INDEXED BY runs_held_id */
WHERE r.state = 'held' AND r.id > :after AND substr(r.hold_reason, 1, 10) = 'waits for '
ORDER BY r.id LIMIT :limit;

-- name: children_waiting
SELECT p.run_id FROM run_parents AS p JOIN runs AS c ON c.id = p.run_id
WHERE p.parent_id = :parent_id AND p.run_id > :after
    AND c.state = 'held' AND substr(c.hold_reason, 1, 10) = 'waits for '
ORDER BY p.run_id LIMIT :limit;

-- name: unsettled_put
INSERT INTO unsettled (run_id, after_id) VALUES (:run_id, :after_id)
ON CONFLICT (run_id) DO UPDATE SET after_id = excluded.after_id;

-- name: unsettled_list
SELECT run_id, after_id FROM unsettled ORDER BY run_id LIMIT :limit;

-- name: unsettled_delete
DELETE FROM unsettled WHERE run_id = :run_id;

-- name: run_delete_logs
INSERT INTO removed_logs (run_id) SELECT run_id FROM segments WHERE run_id = :run_id LIMIT 1
ON CONFLICT DO NOTHING;

-- name: run_delete_runs
DELETE FROM runs WHERE id = :run_id;

-- name: run_delete_run_specs
DELETE FROM run_specs WHERE run_id = :run_id;

-- name: run_delete_attempts
DELETE FROM attempts WHERE run_id = :run_id;

-- name: run_delete_ranks
DELETE FROM ranks WHERE run_id = :run_id;

-- name: run_delete_leases
DELETE FROM leases WHERE run_id = :run_id;

-- SQLite reuses the number of the last row after that row is deleted, and readers of the feed are past it.
-- name: run_delete_events
DELETE FROM events WHERE run_id = :run_id /*sqlite AND seq < (SELECT MAX(seq) FROM events) */;

-- name: run_delete_objects
DELETE FROM objects WHERE run_id = :run_id;

-- name: run_delete_object_counts
DELETE FROM object_counts WHERE run_id = :run_id;

-- name: run_delete_run_inputs
DELETE FROM run_inputs WHERE run_id = :run_id;

-- name: run_delete_unsettled
DELETE FROM unsettled WHERE run_id = :run_id;

-- name: run_delete_parents
DELETE FROM run_parents WHERE run_id = :run_id OR parent_id = :run_id;

-- name: run_newest_generation
SELECT MAX(generation) FROM runs
WHERE project = :project AND manifest = :manifest AND identity = :identity AND manifest IS NOT NULL;
